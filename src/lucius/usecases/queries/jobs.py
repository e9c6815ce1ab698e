"""Queries about jobs, steps, attempts and events, limited to the tenants that the caller's key may see."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from lucius.contract import AttemptView, EventView, JobSummary, StepWithAttempts
from lucius.contract import JobView as JobAnswer
from lucius.contract.control import AuditView
from lucius.core.model.counters import UNACKED
from lucius.core.model.decision import Env, JobSnapshot
from lucius.core.model.records import Job
from lucius.core.model.statuses import BlockedReason
from lucius.core.protocol.definition import ENGINE_SERVICES
from lucius.ports.ledger import Ledger
from lucius.ports.readers import HistoryReader, JobFilter, JobReader
from lucius.usecases.access.auth import Authenticator, Principal
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.notifier import Notifier
from lucius.usecases.queries.audit import verify
from lucius.usecases.queries.dispatch_windows import ALL_OPEN, DispatchWindows
from lucius.usecases.queries.services import ServiceRegistry
from lucius.usecases.queries.views import (
    Explainer,
    ServiceNotes,
    attempt_views,
    event_view,
    job_summary,
    job_view,
    step_views,
)

LOOK_SECONDS = 5.0
MAX_PAGES = 20
"""Maximum pages that are read for a list until one has a job that was asked for."""
WAITS_FOR_PULL = frozenset({BlockedReason.HANDOVER})
WAITS_ON_PUSH_BUS = frozenset({BlockedReason.HANDOVER, BlockedReason.ACK, BlockedReason.RETRY})
"""Reasons to wait for which an absent service may be the cause."""


class JobEnded(Struct, frozen=True):
    """The job has ended; no event follows the one with the number `last_seq`."""

    last_seq: int


class WaitOptions(Struct, frozen=True):
    """How long to wait for a job's end.

    `hold` returns the block in which to wait for a job of a tenant; it may raise Rejected. `gone` makes a future that
    is done once the client disconnects.
    """

    seconds: float = 0.0
    hold: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext()
    gone: Callable[[], asyncio.Future[Any]] | None = None


AT_ONCE = WaitOptions()


class Queries:
    def __init__(
        self,
        ledger: Ledger,
        jobs: JobReader,
        history: HistoryReader,
        notifier: Notifier,
        env: Env,
        max_unacked: int,
        workflows_url: str = "",
        *,
        auth: Authenticator,
        services: ServiceRegistry,
        is_push_bus: bool = False,
    ) -> None:
        """With `is_push_bus`, services get directives from a bus: a step handed over may wait for an absent service."""
        self._ledger = ledger
        self._jobs = jobs
        self._history = history
        self._notifier = notifier
        self._env = env
        self._max_unacked = max_unacked
        self._workflows_url = workflows_url
        self._auth = auth
        self._services = services
        self._is_push_bus = is_push_bus

    async def job(self, job_id: str, who: Principal, wait: WaitOptions = AT_ONCE) -> JobAnswer:
        """Return the job once it has ended or the time to wait is over."""
        end = await self._await_end(job_id, who, wait) if wait.seconds > 0 else None
        view = end or await self._view(job_id, who)
        return job_view(view, await self._explainer([view.job], who), self._workflows_url)

    async def _await_end(self, job_id: str, who: Principal, wait: WaitOptions) -> JobSnapshot | None:
        """Wait for the job's end; return the ended job if it ended in this process, else None.

        The commit that ends the job sets the event; the job is polled as well, as that may be another process's.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait.seconds
        with ExitStack() as waiting:
            ended = waiting.enter_context(self._notifier.watch_end(job_id))
            waiting.enter_context(self._auth.watch(who, ended.set))
            job = _seen(await self._ledger.load(job_id), job_id, who).job
            live = job.live and await self._begin_wait(wait, job, who, waiting)
            if live and wait.gone is not None:
                hung_up = wait.gone()
                hung_up.add_done_callback(lambda _: ended.set())
                waiting.callback(hung_up.cancel)
            while live and not self._notifier.closed and (left := deadline - loop.time()) > 0:
                self._auth.require_current(who)
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, LOOK_SECONDS)):
                        await ended.wait()
                        self._auth.require_current(who)
                        return ended.view
                live = (await self.require(job_id, who)).live
        return None

    async def _begin_wait(self, wait: WaitOptions, job: Job, who: Principal, waiting: ExitStack) -> bool:
        """Enter the block to wait in; return False if the job has ended. Raises Rejected."""
        try:
            waiting.enter_context(wait.hold(job.tenant_id))
        except Rejected:
            if (await self.require(job.job_id, who)).live:
                raise
            return False
        return True

    async def jobs(
        self, who: Principal, where: JobFilter, limit: int, cursor: str | None
    ) -> tuple[list[JobSummary], str | None]:
        if where.tenants is None and not who.every_tenant:
            where = replace(where, tenants=who.tenants)
        windows, asked = await self._windows(), where.blocked_on
        is_wanted: Callable[[Job], bool] | None = None
        if asked is BlockedReason.DISPATCH_WINDOW:
            where = replace(where, blocked_on=BlockedReason.HANDOVER, blocked_services=windows.closed_for_some())
            is_wanted = partial(_is_shut_out, windows)
        elif asked is BlockedReason.HANDOVER:
            where = replace(where, except_services=windows.closed_for_all())
            is_wanted = partial(_is_admitted, windows)
        found, cursor = await self._page(where, limit, cursor, is_wanted)
        explainer = await self._explainer(found, who, windows)
        views = await asyncio.gather(*(self._ledger.load(job.job_id, fresh=True) for job in found))
        return [job_summary(view, explainer) for view in views if view is not None], cursor

    async def _page(
        self, where: JobFilter, limit: int, cursor: str | None, is_wanted: Callable[[Job], bool] | None
    ) -> tuple[list[Job], str | None]:
        """Read one page; with `is_wanted`, go on until a page has a wanted job, for at most MAX_PAGES pages."""
        found: list[Job] = []
        for _ in range(MAX_PAGES):
            try:
                page = await self._jobs.jobs(where, limit, cursor)
            except ValueError as error:
                raise Rejected(RejectCode.INVALID_CURSOR, str(error)) from None
            found, cursor = list(filter(is_wanted, page.jobs)) if is_wanted else page.jobs, page.next_cursor
            if found or cursor is None or is_wanted is None:
                break
            await asyncio.sleep(0)  # a store may read without yielding
        return found, cursor

    async def steps(self, job_id: str, who: Principal) -> list[StepWithAttempts]:
        view = await self._view(job_id, who)
        by_step: dict[str, list[AttemptView]] = {}
        for attempt in await self._attempts(view):
            by_step.setdefault(attempt.stepId, []).append(attempt)
        return [StepWithAttempts(**asdict(step), attempts=by_step.get(step.stepId, [])) for step in step_views(view)]

    async def attempts(self, job_id: str, who: Principal) -> list[AttemptView]:
        return await self._attempts(await self._view(job_id, who))

    async def _attempts(self, view: JobSnapshot) -> list[AttemptView]:
        job_id = view.job.job_id
        return attempt_views(view, await self._history.attempts(job_id), await self._history.quarantined(job_id))

    async def events(self, job_id: str, who: Principal, after: int, limit: int) -> tuple[list[EventView], int | None]:
        """Return one page of events, and the sequence number to continue after if there are more."""
        await self.require(job_id, who)
        events = await self._history.events(job_id, after, limit + 1)
        shown = [event_view(event) for event in events[:limit]]
        return shown, shown[-1].seq if len(events) > limit else None

    async def follow(
        self, job_id: str, who: Principal, after: int, quiet_seconds: float
    ) -> AsyncIterator[EventView | JobEnded | None]:
        """Yield events as they happen, and JobEnded last if the job has ended; without it the server is stopping.

        Yields None as a keep-alive after `quiet_seconds` without events. Raises Rejected as soon as the key of `who`
        is revoked.
        """
        with self._notifier.watch(job_id) as changed, self._auth.watch(who, changed.set):
            while True:
                changed.clear()
                self._auth.require_current(who)
                job = await self.require(job_id, who)
                for event in await self._history.events(job_id, after, 500):
                    after = event.seq
                    yield event_view(event)
                if after < job.event_seq:
                    continue
                if not job.live:
                    yield JobEnded(job.event_seq)
                    return
                if self._notifier.closed:
                    return
                try:
                    async with asyncio.timeout(quiet_seconds):
                        await changed.wait()
                except TimeoutError:
                    yield None

    async def audit(self, job_id: str, who: Principal) -> AuditView:
        """Return whether the job's events and ended attempts are as they were written. Raises Rejected."""
        await self.require(job_id, who)
        found = await verify(self._jobs, self._history, job_id)
        if found is None:  # archived meanwhile
            raise _unknown(job_id)
        return found

    async def require(self, job_id: str, who: Principal) -> Job:
        """Return the job's head, without the steps of a long job. Raises Rejected if `who` can't see it."""
        return _seen(await self._ledger.load(job_id, fresh=True), job_id, who).job

    async def _view(self, job_id: str, who: Principal) -> JobSnapshot:
        return _seen(await self._jobs.job(job_id), job_id, who)

    async def _explainer(
        self, jobs: Sequence[Job], who: Principal, windows: DispatchWindows | None = None
    ) -> Explainer:
        """Return an explainer, looking up only what the jobs that wait for a service need."""
        blocked = [job.blocked for job in jobs if job.blocked is not None and job.blocked.service]
        if windows is None:
            waiting = any(one.reason is BlockedReason.HANDOVER for one in blocked)
            windows = await self._windows() if waiting else ALL_OPEN
        reasons = WAITS_ON_PUSH_BUS if self._is_push_bus else WAITS_FOR_PULL
        services = {one.service for one in blocked if one.reason in reasons and one.service} - ENGINE_SERVICES
        notes = {service: await self._notes(service, who) for service in sorted(services)}
        return Explainer(self._env, windows, notes, is_push_bus=self._is_push_bus)

    async def _notes(self, service: str, who: Principal) -> ServiceNotes:
        """Return notes for operators about a service that a step waits for."""
        oldest = await self._services.oldest_waiting(service) if who.every_tenant else None
        return ServiceNotes(await self._services.describe_absence(service, counts=who.every_tenant), oldest)

    async def _windows(self) -> DispatchWindows:
        return DispatchWindows(await self._jobs.counters(UNACKED), self._max_unacked)


def _is_shut_out(windows: DispatchWindows, job: Job) -> bool:
    """Return True if a job that waits for its hand-over waits for the dispatch window."""
    service = job.blocked.service if job.blocked is not None else None
    return service is not None and windows.is_closed(service, job.tenant_id)


def _is_admitted(windows: DispatchWindows, job: Job) -> bool:
    return not _is_shut_out(windows, job)


def _seen(view: JobSnapshot | None, job_id: str, who: Principal) -> JobSnapshot:
    """Return `view`. Raises JOB_NOT_FOUND for a foreign tenant's job, too: its existence must not be revealed."""
    if view is None or not who.sees(view.job.tenant_id):
        raise _unknown(job_id)
    return view


def _unknown(job_id: str) -> Rejected:
    return Rejected(RejectCode.JOB_NOT_FOUND, f"there is no job {job_id[:128]}")
