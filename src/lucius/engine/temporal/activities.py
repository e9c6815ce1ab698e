"""Activities of job workflows. Each may be repeated: work that was done before is detected, not done again."""

import asyncio
import random
from datetime import UTC, datetime, timedelta

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from lucius.contract import Directive
from lucius.core.model.decision import Applied, Decision, JobSnapshot
from lucius.core.model.inputs import Cap, Failed, HandedOver, HandOverFailed, Succeeded
from lucius.core.model.records import ErrorInfo, Instant, Job, Millis, Step
from lucius.core.model.statuses import StepStatus
from lucius.engine.outbound.http_attempt import HttpAttempt, failed_by
from lucius.engine.temporal import inbox_claims
from lucius.engine.temporal.downtime_grace import DowntimeGrace
from lucius.engine.temporal.messages import (
    HandoverRequest,
    JobMessage,
    LoadedJob,
    Projection,
    ProjectionResult,
    encode_input,
    make_claim,
)
from lucius.engine.temporal.paged_state import LoadStepsRequest, first_part, next_part
from lucius.engine.temporal.shortcuts import TaskShortcuts
from lucius.ports.bus import Publisher
from lucius.ports.clock import Clock
from lucius.ports.engine import Engine
from lucius.ports.errors import (
    AlreadyAccepted,
    BusDown,
    LedgerError,
    LimitReached,
    MessageRefused,
    OutcomeUnknown,
    VersionConflict,
)
from lucius.ports.http import Caller, Closed
from lucius.ports.inbox import Inbox, InboxMessage
from lucius.ports.ledger import Ledger
from lucius.ports.readers import JobReader
from lucius.usecases.handover.directive_loader import DirectiveLoader
from lucius.usecases.handover.unacked_caps import UnackedCaps

log = structlog.get_logger(__name__)

HEARTBEAT_INTERVAL = timedelta(seconds=10)
MAX_HOST_WAIT_SECONDS = 5.0
PICKUP_TIMEOUT_SECONDS = 60.0
PUBLISHING_TTL_MS = 30_000


