"""API over the Temporal engine, for tests written for an engine whose answers are in the ledger at once."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from msgspec.structs import replace

from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.settings import Settings
from lucius.core.model.records import NEVER
from lucius.core.model.statuses import JobStatus
from lucius.observability.readiness import Role
from lucius.ports.clock import SystemClock
from lucius.ports.readers import JobFilter
from tests.support.api import Answer, Api, serving
from tests.support.clock import ManualClock
from tests.support.temporal import TemporalServer

WITHIN = 10.0
AT_ONCE = ("/v1/callbacks", "/v1/commands")


class TimeFlows(ManualClock):
    """System clock: Temporal's timers cannot be advanced."""

    def __init__(self) -> None:
        self._system = SystemClock()

    def now(self) -> int:
        return self._system.now()


class FollowingApi(Api):
    """Api that reads only once all messages are in the ledger."""

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        if not path.startswith(AT_ONCE):
            await self.followed()
        return await super().call(method, path, body, **options)

    async def followed(self) -> None:
        async with asyncio.timeout(WITHIN):
            while await self._is_behind():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def _is_behind(self) -> bool:
        store = self.runtime.store
        if await store.inbox.list_pending(NEVER, 1):
            return True
        return bool((await store.jobs.jobs(JobFilter(status=JobStatus.QUEUED), 1, None)).jobs)

    async def end(self, job_id: str) -> str:
        """Return the job's final status, waiting for it: an empty inbox does not mean that the job has ended."""
        job = (await self.get(f"/v1/jobs/{job_id}?wait={WITHIN}")).ok()
        return str(job["status"])

    async def submit(self, **changes: Any) -> str:
        job_id = await super().submit(**changes)
        view = await self.runtime.store.ledger.load(job_id)
        assert view is not None
        assert view.job.engine == "temporal"
        return job_id

    async def pull_one(self, service: str = "ocr") -> dict[str, Any]:
        (directive,) = await self.pull(service, wait_seconds=5)
        return directive

    async def sweep(self, after: float = 0.0) -> int:
        """Do nothing: time passes by itself."""
        return 0


def over_temporal(settings: Settings, server: TemporalServer) -> Settings:
    queue = f"test-{uuid.uuid4().hex[:12]}"
    return replace(settings, engine="temporal", temporal_address=server.address, temporal_task_queue=queue)


@asynccontextmanager
async def serving_over(settings: Settings, server: TemporalServer) -> AsyncIterator[FollowingApi]:
    """Serve an API over Temporal, with a worker in this process or, for a shared ledger, in a role of its own."""
    settings, clock = over_temporal(settings, server), TimeFlows()
    async with AsyncExitStack() as stack:
        if settings.shares_ledger:
            await stack.enter_async_context(open_runtime(settings, clock, Role.WORKER))
        api = await stack.enter_async_context(serving(settings, clock))
        yield FollowingApi(api.app, api.runtime, api.clock)
