"""What workflows have done for them. Each may be repeated: what was done before is found, not done again."""

import asyncio
import random
from datetime import UTC, datetime, timedelta

import structlog
from msgspec.structs import replace
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from lucius.contract import Directive
from lucius.core.decision import Applied, Decision, JobView
from lucius.core.inputs import Cap, Failed, HandedOver, HandOverFailed, Succeeded
from lucius.core.model import ErrorInfo, Instant, Job, Millis, Step, StepStatus
from lucius.core.tools import Tools
from lucius.engine.exchange import Exchange, failed_by
from lucius.engine.temporal import claims
from lucius.engine.temporal.absence import Absence
from lucius.engine.temporal.ahead import Ahead
from lucius.engine.temporal.further import Further, asked_in
from lucius.engine.temporal.parts import Wanted, first_part, next_part
from lucius.engine.temporal.wire import HandOver, Happened, Loaded, Projected, Projection, claim_of, pack
from lucius.ports.bus import Publisher
from lucius.ports.calls import Caller, Closed
from lucius.ports.clock import Clock
from lucius.ports.errors import (
    AlreadyAccepted,
    BusDown,
    LedgerError,
    LimitReached,
    MessageRefused,
    OutcomeUnknown,
    VersionConflict,
)
from lucius.ports.inbox import Inbox, Letter
from lucius.ports.ledger import Ledger, Reader
from lucius.service.dispatch import Dispatcher
from lucius.service.jobs import Jobs

log = structlog.get_logger(__name__)

BEATS_EVERY = timedelta(seconds=10)
LONGEST_WAIT = 5.0
PICKED_UP_WITHIN = 60.0
ON_ITS_WAY_MS = 30_000


