"""A control plane behind a real HTTP server in the test's event loop, so that tests can inspect its parts meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn

from lucius.adapters.bus.local import LocalConsumer
from lucius.api.app import create_app
from lucius.bootstrap.control_plane import ControlPlane
from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.settings import load_settings
from lucius.contract import Directive
from lucius.core.model.routing import LANES, lane_of
from lucius.core.protocol.definition import ENGINE_SERVICES
from tests.support.ports import free_port

KEY = "key-for-tests-of-enough-characters"
TENANT_OF_LANE = {lane_of(name): name for name in (f"tenant-{n}" for n in range(500))}
assert len(TENANT_OF_LANE) == LANES
QUIET = {"LUCIUS_SWEEP_INTERVAL": "600", "LUCIUS_REPAIR_INTERVAL": "600"}
"""Disables sweeps and repairs, so only commits change anything: a pull answered soon was woken and did not poll."""


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # pytest handles signals


class ControlPlaneUnderTest:
    """Runs a server that can be stopped and restarted on the same port and the same ledger file."""

    def __init__(self, data_dir: Path, **env: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        wanted = {"LUCIUS_DEV_API_KEY": KEY, "LUCIUS_ORCHESTRATOR_URL": self.url, "LUCIUS_LOG_LEVEL": "error", **env}
        self._settings = load_settings(wanted, data_dir=data_dir)
        self._opened: ControlPlane | None = None
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._consumers: list[LocalConsumer] = []
        self._session = aiohttp.ClientSession()

    @property
    def runtime(self) -> ControlPlane:
        assert self._opened is not None
        return self._opened

    async def start(self) -> None:
        config = uvicorn.Config(create_app(self._open), port=self.port, log_config=None, access_log=False)
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve())
        async with asyncio.timeout(30):
            while not self._server.started:
                assert not self._serving.done(), "the server did not start"
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        if self._server is not None and self._serving is not None:
            self.runtime.notifier.close()
            self._server.should_exit = True
            await self._serving
            self._server = self._serving = None

    async def close(self) -> None:
        for consumer in self._consumers:
            await consumer.close()
        await self._session.close()
        await self.stop()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[ControlPlane]:
        async with open_runtime(self._settings) as runtime:
            self._opened = runtime
            yield runtime

    def consumer(self, service: str, lanes: Iterable[int] | None = None) -> LocalConsumer:
        self._consumers.append(LocalConsumer(self.url, service, KEY, lanes))
        return self._consumers[-1]

    def waiting(self) -> int:
        """Return the number of pulls that have reached the server and found nothing."""
        pulls = self.runtime.notifier.pulls.waiting_counts().items()
        return sum(waiting for service, waiting in pulls if service not in ENGINE_SERVICES)

    async def submit(self, number: int, service: str = "ocr", lane: int = 3, **fields: Any) -> str:
        """Submit a job of one step for the service and the lane."""
        payload = {"prompt_set": ["Who pays?"]} if service == "sis" else {}
        command = {
            "tenant_id": TENANT_OF_LANE[lane],
            "request_type": service.upper(),
            "input_ref": f"blob://in/{number}.txt",
            "output_ref": f"blob://out/{number}.txt",
            "payload": {service: {**payload, **fields.pop("payload", {})}},
            "schema_version": "v1",
            "correlation_id": f"job-{number}",
            **fields,
        }
        return str((await self.post("/v1/commands", command, 202))["jobId"])

    async def call_back(self, kind: str, directive: Directive, **fields: Any) -> dict[str, Any]:
        names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
        body = {name: getattr(directive, name) for name in names} | fields
        return await self.post(f"/v1/callbacks/{kind}", body, 200, directive.callback_token)

    async def post(self, path: str, body: Any, expected: int, token: str = KEY) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        async with self._session.post(self.url + path, data=json.dumps(body), headers=headers) as response:
            answer: dict[str, Any] = await response.json(content_type=None)
            assert response.status == expected, answer
            return answer


@asynccontextmanager
async def control_plane(data_dir: Path, **env: str) -> AsyncIterator[ControlPlaneUnderTest]:
    plane = ControlPlaneUnderTest(data_dir, **env)
    await plane.start()
    try:
        yield plane
    finally:
        await plane.close()
