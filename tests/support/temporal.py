"""A real Temporal server for tests: it can be stopped, killed, frozen and restarted on its port."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Self

from temporalio.api.workflowservice.v1 import CountWorkflowExecutionsRequest
from temporalio.client import Client
from temporalio.service import RPCError

from tests.support.guard import Guard
from tests.support.ports import free_port

READY_SECONDS = 60.0
NAMESPACE = "default"


class TemporalServer:
    """Runs one server; with `durable` its data survives a restart."""

    def __init__(self, *, durable: bool = False) -> None:
        self.port = free_port()
        self._durable = durable
        self._folder = Path(tempfile.mkdtemp(prefix="lucius-temporal-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self._folder / "log"

    def start(self) -> Self:
        keeping = ["--db-filename", str(self._folder / "temporal.db")] if self._durable else []
        command = [binary(), "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--log-level", "warn", *keeping],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._guard = Guard(f"kill -KILL {self._process.pid}; sleep 1; rm -rf {self._folder}")
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            assert self._process.poll() is None, f"Temporal ended at once: {self.log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, f"Temporal does not start: {self.log.read_text()[-2000:]}"
            time.sleep(0.05)
        return self

    def stop(self, *, crash: bool = False) -> None:
        """Stop the server in order, or with `crash` by SIGKILL."""
        if self._process is not None and self._guard is not None:
            self._process.send_signal(signal.SIGKILL if crash else signal.SIGTERM)
            self._process.wait(READY_SECONDS)
            self._guard.dismiss()
            self._process = self._guard = None

    def restart(self, *, crash: bool = False) -> None:
        self.stop(crash=crash)
        self.start()

    def remove(self) -> None:
        self.stop(crash=True)
        shutil.rmtree(self._folder)

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
        """Return True if the namespace is available: an open port is not enough.

        Works in async tests too: it uses its own thread and event loop.
        """
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, self._knows_workflows()).result()

    async def _knows_workflows(self) -> bool:
        asked = CountWorkflowExecutionsRequest(namespace=NAMESPACE)
        try:
            client = await Client.connect(self.address, namespace=NAMESPACE)
            await client.workflow_service.count_workflow_executions(asked, timeout=timedelta(seconds=2))
        except (RPCError, RuntimeError):
            return False
        return True


def binary() -> str:
    """Return the path of the `temporal` command, which a package installs beside the Python that runs the tests."""
    found = Path(sys.executable).parent / "temporal"
    assert found.exists(), "the temporal command is missing: `make setup` installs it"
    return str(found)
