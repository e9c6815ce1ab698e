"""The demo's processes: a control plane on a SQLite file and three platform services, all of which can be killed."""

import asyncio
import os
import random
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import IO

from lucius.cli.children import Child, end, kill, spawn
from lucius.cli.connection import Connection
from lucius.cli.errors import Unsuccessful
from lucius.cli.session import is_answered, session

CONTROL_PLANE = "control plane"
SERVICES = ("ocr", "embedding", "sis")
START_SECONDS = 30.0
# Below the ephemeral ports: a client that calls while the server is down could be given the server's own port. And
# apart from the ports of the conformance kit, which could take it meanwhile.
PORTS = range(28_000, 32_000)

# Shorter than in production, so that the demo is quick to watch.
SHORT_TIMEOUTS = {
    "LUCIUS_ACK_TIMEOUT": "1.5",
    "LUCIUS_LEASE": "3",
    "LUCIUS_BACKOFF_SCALE": "0.01",
    "LUCIUS_SWEEP_INTERVAL": "0.05",
    "LUCIUS_RELOAD_INTERVAL": "0.2",
    "LUCIUS_MAX_ATTEMPTS": "5",  # a slow machine may lose some of such short leases
    "LUCIUS_SERVICE_DELAY": "0.4",
    "LUCIUS_MODEL_THREADS": "1",
}


# Settings for reading documents are kept; all others would change the demo.
KEPT_SETTINGS = ("LUCIUS_OCR_ENGINE", "LUCIUS_EMBEDDING_MODEL")


class Stack:
    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.protocols = folder / "protocols"
        self.blobs = folder / "data" / "blobs"
        self.protocols.mkdir(parents=True)
        self._port = _free_port()
        self.to = Connection(f"http://127.0.0.1:{self._port}", f"demo-{secrets.token_hex(8)}")
        self.children: dict[str, Child] = {}
        self._logs = ExitStack()
        self._env = {
            **{
                name: value
                for name, value in os.environ.items()
                if name in KEPT_SETTINGS or not name.startswith("LUCIUS_")
            },
            **SHORT_TIMEOUTS,
            "LUCIUS_DEV_API_KEY": self.to.api_key,
            "LUCIUS_API_KEY": self.to.api_key,
            "LUCIUS_ORCHESTRATOR_URL": self.to.url,
            "LUCIUS_DATA_DIR": str(folder / "data"),
            "LUCIUS_PROTOCOLS_DIR": str(self.protocols),
            **(env or {}),
        }

    async def start(self, name: str) -> Child:
        """Start or restart a process. Services connect by themselves once the control plane is there."""
        arguments = ["api", "--port", str(self._port)]
        if name != CONTROL_PLANE:
            arguments = ["service", name, "--concurrency", "4", "--grace", "1"]
        child = self.children[name] = await spawn(arguments, self._env, self._log(name))
        return child

    async def kill(self, name: str) -> int:
        """Send SIGKILL; return the pid of the process."""
        child = self.children[name]
        await kill(child)
        return child.pid

    async def stop(self) -> None:
        services = [child for name, child in self.children.items() if name != CONTROL_PLANE]
        await asyncio.gather(*(end(child) for child in services))
        if CONTROL_PLANE in self.children:
            await end(self.children[CONTROL_PLANE])
        self._logs.close()

    def alive(self, name: str) -> bool:
        child = self.children.get(name)
        return child is not None and child.returncode is None

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}.log"

    def _log(self, name: str) -> IO[bytes]:
        return self._logs.enter_context(open(self.log_of(name), "ab"))

    async def ready(self) -> None:
        """Wait until the control plane answers. Raises Unsuccessful."""
        child = self.children[CONTROL_PLANE]
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_SECONDS
        async with session(self.to) as client:
            while not await is_answered(client, "/readyz"):
                if child.returncode is not None or loop.time() > deadline:
                    last = self.log_of(CONTROL_PLANE).read_text(errors="replace").splitlines()[-1:]
                    raise Unsuccessful(f"the control plane did not start: {' '.join(last) or 'no output'}")
                await asyncio.sleep(0.03)


@asynccontextmanager
async def engine_env(engine: str, folder: Path) -> AsyncIterator[dict[str, str]]:
    """Yield the engine's settings for the control plane; Temporal's server runs during the block."""
    if engine != "temporal":
        yield {}
        return
    from lucius.cli.temporal_server import temporal_server  # noqa: PLC0415

    async with temporal_server(folder, "default") as temporal:
        yield {"LUCIUS_ENGINE": engine, "LUCIUS_TEMPORAL_ADDRESS": temporal.address}


def _free_port() -> int:
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise Unsuccessful("found no free port")
