"""From the outbox to the outside world: the engine is the service behind `external_call` and `notify`.

A host that is slowed or has its fill keeps its rows waiting, PENDING and with nothing burned, while those of other
hosts go past them. Replicas share what there is: none takes more than it can soon use.
"""

import asyncio
from collections import deque
from collections.abc import Callable

import structlog

from lucius.core.decision import Applied, Decision
from lucius.core.inputs import HandedOver, Succeeded
from lucius.core.model import Instant, OutboxRow, Step, StepStatus
from lucius.core.protocol import HTTP_SERVICE
from lucius.engine.exchange import Exchange, Outcome, failed_by
from lucius.engine.window import Waiting, Window
from lucius.ports.calls import Caller, Closed, Slot
from lucius.ports.clock import Clock
from lucius.ports.errors import LedgerDown, LedgerError
from lucius.ports.ledger import Ledger
from lucius.service.dispatch import Dispatcher
from lucius.service.errors import RejectCode, Rejected
from lucius.service.hub import Hub
from lucius.service.jobs import Jobs
from lucius.service.pulls import Pull
from lucius.service.uncut import Uncut

log = structlog.get_logger(__name__)

GRACE = 10.0
FIRST_BACKOFF, MAX_BACKOFF = 0.1, 5.0
HOLD_MS = 60_000  # what waits longer for its host is taken anew
DOUBT_MS = 15_000  # for as long it is worth finding out what became of a commit
SECONDS_PER_PASSED_ROW = 1e-5  # the outbox is read past every one: the more, the less often
MOST_ASIDE = 500