class Activities:
    def __init__(
        self,
        *,
        ledger: Ledger,
        jobs: JobReader,
        inbox: Inbox,
        engine: Engine,
        shortcuts: TaskShortcuts,
        directive_loader: DirectiveLoader,
        unacked_caps: UnackedCaps,
        publisher: Publisher | None,
        caller: Caller,
        http_attempt: HttpAttempt,
        clock: Clock,
        downtime_grace: DowntimeGrace,
    ) -> None:
        self._ledger = ledger
        self._jobs = jobs
        self._inbox = inbox
        self._engine = engine
        self._shortcuts = shortcuts
        self._directive_loader = directive_loader
        self._unacked_caps = unacked_caps
        self._publisher = publisher
        self._caller = caller
        self._http_attempt = http_attempt
        self._clock = clock
        self._downtime_grace = downtime_grace
        self._unreleased: set[str] = set()
        self._publishing: dict[str, tuple[str, Instant]] = {}

    @activity.defn(name="load_job")
    async def load_job(self, job_id: str) -> LoadedJob:
        view = await self._jobs.job(job_id)
        return LoadedJob() if view is None else first_part(view)

    @activity.defn(name="load_steps")
    async def load_steps(self, wanted: LoadStepsRequest) -> LoadedJob:
        view = await self._ledger.load(wanted.job_id, wanted.step_ids, fresh=True)
        return LoadedJob(asked=wanted.step_ids) if view is None else next_part(view, wanted.step_ids)

    @activity.defn(name="project")
    async def project(self, projection: Projection) -> ProjectionResult:
        """Commit the projection if the ledger is at the version before; the ledger never goes back."""
        self._shortcuts.before_projection(projection.job.job_id)
        return await self._project(projection, _late_ms())

    async def _project(self, projection: Projection, late_ms: Millis = 0) -> ProjectionResult:
        job, protocol = projection.job, projection.protocol
        if protocol is None:
            view = await self._ledger.load(job.job_id)
            if view is None:
                return ProjectionResult(ledger=LoadedJob())
            protocol = view.protocol
        if projection.may_be_repeat and not await self._inbox.get_many(projection.message_ids[:1]):
            return ProjectionResult(already_recorded=True)
        if projection.changes and (until := await self._downtime_grace.downtime_end(projection, late_ms)):
            return ProjectionResult(downtime_end=until)
        if projection.changes:
            try:
                await self._ledger.commit(projection.decision(protocol))
            except LimitReached as reached:
                return ProjectionResult(limit_reached=Cap(reached.counter, reached.limit))
            except AlreadyAccepted as accepted:
                if accepted.job_id != job.job_id:
                    return ProjectionResult(key_taken=True)
                return ProjectionResult(ledger=await self.load_job(job.job_id))
            except VersionConflict:
                found = await self.load_job(job.job_id)
                if found.job is None or (found.job.version, found.job.event_hash) != (job.version, job.event_hash):
                    return ProjectionResult(ledger=found)
        elif (stored := await self.compare(job)).ledger is not None:
            return stored  # the ledger is ahead: what is a duplicate here may be new to it
        if projection.message_ids:
            for message_id in projection.message_ids:
                self._publishing.pop(message_id, None)
            await self._inbox.delete(projection.message_ids, lazily=True)  # reading one again is harmless
        return ProjectionResult(digest=projection.digest)

    @activity.defn(name="compare")
    async def compare(self, job: Job) -> ProjectionResult:
        """Return the job of the ledger if it differs from what the workflow knows."""
        found = await self.load_job(job.job_id)
        same = found.job is not None and (found.job.version, found.job.event_hash) == (job.version, job.event_hash)
        return ProjectionResult() if same else ProjectionResult(ledger=found)

    @activity.defn(name="record_attempt_lease")
    async def record_attempt_lease(self, projection: Projection) -> ProjectionResult:
        """Commit the whole decision as `project` does, if a directive is ready: for a RESULT, that of the next step.

        So the attempt and its lease are known before its directive leaves. Shortcuts then wait here for callbacks.
        """
        run_id = activity.info().workflow_run_id or ""
        self._shortcuts.before_attempts(run_id, projection)
        result = await self._project(projection, _late_ms())
        return await self._shortcuts.after_attempts(run_id, projection, result, self._project)

    @activity.defn(name="publish_to_bus")
    async def publish_to_bus(self, handover: HandoverRequest) -> list[JobMessage]:
        """Publish a directive once; return what the workflow has to know, nothing if the job is paused.

        If publishing was begun before, its outcome is unknown, so it counts as handed over. Raises ApplicationError to
        have it tried later.
        """
        if self._publisher is None:
            raise _retry_later(
                "NoBus", "LUCIUS_BUS_URL is one that services pull from, and was not when this job began"
            )
        handed_over = HandedOver(handover.step_id, handover.attempt_no, handover.lease_id)
        claim = make_claim(handover.job_id, handed_over, self._clock.now())
        if not await self._claimed(claim):
            return [encode_input(handed_over, claim.message_id)]
        try:
            directive, is_held = await self._prepare_publish(handover, handed_over, claim)
        except BaseException:  # also when cancelled: the directive certainly was not published
            await self._release(claim)
            raise
        if directive is None:
            await self._release(claim)
            return [] if is_held else [encode_input(handed_over)]
        try:
            await self._publisher.publish(handover.topic, directive)
        except BusDown as down:
            await self._release(claim)
            raise _retry_later("BusDown", str(down)) from down
        except MessageRefused as refused:
            error = ErrorInfo("HANDOVER_FAILED", str(refused))
            return [
                encode_input(
                    HandOverFailed(handover.step_id, handover.attempt_no, handover.lease_id, error), claim.message_id
                )
            ]
        except OutcomeUnknown:
            log.warning(
                "handover outcome unknown, counts as handed over", job_id=handover.job_id, step_id=handover.step_id
            )
        return [encode_input(handed_over, claim.message_id)]

    async def _prepare_publish(
        self, handover: HandoverRequest, handed_over: HandedOver, claim: InboxMessage
    ) -> tuple[Directive | None, bool]:
        """Return the directive, None if the attempt is fenced or the job paused; and whether the job is paused.

        Reads afresh after the claim: a message is deleted from the inbox after the commit that it led to, so a process
        that inserts it again must see that commit. Raises ApplicationError if the service is at its cap.
        """
        if not await self._has_room(handover, claim):
            raise _retry_later("WindowFull", f"{handover.service} has as many un-ACKed directives as it may have")
        _, step = await self._find(handover)
        if step is None or step.attempt.held:
            return None, step is not None
        decision = await self._engine.evaluate(handover.job_id, (handed_over,), handover.step_id, fresh=True)
        if not isinstance(decision.reply, Applied):
            return None, False
        return await self._directive_loader.load(handover, decision), False

    async def _claimed(self, claim: InboxMessage) -> bool:
        """Return whether to go on: the claim is new, or one of this process that could not be released."""
        new = await inbox_claims.claim(self._inbox, claim, lambda: self._release(claim))
        ours = claim.message_id in self._unreleased
        self._unreleased.discard(claim.message_id)
        return new or ours

    async def _has_room(self, handover: HandoverRequest, claim: InboxMessage) -> bool:
        """Return whether the service is below its cap, counting this process's directives not yet in the ledger.

        Those on their way in other processes are not counted.
        """
        now = self._clock.now()
        self._publishing = {x: way for x, way in self._publishing.items() if way[1] > now - PUBLISHING_TTL_MS}
        waiting = sum(service == handover.service for service, _ in self._publishing.values())
        # Before the await, so that concurrent calls count it
        self._publishing[claim.message_id] = handover.service, now
        return await self._unacked_caps.has_room(handover.service, waiting)

    async def _release(self, claim: InboxMessage) -> None:
        self._publishing.pop(claim.message_id, None)
        self._unreleased.add(claim.message_id)
        try:
            await asyncio.shield(self._inbox.delete([claim.message_id]))
        except LedgerError as error:
            log.warning("could not release a claim, a retry will reuse it", job_id=claim.job_id, reason=str(error))
        else:
            self._unreleased.discard(claim.message_id)

    @activity.defn(name="external_call")
    async def external_call(self, handover: HandoverRequest) -> list[JobMessage]:
        """Make an external call or send a webhook; return its outcome, nothing if the job is paused.

        It is handed over when its host admits it, so that waiting costs no time of the attempt; until then, raises
        ApplicationError. One that was picked up before is not made again, nor one claimed by a process that Temporal
        takes for dead: its lease ends it.
        """
        fenced = [encode_input(HandedOver(handover.step_id, handover.attempt_no, handover.lease_id))]
        view, step = await self._find(handover)
        if view is None or step is None or step.status is not StepStatus.DISPATCHING or step.request is None:
            return fenced
        if step.attempt.held:
            return []
        slot = self._caller.admit(self._caller.host(step.request.url))
        if isinstance(slot, Closed):
            raise _retry_later("HostClosed", "the host admits no call now", self._seconds_until(slot.until))
        picked_up = HandedOver(handover.step_id, handover.attempt_no, handover.lease_id, picked_up=True)
        claim = make_claim(handover.job_id, picked_up, self._clock.now())
        heartbeats = asyncio.create_task(_heartbeat_forever())
        try:
            if not await self._claimed(claim):
                return fenced
            step = await self._picked_up(handover, picked_up, claim)
            if step is None:
                return fenced
            taken = Decision(job=view.job, replies=(Applied(),), protocol=view.protocol, steps=(step,))
            return [encode_input(await self._outcome(taken, step))]
        finally:
            slot.release()
            heartbeats.cancel()

    async def _find(self, handover: HandoverRequest) -> tuple[JobSnapshot | None, Step | None]:
        """Load the job and the step; None for the step if the attempt is no longer current."""
        view = await self._ledger.load(handover.job_id, (handover.step_id,), fresh=True)
        step = view.steps.get(handover.step_id) if view else None
        return view, step if step is not None and step.attempt.lease_id == handover.lease_id else None

    async def _picked_up(self, handover: HandoverRequest, picked_up: HandedOver, claim: InboxMessage) -> Step | None:
        """Signal the pick-up and return the step once the workflow has committed it; None if it decided otherwise.

        The commit deletes the claim, so read the step first: another process may have picked it up before. Raises
        TimeoutError if there is no commit within `PICKUP_TIMEOUT_SECONDS` seconds.
        """
        step, is_ours = None, False
        try:
            _, step = await self._find(handover)
            is_ours = step is not None and step.status is StepStatus.DISPATCHING
            if is_ours:
                message = encode_input(picked_up, claim.message_id)
                await activity.client().get_workflow_handle(handover.job_id).signal("handed_over", [message])
            async with asyncio.timeout(PICKUP_TIMEOUT_SECONDS):
                while step is not None and step.status is StepStatus.DISPATCHING:
                    await asyncio.sleep(0.02)
                    _, step = await self._find(handover)
        finally:
            if step is None or step.status is not StepStatus.PROCESSING or not is_ours:  # no call was made
                await self._release(claim)
        return step if is_ours and step is not None and step.status is StepStatus.PROCESSING else None

    async def _outcome(self, taken: Decision, step: Step) -> Succeeded | Failed:
        try:
            return await self._http_attempt.outcome(taken, step)
        except Exception as error:
            log.exception("a call failed unexpectedly", job_id=step.job_id, step_id=step.step_id)
            return failed_by(step, error)

    def _seconds_until(self, until: Instant | None) -> float:
        seconds = MAX_HOST_WAIT_SECONDS if until is None else (until - self._clock.now()) / 1000
        return max(0.1, seconds) * random.uniform(1, 1.2)


def _late_ms() -> Millis:
    """Return for how long this activity has been scheduled, retries included."""
    waited = datetime.now(UTC) - activity.info().scheduled_time
    return max(0, round(waited / timedelta(milliseconds=1)))


def _retry_later(kind: str, why: str, seconds: float | None = None) -> ApplicationError:
    """Make an error after which Temporal retries the activity; no attempt is used up."""
    delay = None if seconds is None else timedelta(seconds=seconds)
    return ApplicationError(why, type=kind, next_retry_delay=delay, category=ApplicationErrorCategory.BENIGN)


async def _heartbeat_forever() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(HEARTBEAT_INTERVAL.total_seconds())
