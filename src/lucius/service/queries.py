"""What people look at: jobs, their steps, attempts and events. Nobody sees a tenant they have no key for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from msgspec.structs import asdict, replace

from lucius.contract import AttemptView, EventView, JobSummary, StepWithAttempts
from lucius.contract import JobView as JobAnswer
from lucius.contract_control import AuditView
from lucius.core.counters import UNACKED, unacked_by_service
from lucius.core.decision import Env, JobView
from lucius.core.model import BlockedReason, Job
from lucius.ports.ledger import JobFilter, Ledger, Reader
from lucius.service.audit import verify
from lucius.service.auth import Principal
from lucius.service.errors import RejectCode, Rejected
from lucius.service.hub import Hub
from lucius.service.views import Explainer, attempt_views, event_view, job_summary, job_view, step_views

LOOK_SECONDS = 5.0


class Queries:
    def __init__(
        self, ledger: Ledger, reader: Reader, hub: Hub, env: Env, max_unacked: int, workflows_url: str = ""
    ) -> None:
        self._ledger = ledger
        self._reader = reader
        self._hub = hub
        self._env = env
        self._max_unacked = max_unacked
        self._workflows_url = workflows_url

    async def job(self, job_id: str, who: Principal, wait_seconds: float = 0) -> JobAnswer:
        """The job; with a wait, as soon as it has ended or the time is over."""
        end = await self._await_end(job_id, who, wait_seconds) if wait_seconds > 0 else None
        view = end or await self._view(job_id, who)
        return job_view(view, await self._explainer(view.job), self._workflows_url)

    async def _await_end(self, job_id: str, who: Principal, seconds: float) -> JobView | None:
        """Woken by the commit that ends it; now and then it looks all the same, as that may be another process's.

        The answer is what the job ended as, if that is known without a look.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        with self._hub.watch_end(job_id) as ended:
            live = _seen(await self._ledger.load(job_id), job_id, who).job.live
            while live and not self._hub.closed and (left := deadline - loop.time()) > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, LOOK_SECONDS)):
                        await ended.wait()
                        return ended.view
                live = (await self.require(job_id, who)).live
        return None

    async def jobs(
        self, who: Principal, where: JobFilter, limit: int, cursor: str | None
    ) -> tuple[list[JobSummary], str | None]:
        if where.tenants is None and not who.every_tenant:
            where = replace(where, tenants=who.tenants)
        saturated = await self._saturated()
        if where.blocked_on is BlockedReason.DISPATCH_WINDOW:
            where = replace(where, blocked_on=BlockedReason.HANDOVER, blocked_services=saturated)
        elif where.blocked_on is BlockedReason.HANDOVER:
            where = replace(where, except_services=saturated)
        try:
            page = await self._reader.jobs(where, limit, cursor)
        except ValueError as error:
            raise Rejected(RejectCode.INVALID_CURSOR, str(error)) from None
        explainer = Explainer(self._env, saturated)
        views = await asyncio.gather(*(self._ledger.load(job.job_id, fresh=True) for job in page.jobs))
        return [job_summary(view, explainer) for view in views if view is not None], page.next_cursor

    async def steps(self, job_id: str, who: Principal) -> list[StepWithAttempts]:
        view = await self._view(job_id, who)
        by_step: dict[str, list[AttemptView]] = {}
        for attempt in await self._attempts(view):
            by_step.setdefault(attempt.stepId, []).append(attempt)
        return [StepWithAttempts(**asdict(step), attempts=by_step.get(step.stepId, [])) for step in step_views(view)]

    async def attempts(self, job_id: str, who: Principal) -> list[AttemptView]:
        return await self._attempts(await self._view(job_id, who))

    async def _attempts(self, view: JobView) -> list[AttemptView]:
        job_id = view.job.job_id
        return attempt_views(view, await self._reader.attempts(job_id), await self._reader.quarantined(job_id))

    async def events(self, job_id: str, who: Principal, after: int, limit: int) -> tuple[list[EventView], int | None]:
        """One page of events, and the sequence number to go on after if there are more."""
        await self.require(job_id, who)
        events = await self._reader.events(job_id, after, limit + 1)
        shown = [event_view(event) for event in events[:limit]]
        return shown, shown[-1].seq if len(events) > limit else None

    async def follow(
        self, job_id: str, who: Principal, after: int, quiet_seconds: float
    ) -> AsyncIterator[EventView | None]:
        """Events as they happen, until the job has ended or we stop. None is a sign of life after a quiet while."""
        with self._hub.watch(job_id) as changed:
            while True:
                changed.clear()
                job = await self.require(job_id, who)
                for event in await self._reader.events(job_id, after, 500):
                    after = event.seq
                    yield event_view(event)
                if after < job.event_seq:
                    continue
                if not job.live or self._hub.closed:
                    return
                try:
                    async with asyncio.timeout(quiet_seconds):
                        await changed.wait()
                except TimeoutError:
                    yield None

    async def audit(self, job_id: str, who: Principal) -> AuditView:
        """Whether the job's events are as they were written."""
        await self.require(job_id, who)
        found = await verify(self._reader, job_id)
        if found is None:  # it has been archived since
            raise _unknown(job_id)
        return found

    async def require(self, job_id: str, who: Principal) -> Job:
        """The job's head, without the steps of a long job."""
        return _seen(await self._ledger.load(job_id, fresh=True), job_id, who).job

    async def _view(self, job_id: str, who: Principal) -> JobView:
        return _seen(await self._reader.job(job_id), job_id, who)

    async def _explainer(self, job: Job) -> Explainer:
        """Whose window is full matters only to who waits for it."""
        waits = job.blocked is not None and job.blocked.reason is BlockedReason.HANDOVER
        return Explainer(self._env, await self._saturated() if waits else frozenset())

    async def _saturated(self) -> frozenset[str]:
        unacked = unacked_by_service(await self._reader.counters(UNACKED))
        return frozenset(service for service, n in unacked.items() if n >= self._max_unacked)


def _seen(view: JobView | None, job_id: str, who: Principal) -> JobView:
    """A foreign tenant's job is as unknown as one that never was: its very existence is theirs to tell."""
    if view is None or not who.sees(view.job.tenant_id):
        raise _unknown(job_id)
    return view


def _unknown(job_id: str) -> Rejected:
    return Rejected(RejectCode.JOB_NOT_FOUND, f"there is no job {job_id[:128]}")