class CallRunner:
    def __init__(
        self,
        *,
        ledger: Ledger,
        jobs: Jobs,
        dispatcher: Dispatcher,
        caller: Caller,
        exchange: Exchange,
        hub: Hub,
        clock: Clock,
        retry_interval: float,
        parallel: int = 64,
        on_failure: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._ledger = ledger
        self._jobs = jobs
        self._dispatcher = dispatcher
        self._caller = caller
        self._exchange = exchange
        self._hub = hub
        self._clock = clock
        self._retry_interval = retry_interval
        self._parallel = parallel
        self._on_failure = on_failure
        self._window = Window(caller, parallel, HOLD_MS, round(retry_interval * 1000))
        self._more = False
        self._aside: deque[tuple[Instant, OutboxRow]] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._uncut = Uncut()
        self._look = asyncio.Event()
        self._opens_at: Instant | None = None
        self._stopping = False
        self._failure: Exception | None = None

    async def turn(self) -> None:
        """Start every call that may start, then wait for more."""
        self._raise_failure()
        self._look.clear()
        seen = self._hub.pulls.arrivals(HTTP_SERVICE)
        if not await self.start_ready():
            await self._wait_for_more(seen)

    async def stop(self, grace: float = GRACE) -> None:
        """Let running calls end, for a while. One that is cut off ends by its lease, and is tried again like any."""
        self._stopping = True
        if under_way := {*self._running, *self._uncut.tasks}:
            await asyncio.wait(under_way, timeout=grace)
        left = {*self._running, *self._uncut.tasks}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._give_back_all()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def start_ready(self) -> bool:
        """Whether there is more to look at right away."""
        await self._bring_back()
        self._start_waiting()
        await self._dispatcher.put_back(self._window.let_go(self._clock.now(), self._has_places()))
        limit = self._window.room if len(self._aside) < MOST_ASIDE else 0
        rows = await self._uncut.run(self._take_rows(limit)) if limit else []
        self._more = len(rows) == limit
        self._start_waiting()
        return self._has_use_for_more()

    async def _take_rows(self, limit: int) -> list[OutboxRow]:
        passed = self._window.passed
        await asyncio.sleep(len(passed) * SECONDS_PER_PASSED_ROW)
        taken_at = self._clock.now()
        rows = await self._dispatcher.take(HTTP_SERVICE, limit, hold_ms=HOLD_MS, passing=passed)
        hosts = await asyncio.gather(*(self._host(row) for row in rows), return_exceptions=True)
        for row, host in zip(rows, hosts, strict=True):
            self._enqueue(row, taken_at, host)
        return rows

    def _has_places(self) -> bool:
        return len(self._running) < self._parallel

    def _has_use_for_more(self) -> bool:
        """What is left waiting while there are places has a host that lets nobody in: others may be behind it."""
        if not self._more or len(self._aside) >= MOST_ASIDE:
            return False
        return self._window.is_low or (self._has_places() and self._window.may_pass(self._clock.now()))

    async def _host(self, row: OutboxRow) -> str | None:
        """Where the attempt's request goes; None if it is no longer wanted."""
        view = await self._ledger.load(row.job_id, (row.step_id,))
        step = view.steps.get(row.step_id) if view else None
        if step is None or step.request is None or step.attempt.lease_id != row.lease_id:
            return None
        return self._caller.host(step.request.url)

    def _enqueue(self, row: OutboxRow, taken_at: Instant, host: str | BaseException | None) -> None:
        """One row that can't be read must not keep the others waiting: the turn fails only after they are started."""
        if isinstance(host, str):
            self._window.put(Waiting(host, row, taken_at))
            return
        self._set_aside(row)
        if isinstance(host, Exception):
            self._failure = host
            self._look.set()

    def _start_waiting(self) -> None:
        """From every host in turn, as many as it may have now."""
        self._opens_at = None
        waiting = self._window.queues
        for host in list(waiting):
            if not self._has_places():
                return
            queue = waiting[host]
            while queue and self._has_places():
                admitted = self._caller.admit(host)
                if isinstance(admitted, Closed):
                    self._note_opening(admitted.until)
                    break
                self._start(queue.popleft(), admitted)
            if not queue:
                del waiting[host]
            else:  # behind the others the next time, should there be more of them than may run
                waiting[host] = waiting.pop(host)

    def _note_opening(self, until: Instant | None) -> None:
        if until is not None:
            self._opens_at = until if self._opens_at is None else min(until, self._opens_at)

    def _start(self, one: Waiting, slot: Slot) -> None:
        task = asyncio.create_task(self._run(one.row), name=f"lucius-call-{one.row.outbox_id}")
        self._running.add(task)
        task.add_done_callback(lambda done: self._ended(done, one, slot))

    def _ended(self, done: asyncio.Task[None], one: Waiting, slot: Slot) -> None:
        """Its place goes to the next one at once; the turn is woken only for what it alone can do."""
        slot.release()
        self._running.discard(done)
        error = None if done.cancelled() else done.exception()
        if isinstance(error, Exception):
            self._failure = error
            self._set_aside(one.row)
        opened_at = self._opens_at
        if not self._stopping:
            self._start_waiting()
        more = self._has_use_for_more() or self._window.is_short_of(one.host)
        if more or self._failure is not None or self._opens_at != opened_at:
            self._look.set()

    async def _run(self, row: OutboxRow) -> None:
        """Hand-over and pick-up in one commit, so that a call that was started is never taken for one that was not."""
        taken = await self._take(row)
        if taken is None:
            self._set_aside(row)
            return
        self._dispatcher.let_go([row])
        step = next(step for step in taken.steps if step.step_id == row.step_id)
        if step.attempt.lease_id != row.lease_id or step.status is not StepStatus.PROCESSING:
            return  # the same commit moved the job on: nobody waits for the answer
        outcome = await self._outcome(taken, step)
        log.info("call made", job_id=row.job_id, step_id=row.step_id, attempt_no=row.attempt_no, **_told(outcome))
        await self._report(row, outcome, step.attempt.lease_expires_at or 0)

    async def _outcome(self, taken: Decision, step: Step) -> Outcome:
        """Always one: an attempt that was picked up and never heard of again would wait for its lease to run out."""
        try:
            return await self._exchange.outcome(taken, step)
        except Exception as error:
            self._on_failure("calls")
            log.exception("a call failed unexpectedly", job_id=step.job_id, step_id=step.step_id)
            return failed_by(step, error)

    async def _take(self, row: OutboxRow) -> Decision | None:
        """A commit of which nobody knows whether it was made is looked up: if it was, the call is ours to make."""
        began_at, backoff = self._clock.now(), FIRST_BACKOFF
        try:
            return await self._hand_over(row)
        except LedgerDown as down:
            log.info("whether a call was taken is looked up", job_id=row.job_id, reason=str(down))
        ended_at = self._clock.now()
        while True:
            await asyncio.sleep(backoff)
            try:
                return await self._taken_before(row, began_at, ended_at) or await self._hand_over(row)
            except LedgerDown:
                ended_at = self._clock.now()
                if ended_at - began_at >= DOUBT_MS:
                    raise
                backoff = min(backoff * 2, MAX_BACKOFF)

    async def _hand_over(self, row: OutboxRow) -> Decision | None:
        taken = HandedOver(row.step_id, row.attempt_no, row.lease_id, picked_up=True)
        try:
            decision = await self._jobs.apply(row.job_id, (taken,), row.step_id)
        except Rejected as rejected:
            if rejected.code is not RejectCode.JOB_NOT_FOUND:
                raise
            return None
        return decision if isinstance(decision.reply, Applied) else None

    async def _taken_before(self, row: OutboxRow, began_at: Instant, ended_at: Instant) -> Decision | None:
        """Another replica may have taken it once our hold was over: what must not be made twice is left alone."""
        view = await self._ledger.load(row.job_id, (row.step_id,), fresh=True)
        step = view.steps.get(row.step_id) if view else None
        if view is None or step is None or step.attempt.lease_id != row.lease_id:
            return None
        picked_up_at = step.attempt.picked_up_at
        if picked_up_at is None or not began_at <= picked_up_at <= ended_at:
            return None
        spec = view.protocol.step(row.step_id)
        if spec is None or spec.retry_safety == "NOT_SAFE_TO_RETRY":
            return None
        return Decision(job=view.job, replies=(Applied(),), protocol=view.protocol, steps=(step,))

    async def _report(self, row: OutboxRow, outcome: Outcome, lease_expires_at: Instant) -> None:
        """The call can't be unmade, so a ledger in trouble is asked again for as long as the answer would count."""
        backoff = FIRST_BACKOFF
        while True:
            try:
                await self._jobs.apply(row.job_id, (outcome,), row.step_id)
            except (LedgerError, Rejected) as error:
                if self._clock.now() + backoff * 1000 >= lease_expires_at:
                    raise
                log.warning("could not record a call, will try again", job_id=row.job_id, reason=str(error))
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, MAX_BACKOFF)
            else:
                return

    def _set_aside(self, row: OutboxRow) -> None:
        """Not to be looked at again at once: nothing would have changed."""
        self._aside.append((self._clock.now() + round(self._retry_interval * 1000), row))

    async def _bring_back(self) -> None:
        now, rows = self._clock.now(), list[OutboxRow]()
        while self._aside and self._aside[0][0] <= now:
            rows.append(self._aside.popleft()[1])
        await self._dispatcher.put_back(rows)

    async def _give_back_all(self) -> None:
        """From now on others may have them. They are as ready as before."""
        rows = self._window.clear() + [row for _, row in self._aside]
        self._aside.clear()
        await self._dispatcher.put_back(rows)

    async def _wait_for_more(self, seen: int) -> None:
        """Until a row comes, a host opens, something went wrong, or it is time to look all the same."""
        seconds = self._retry_interval * self._hub.stretch()
        if self._opens_at is not None:
            seconds = min(seconds, max(0.0, (self._opens_at - self._clock.now()) / 1000))
        look = asyncio.ensure_future(self._look.wait())
        try:
            if not await self._hub.pulls.wait(HTTP_SERVICE, Pull(gone=look), seconds, seen) and self._hub.closed:
                await look
        finally:
            look.cancel()


def _told(outcome: Outcome) -> dict[str, str]:
    """What a log may know of it."""
    if isinstance(outcome, Succeeded):
        return {"outcome": "SUCCEEDED"}
    return {"outcome": "FAILED", "failure_class": str(outcome.failure_class), "error_code": outcome.error.code}
