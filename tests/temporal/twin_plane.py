"""Control plane whose services, operators and peers act only as scripted."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from aiohttp import web
from msgspec import Struct

from lucius.bootstrap import control_plane
from lucius.bootstrap.control_plane import ControlPlane
from lucius.bootstrap.lifecycle import open_runtime
from lucius.core.model.decision import JobSnapshot
from lucius.core.model.records import NEVER
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.observability.readiness import Role
from lucius.ports.errors import ProtocolError
from tests.support.api import Api, serving, settings_for
from tests.support.peer import peer
from tests.support.temporal import TemporalServer
from tests.temporal.twin_api import TimeFlows
from tests.temporal.twin_cases import Case, document

SECRET = "whsec_c2VjcmV0LWZvci10aGUtdGVzdHMtb25seQ=="
GUARD = "-guard"


class Outside:
    """HTTP server that protocols call. It answers as scripted; guards are answered at once and truthfully."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: dict[str, list[asyncio.Future[web.Response]]] = {}
        self.made: dict[str, Any] = {}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        key = request.headers["idempotency-key"]
        if key.endswith(GUARD):
            made = self.made.get(key.removesuffix(GUARD))
            return web.json_response({"done": made is not None, "made": made})
        waiting: asyncio.Future[web.Response] = asyncio.get_running_loop().create_future()
        self.asked.setdefault(key, []).append(waiting)
        return await waiting

    def hang_up(self) -> None:
        for waiting in (waiting for asked in self.asked.values() for waiting in asked):
            waiting.cancel()


class Plane:
    def __init__(self, name: str, api: Api, outside: Outside) -> None:
        self.name = name
        self.outside = outside
        self._api = api

    @property
    def runtime(self) -> ControlPlane:
        return self._api.runtime

    async def submit(self, case: Case) -> str:
        key = f"{case.seed}-{uuid.uuid4().hex}"
        return await self._api.submit(
            request_type=case.protocol.request_type, payload=case.payload, idempotency_key=key
        )

    async def view(self, job_id: str) -> JobSnapshot:
        view = await self.runtime.store.jobs.job(job_id)
        assert view is not None
        return view

    async def has_messages(self, job_id: str) -> bool:
        return any(message.job_id == job_id for message in await self.runtime.store.inbox.list_pending(NEVER, 10_000))


class Protocols:
    """Protocol source that can be extended."""

    def __init__(self) -> None:
        self._protocols: dict[str, ProtocolDefinition] = {}
        self._changed = False

    def add(self, protocol: ProtocolDefinition) -> None:
        self._protocols[protocol.request_type] = protocol
        self.note_change()

    def note_change(self) -> None:
        """Let the next `refresh` return True; each control plane needs that once."""
        self._changed = True

    def refresh(self) -> bool:
        changed, self._changed = self._changed, False
        return changed

    def list(self) -> tuple[ProtocolDefinition, ...]:
        return tuple(self._protocols.values())

    def place(self, protocol: ProtocolDefinition) -> tuple[str, int]:
        return protocol.request_type, 1

    def problems(self) -> tuple[ProtocolError, ...]:
        return ()


class Planes(Struct, frozen=True):
    """A control plane for each engine, with the same protocols."""

    embedded: Plane
    temporal: Plane
    outside: Outside
    protocols: Protocols

    async def know(self, cases: Iterable[Case]) -> None:
        for case in cases:
            self.protocols.add(document(case, self.outside.url))
        for plane in (self.embedded, self.temporal):
            self.protocols.note_change()
            await plane.runtime.protocols.refresh()


@asynccontextmanager
async def planes(
    folder: Path, server: TemporalServer, *, durable: bool = False, shared: str = ""
) -> AsyncIterator[Planes]:
    """Open both planes.

    `durable` keeps their ledgers in files; `shared` is the URL of a ledger over which the Temporal engine runs its API
    and worker apart.
    """
    async with peer() as there:
        outside, protocols = Outside(), Protocols()
        there.answer = outside.answer
        outside.url = there.url
        policy = {"hosts": [f"127.0.0.1:{there.port}"], "allow_http": True, "allow_private": True, "per_host": 1000}
        (folder / "config.yaml").write_text(json.dumps({"calls": policy}))
        over = {
            "engine": "temporal",
            "temporal_address": server.address,
            "temporal_task_queue": f"twin-{uuid.uuid4().hex[:12]}",
        }
        with mock.patch.object(control_plane, "ProtocolsDir", return_value=protocols):
            async with (
                _plane("embedded", folder, outside, _ledger(folder / "embedded", durable)) as embedded,
                _plane(
                    "temporal", folder, outside, shared or _ledger(folder / "temporal", durable), **over
                ) as temporal,
            ):
                yield Planes(embedded, temporal, outside, protocols)
                outside.hang_up()


@asynccontextmanager
async def _plane(name: str, folder: Path, outside: Outside, ledger_url: str, **engine: Any) -> AsyncIterator[Plane]:
    (folder / name).mkdir()
    settings = settings_for(
        folder / name,
        ledger_url=ledger_url,
        config_path=folder / "config.yaml",
        sweep_interval=0.02,
        reload_interval=3_600.0,
        webhook_secrets={"DEFAULT": SECRET},
        **engine,
    )
    async with AsyncExitStack() as stack:
        if settings.shares_ledger:
            await stack.enter_async_context(open_runtime(settings, role=Role.WORKER))
        yield Plane(name, await stack.enter_async_context(serving(settings, TimeFlows())), outside)


def _ledger(folder: Path, durable: bool) -> str:
    return f"sqlite:///{folder / 'ledger.db'}" if durable else "memory:"