class Activities:
    def __init__(
        self,
        *,
        ledger: Ledger,
        reader: Reader,
        inbox: Inbox,
        jobs: Jobs,
        ahead: Ahead,
        dispatcher: Dispatcher,
        publisher: Publisher | None,
        caller: Caller,
        exchange: Exchange,
        clock: Clock,
        tools: Tools,
        absence: Absence,
    ) -> None:
        self._ledger = ledger
        self._reader = reader
        self._inbox = inbox
        self._jobs = jobs
        self._ahead = ahead
        self._dispatcher = dispatcher
        self._publisher = publisher
        self._caller = caller
        self._exchange = exchange
        self._clock = clock
        self._absence = absence
        self._further = Further(ledger, ahead, tools, self._project)
        self._unreleased: set[str] = set()
        self._on_its_way: dict[str, tuple[str, Instant]] = {}

    @activity.defn(name="load_job")
    async def load_job(self, job_id: str) -> Loaded:
        view = await self._reader.job(job_id)
        return Loaded() if view is None else first_part(view)

    @activity.defn(name="load_steps")
    async def load_steps(self, wanted: Wanted) -> Loaded:
        view = await self._ledger.load(wanted.job_id, wanted.step_ids, fresh=True)
        return Loaded(asked=wanted.step_ids) if view is None else next_part(view, wanted.step_ids)

    @activity.defn(name="project")
    async def project(self, projection: Projection) -> Projected:
        """Into the ledger, if it is at the version before. It never goes back."""
        self._ahead.close(projection.job.job_id)
        return await self._project(projection, _late_ms())

    async def _project(self, projection: Projection, late_ms: Millis = 0) -> Projected:
        job, protocol = projection.job, projection.protocol
        if protocol is None:
            view = await self._ledger.load(job.job_id)
            if view is None:
                return Projected(ledger=Loaded())
            protocol = view.protocol
        if projection.doubted and not await self._inbox.letters(projection.letters[:1]):
            return Projected(is_old=True)
        if projection.changes and (until := await self._absence.excuses(projection, late_ms)):
            return Projected(away=until)
        if projection.changes:
            try:
                await self._ledger.commit(projection.decision(protocol))
            except LimitReached as reached:
                return Projected(full=Cap(reached.counter, reached.limit))
            except AlreadyAccepted as accepted:
                if accepted.job_id != job.job_id:
                    return Projected(taken=True)
                return Projected(ledger=await self.load_job(job.job_id))
            except VersionConflict:
                found = await self.load_job(job.job_id)
                if found.job is None or (found.job.version, found.job.event_hash) != (job.version, job.event_hash):
                    return Projected(ledger=found)
        elif (found_instead := await self.compare(job)).ledger is not None:
            return found_instead  # what we take for old news may be news to the ledger, which is ahead
        if projection.letters:
            for letter_id in projection.letters:
                self._on_its_way.pop(letter_id, None)
            await self._inbox.throw_away(projection.letters, lazily=True)  # who reads one again does no harm
        return Projected(decided=projection.decided)

    @activity.defn(name="compare")
    async def compare(self, job: Job) -> Projected:
        """Whether the ledger has what the workflow knows."""
        found = await self.load_job(job.job_id)
        same = found.job is not None and (found.job.version, found.job.event_hash) == (job.version, job.event_hash)
        return Projected() if same else Projected(ledger=found)

    @activity.defn(name="record_attempt_lease")
    async def record_attempt_lease(self, projection: Projection) -> Projected:
        """A projection with attempts that are to be handed over: known before any of them leaves. Services that pull
        them may answer at once."""
        job_id, run_id = projection.job.job_id, activity.info().workflow_run_id or ""
        listens = bool(asked_in(projection)) and not projection.hurries
        if listens:
            self._ahead.open(job_id, run_id, projection.letters)
        found = await self._project(projection, _late_ms())
        if not listens or not found.decided:
            self._ahead.close(job_id)
            return found
        turns, heard = await self._further.listen(run_id, projection)
        return replace(found, turns=turns, heard=heard)

    @activity.defn(name="publish_to_bus")
    async def publish_to_bus(self, what: HandOver) -> list[Happened]:
        """Once: whoever finds that it was begun before can't know how that ended, so it counts as handed over. Nothing
        became of it if the job is paused."""
        if self._publisher is None:
            raise _not_now("NoBus", "LUCIUS_BUS_URL is one that services pull from, and was not when this job began")
        handed_over = HandedOver(what.step_id, what.attempt_no, what.lease_id)
        claim = claim_of(what.job_id, handed_over, self._clock.now())
        if not await self._claimed(claim):
            return [pack(handed_over, claim.letter_id)]
        try:
            directive, held = await self._about_to_publish(what, handed_over, claim)
        except BaseException:  # cut off, too: it surely has not left us
            await self._release(claim)
            raise
        if directive is None:
            await self._release(claim)
            return [] if held else [pack(handed_over)]
        try:
            await self._publisher.publish(what.topic, directive)
        except BusDown as down:
            await self._release(claim)
            raise _not_now("BusDown", str(down)) from down
        except MessageRefused as refused:
            error = ErrorInfo("HANDOVER_FAILED", str(refused))
            return [pack(HandOverFailed(what.step_id, what.attempt_no, what.lease_id, error), claim.letter_id)]
        except OutcomeUnknown:
            log.warning("handover outcome unknown, counts as handed over", job_id=what.job_id, step_id=what.step_id)
        return [pack(handed_over, claim.letter_id)]

    async def _about_to_publish(
        self, what: HandOver, handed_over: HandedOver, claim: Letter
    ) -> tuple[Directive | None, bool]:
        """The directive, unless the attempt is fenced; and whether the job is paused. As things are after the claim: a
        letter is thrown away after the commit that it led to, which whoever puts it in anew must see."""
        if not await self._has_room(what, claim):
            raise _not_now("WindowFull", f"{what.service} has as many un-ACKed directives as it may have")
        _, step = await self._find(what)
        if step is None or step.attempt.held:
            return None, step is not None
        decision = await self._jobs.weigh(what.job_id, (handed_over,), what.step_id, fresh=True)
        if not isinstance(decision.reply, Applied):
            return None, False
        return await self._dispatcher.directive(what, decision), False

    async def _claimed(self, claim: Letter) -> bool:
        """Whether it is ours to publish: also if we could not take back a claim on what surely was not published."""
        new = await claims.claim(self._inbox, claim, lambda: self._release(claim))
        ours = claim.letter_id in self._unreleased
        self._unreleased.discard(claim.letter_id)
        return new or ours

    async def _has_room(self, what: HandOver, claim: Letter) -> bool:
        """With what this process published and has not seen in the ledger yet; not with what others have on its way."""
        now = self._clock.now()
        self._on_its_way = {x: way for x, way in self._on_its_way.items() if way[1] > now - ON_ITS_WAY_MS}
        waiting = sum(service == what.service for service, _ in self._on_its_way.values())
        self._on_its_way[claim.letter_id] = what.service, now  # before anybody else counts
        return await self._dispatcher.has_room(what.service, waiting)

    async def _release(self, claim: Letter) -> None:
        self._on_its_way.pop(claim.letter_id, None)
        self._unreleased.add(claim.letter_id)
        try:
            await asyncio.shield(self._inbox.throw_away([claim.letter_id]))
        except LedgerError as error:
            log.warning("a claim stays until it is tried again", job_id=claim.job_id, reason=str(error))
        else:
            self._unreleased.discard(claim.letter_id)

    @activity.defn(name="external_call")
    async def external_call(self, what: HandOver) -> list[Happened]:
        """A call or a webhook, which is made here: handed over when its host lets us in, so that waiting costs no time
        of the attempt. One that was picked up before is not made again, nor one claimed by somebody whom Temporal takes
        for dead: its lease ends it. Nothing became of it if the job is paused."""
        fenced = [pack(HandedOver(what.step_id, what.attempt_no, what.lease_id))]
        view, step = await self._find(what)
        if view is None or step is None or step.status is not StepStatus.DISPATCHING or step.request is None:
            return fenced
        if step.attempt.held:
            return []
        slot = self._caller.admit(self._caller.host(step.request.url))
        if isinstance(slot, Closed):
            raise _not_now("HostClosed", "the host lets nobody in", self._seconds_until(slot.until))
        picked_up = HandedOver(what.step_id, what.attempt_no, what.lease_id, picked_up=True)
        claim = claim_of(what.job_id, picked_up, self._clock.now())
        beating = asyncio.create_task(_beat())
        try:
            if not await self._claimed(claim):
                return fenced
            step = await self._picked_up(what, picked_up, claim)
            if step is None:
                return fenced
            taken = Decision(job=view.job, replies=(Applied(),), protocol=view.protocol, steps=(step,))
            return [pack(await self._outcome(taken, step))]
        finally:
            slot.release()
            beating.cancel()

    async def _find(self, what: HandOver) -> tuple[JobView | None, Step | None]:
        """The step, if the attempt is current."""
        view = await self._ledger.load(what.job_id, (what.step_id,), fresh=True)
        step = view.steps.get(what.step_id) if view else None
        return view, step if step is not None and step.attempt.lease_id == what.lease_id else None

    async def _picked_up(self, what: HandOver, picked_up: HandedOver, claim: Letter) -> Step | None:
        """As the workflow has written it down; None if it has other plans. Its claim is thrown away with that, so who
        claims it looks again first: somebody else may have picked it up."""
        step, is_ours = None, False
        try:
            _, step = await self._find(what)
            is_ours = step is not None and step.status is StepStatus.DISPATCHING
            if is_ours:
                said = pack(picked_up, claim.letter_id)
                await activity.client().get_workflow_handle(what.job_id).signal("handed_over", [said])
            async with asyncio.timeout(PICKED_UP_WITHIN):
                while step is not None and step.status is StepStatus.DISPATCHING:
                    await asyncio.sleep(0.02)
                    _, step = await self._find(what)
        finally:
            if step is None or step.status is not StepStatus.PROCESSING or not is_ours:  # it surely was not made
                await self._release(claim)
        return step if is_ours and step is not None and step.status is StepStatus.PROCESSING else None

    async def _outcome(self, taken: Decision, step: Step) -> Succeeded | Failed:
        try:
            return await self._exchange.outcome(taken, step)
        except Exception as error:
            log.exception("a call failed unexpectedly", job_id=step.job_id, step_id=step.step_id)
            return failed_by(step, error)

    def _seconds_until(self, until: Instant | None) -> float:
        seconds = LONGEST_WAIT if until is None else (until - self._clock.now()) / 1000
        return max(0.1, seconds) * random.uniform(1, 1.2)


def _late_ms() -> Millis:
    """For how long Temporal has been having it tried."""
    waited = datetime.now(UTC) - activity.info().scheduled_time
    return max(0, round(waited / timedelta(milliseconds=1)))


def _not_now(kind: str, why: str, seconds: float | None = None) -> ApplicationError:
    """Temporal tries again, and nothing was spent."""
    delay = None if seconds is None else timedelta(seconds=seconds)
    return ApplicationError(why, type=kind, next_retry_delay=delay, category=ApplicationErrorCategory.BENIGN)


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(BEATS_EVERY.total_seconds())
