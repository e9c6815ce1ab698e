"""What workflows have done for them. Each may be repeated: what was done before is found, not done again."""

import asyncio
import random

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError

from lucius.core.decision import Applied, Decision
from lucius.core.inputs import Cap, HandedOver, HandOverFailed
from lucius.core.model import ErrorInfo, Job, StepStatus
from lucius.engine.exchange import Exchange, failed_by
from lucius.engine.temporal.wire import HandOver, Happened, Loaded, Projected, Projection, letter_of, pack
from lucius.ports.bus import Publisher
from lucius.ports.calls import Caller, Closed, Slot
from lucius.ports.clock import Clock
from lucius.ports.errors import AlreadyAccepted, BusDown, LimitReached, MessageRefused, OutcomeUnknown, VersionConflict
from lucius.ports.inbox import Inbox
from lucius.ports.ledger import Ledger, Reader
from lucius.service.dispatch import Dispatcher
from lucius.service.jobs import Jobs

log = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 10.0
LONGEST_WAIT = 5.0


class Activities:
    def __init__(
        self,
        *,
        ledger: Ledger,
        reader: Reader,
        inbox: Inbox,
        jobs: Jobs,
        dispatcher: Dispatcher,
        publisher: Publisher | None,
        caller: Caller,
        exchange: Exchange,
        clock: Clock,
    ) -> None:
        self._ledger = ledger
        self._reader = reader
        self._inbox = inbox
        self._jobs = jobs
        self._dispatcher = dispatcher
        self._publisher = publisher
        self._caller = caller
        self._exchange = exchange
        self._clock = clock

    @activity.defn(name="load_job")
    async def load_job(self, job_id: str) -> Loaded:
        view = await self._reader.job(job_id)
        return Loaded() if view is None else Loaded(view.job, view.protocol, list(view.steps.values()))

    @activity.defn(name="project")
    async def project(self, projection: Projection) -> Projected:
        """Into the ledger, if it is at the version before. It never goes back."""
        job, protocol = projection.job, projection.protocol
        if protocol is None:
            view = await self._ledger.load(job.job_id)
            if view is None:
                return Projected(ledger=Loaded())
            protocol = view.protocol
        if projection.changes:
            try:
                await self._ledger.commit(projection.decision(protocol))
            except LimitReached as reached:
                return Projected(full=Cap(reached.counter, reached.limit))
            except (VersionConflict, AlreadyAccepted):
                found = await self.load_job(job.job_id)
                if found.job is None or (found.job.version, found.job.event_hash) != (job.version, job.event_hash):
                    return Projected(ledger=found)
        elif (found_instead := await self.compare(job)).ledger is not None:
            return found_instead  # what we take for old news may be news to the ledger, which is ahead
        if projection.letters:
            await self._inbox.throw_away(projection.letters)
        return Projected(decided=projection.decided)

    @activity.defn(name="compare")
    async def compare(self, job: Job) -> Projected:
        """Whether the ledger has what the workflow knows."""
        found = await self.load_job(job.job_id)
        same = found.job is not None and (found.job.version, found.job.event_hash) == (job.version, job.event_hash)
        return Projected() if same else Projected(ledger=found)

    @activity.defn(name="record_attempt_lease")
    async def record_attempt_lease(self, projection: Projection) -> Projected:
        """A projection with attempts that are to be handed over: known before any of them leaves."""
        return await self.project(projection)

    @activity.defn(name="publish_to_bus")
    async def publish_to_bus(self, what: HandOver) -> Happened:
        """Once: whoever finds that it was begun before can't know how that ended, so it counts as handed over."""
        assert self._publisher is not None, "a bus that services pull from is not published to"
        handed_over = HandedOver(what.step_id, what.attempt_no, what.lease_id)
        decision = await self._jobs.weigh(what.job_id, (handed_over,), what.step_id, fresh=True)
        if not isinstance(decision.reply, Applied):
            return pack(handed_over)  # fenced meanwhile
        if not await self._dispatcher.has_room(what.service):
            raise ApplicationError(f"{what.service} has as many un-ACKed directives as it may have", type="WindowFull")
        claim = letter_of(what.job_id, [handed_over], self._clock.now())
        if not (await self._inbox.put([claim]))[0]:
            return pack(handed_over, claim.letter_id)
        directive = await self._dispatcher.directive(what, decision)
        if directive is None:
            return pack(handed_over, claim.letter_id)
        try:
            await self._publisher.publish(what.topic, directive)
        except BusDown as down:
            await self._inbox.throw_away([claim.letter_id])
            raise ApplicationError(str(down), type="BusDown") from down
        except MessageRefused as refused:
            error = ErrorInfo("HANDOVER_FAILED", str(refused))
            return pack(HandOverFailed(what.step_id, what.attempt_no, what.lease_id, error), claim.letter_id)
        except OutcomeUnknown:
            log.warning("handover outcome unknown, counts as handed over", job_id=what.job_id, step_id=what.step_id)
        return pack(handed_over, claim.letter_id)

    @activity.defn(name="external_call")
    async def external_call(self, what: HandOver) -> Happened:
        """A call or a webhook, which is made here."""
        view = await self._ledger.load(what.job_id, (what.step_id,), fresh=True)
        step = view.steps.get(what.step_id) if view else None
        if view is None or step is None or step.attempt.lease_id != what.lease_id:
            return pack(HandedOver(what.step_id, what.attempt_no, what.lease_id))  # fenced: nobody waits for it
        if step.status is not StepStatus.PROCESSING or step.request is None:
            return pack(HandedOver(what.step_id, what.attempt_no, what.lease_id))
        beating = asyncio.create_task(_beat())
        try:
            slot = await self._admitted(self._caller.host(step.request.url))
            try:
                taken = Decision(job=view.job, replies=(Applied(),), protocol=view.protocol, steps=(step,))
                outcome = await self._exchange.outcome(taken, step)
            except Exception as error:
                log.exception("a call failed unexpectedly", job_id=step.job_id, step_id=step.step_id)
                outcome = failed_by(step, error)
            finally:
                slot.release()
        finally:
            beating.cancel()
        return pack(outcome)

    async def _admitted(self, host: str) -> Slot:
        while isinstance(admitted := self._caller.admit(host), Closed):
            until = admitted.until
            seconds = LONGEST_WAIT if until is None else max(0.05, (until - self._clock.now()) / 1000)
            await asyncio.sleep(min(seconds, LONGEST_WAIT) * random.uniform(0.1, 1))
        return admitted


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(HEARTBEAT_SECONDS)
