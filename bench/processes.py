"""Processes for measurements: start, readiness, stop and CPU time."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def process(*command: str, log: Path, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "wb") as stderr:
        started = subprocess.Popen([sys.executable, *command], env={**os.environ, **env}, stderr=stderr)
    try:
        yield started
    finally:
        started.send_signal(signal.SIGTERM)
        try:
            started.wait(10)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def wait_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"the server did not start:\n{log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the server was not ready in time")


def run_fast(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop, as the servers do, if it is installed."""
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return user and system seconds of these processes and their descendants, including ended ones."""
    below: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            below.setdefault(int(fields[1]), []).append(int(stat.parent.name))
            spent[int(stat.parent.name)] = sum(map(int, fields[11:15])) / TICKS  # children that were waited for count
    total, rest = 0.0, list(pids)
    while rest:
        pid = rest.pop()
        total += spent.get(pid, 0.0)
        rest += below.get(pid, [])
    return total
