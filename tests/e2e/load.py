"""Clients that retry without end: each submits a command, again after a broken connection, and awaits its job."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e.support import KEY, Json, Stack

TENANTS = ("acme", "globex", "initech", "umbrella")
REQUEST_TYPES = ("OCR_EMBEDDING_SIS", "OCR_EMBEDDING_SIS", "OCR_EMBEDDING", "EMBEDDING_SIS", "OCR", "SIS")
AWAY = frozenset({408, 429, 500, 502, 503, 504})
PATIENCE = 90.0
BURST = 4


class Order:
    """One command, and every answer that its client got."""

    def __init__(self, command: Json, blobs: Path) -> None:
        self.command = command
        self._blobs = blobs
        self.job_ids: list[str] = []
        self.resubmitted = 0
        self.ended: Json | None = None

    @property
    def job_id(self) -> str:
        return self.job_ids[0]

    @property
    def output(self) -> Path:
        return self._blobs / str(self.command["output_ref"]).removeprefix("blob://")


class Load:
    """Closed loop of clients. `accepted` and `finished` only grow; `moved` is set when they do."""

    def __init__(self, stack: Stack, rng: random.Random, clients: int) -> None:
        self._stack = stack
        self._rng = rng
        self._clients = clients
        self._numbers = self._count()
        self.orders: list[Order] = []
        self.accepted = 0
        self.finished = 0
        self.broken_connections = 0
        self.enough = asyncio.Event()
        self.more = asyncio.Event()
        """Set to request a burst of submissions in addition to the loop's."""
        self.moved = asyncio.Event()

    async def run(self, at_least: int) -> None:
        """Run until `enough` is set and at least this many jobs have been submitted."""
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(headers=headers) as session, asyncio.TaskGroup() as group:
            for _ in range(self._clients):
                group.create_task(self._client(session, at_least))
            while not self.enough.is_set():
                self.more.clear()
                await self.more.wait()
                for _ in range(0 if self.enough.is_set() else BURST):
                    group.create_task(self._one_job(session))

    async def _client(self, session: aiohttp.ClientSession, at_least: int) -> None:
        while not self.enough.is_set() or len(self.orders) < at_least:
            await self._one_job(session)

    async def _one_job(self, session: aiohttp.ClientSession) -> None:
        order = Order(self._command(next(self._numbers)), self._stack.folder)
        self.orders.append(order)
        await self._submit(session, order)
        if self._rng.random() < 0.15:
            await self._submit(session, order)  # as if the answer had been lost
        await self._await_end(session, order)

    def finish(self) -> None:
        self.enough.set()
        self.more.set()

    def _count(self) -> Iterator[int]:
        yield from range(1, 1_000_000_000)

    def _command(self, number: int) -> Json:
        rng = self._rng
        fields: Json = {"tenant_id": rng.choice(TENANTS)}
        if rng.random() < 0.4:
            fields |= {"mode": "BURST", "doc_id": f"doc-{number}"}
        if rng.random() < 0.7:
            fields["idempotency_key"] = f"key-{number}"
        return self._stack.command(number, rng.choice(REQUEST_TYPES), **fields)

    async def _submit(self, session: aiohttp.ClientSession, order: Order) -> None:
        body = await self._insist(session, "POST", "/v1/commands", 202, order.command, order)
        order.job_ids.append(body["jobId"])
        self.accepted += len(order.job_ids) == 1
        self.moved.set()

    async def _await_end(self, session: aiohttp.ClientSession, order: Order) -> None:
        async with asyncio.timeout(PATIENCE):
            while order.ended is None:
                job = await self._insist(session, "GET", f"/v1/jobs/{order.job_id}?wait=5", 200)
                order.ended = job if job["completed_at"] else None
        self.finished += 1
        self.moved.set()

    async def _insist(
        self, session: aiohttp.ClientSession, method: str, path: str, wanted: int, body: Any = None, of: Any = None
    ) -> Json:
        async with asyncio.timeout(PATIENCE):
            while True:
                answer = await self._try(session, method, path, body)
                if answer is not None:
                    status, found = answer
                    assert status == wanted, f"{method} {path} answered {status}: {found}"
                    return found
                self.broken_connections += 1
                if of is not None:
                    of.resubmitted += 1
                await asyncio.sleep(0.05)  # the server is away

    async def _try(self, session: aiohttp.ClientSession, method: str, path: str, body: Any) -> tuple[int, Json] | None:
        """Return status and body, or None if the outcome is unknown."""
        try:
            async with session.request(
                method, self._stack.api.base_url + path, json=body, timeout=aiohttp.ClientTimeout(total=20)
            ) as response:
                return None if response.status in AWAY else (response.status, await response.json(content_type=None))
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
