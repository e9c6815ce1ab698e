"""Tells clients that asked for it when their jobs have ended.

A receiver that is slow or has its fill keeps its notices waiting, and those of other hosts go past them. Replicas share
what there is: none takes more than it can soon use.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine

import structlog

from lucius.core.decision import JobView
from lucius.core.inputs import NoticeTold
from lucius.core.model import ErrorInfo, Instant, OutboxRow
from lucius.core.protocol import WEBHOOK_SERVICE
from lucius.engine.window import Waiting, Window
from lucius.ports.calls import Answer, Caller, Closed, Outgoing, Slot
from lucius.ports.clock import Clock
from lucius.ports.errors import CallFailed, CallRefused, LedgerError
from lucius.ports.ledger import Ledger, Outbox, PendingQuery
from lucius.service.hub import Hub
from lucius.service.jobs import Jobs
from lucius.service.notices import notice_body, notice_id
from lucius.service.pulls import Pull
from lucius.service.uncut import Uncut

log = structlog.get_logger(__name__)

BATCH = 50
TIMEOUT_MS = 15_000
WAIT_MS = 2 * TIMEOUT_MS  # what waits longer for its receiver is taken anew
HOLD_MS = 300_000  # nobody else sends what we may be sending, or have sent to a ledger that is slow to take it
GRACE = 10.0
FIRST_BACKOFF, MAX_BACKOFF = 0.1, 5.0
SECRET = "default"


class NoticeRunner:
    def __init__(
        self,
        *,
        ledger: Ledger,
        outbox: Outbox,
        jobs: Jobs,
        caller: Caller,
        hub: Hub,
        clock: Clock,
        interval: float,
        on_failure: Callable[[str], None],
        parallel: int = 256,
    ) -> None:
        self._ledger = ledger
        self._outbox = outbox
        self._jobs = jobs
        self._caller = caller
        self._hub = hub
        self._clock = clock
        self._interval = interval
        self._on_failure = on_failure
        self._parallel = parallel
        self._held: set[str] = set()  # rows that wait or run here: none is taken twice
        self._window = Window(caller, parallel, WAIT_MS, round(interval * 1000))
        self._look = asyncio.Event()
        self._more = False
        self._running: set[asyncio.Task[None]] = set()
        self._uncut = Uncut()
        self._stopping = False

    async def turn(self) -> None:
        """Start every notice that may start, then wait for more."""
        self._look.clear()
        seen = self._hub.pulls.arrivals(WEBHOOK_SERVICE)
        if not await self.start_due():
            await self._wait_for_more(seen)
        if self._hub.closed:
            await asyncio.sleep(self._interval)

    async def _wait_for_more(self, seen: int) -> None:
        look = asyncio.ensure_future(self._look.wait())
        try:
            await self._hub.pulls.wait(WEBHOOK_SERVICE, Pull(gone=look), self._interval * self._hub.stretch(), seen)
        finally:
            look.cancel()

    async def stop(self, grace: float = GRACE) -> None:
        """Let running notices end, for a while. One that is cut off is sent again by whoever starts next."""
        self._stopping = True
        if under_way := {*self._running, *self._uncut.tasks}:
            await asyncio.wait(under_way, timeout=grace)
        left = {*self._running, *self._uncut.tasks}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._give_back(self._window.clear())

    async def start_due(self) -> bool:
        """Whether there is more to look at right away."""
        self._start_waiting()
        await self._give_back(self._window.let_go(self._clock.now(), self._has_places()))
        limit = min(BATCH, self._window.room, self._window.size + self._parallel - len(self._held))
        rows = await self._uncut.run(self._take(limit)) if limit > 0 else []
        self._more = len(rows) >= limit
        self._start_waiting()
        return limit > 0 and self._has_use_for_more()

    async def _take(self, limit: int) -> list[OutboxRow]:
        now = self._clock.now()
        known = self._window.passed | self._held
        query = PendingQuery(limit=limit, now=now, service=WEBHOOK_SERVICE, except_rows=known, hold_ms=HOLD_MS)
        rows = [row for row in await self._outbox.pending(query) if row.outbox_id not in self._held]
        for row in rows:
            await self._enqueue(row, now)
        return rows

    async def _enqueue(self, row: OutboxRow, taken_at: Instant) -> None:
        """One row that can't be read must not keep the others waiting."""
        self._held.add(row.outbox_id)
        try:
            view = await self._ledger.load(row.job_id)
        except LedgerError:
            self._start(self._set_aside(row), row)
            return
        url = view.job.command.callback_urls.get("job", "") if view else ""
        self._window.put(Waiting(self._caller.host(url), row, taken_at, url))

    def _has_places(self) -> bool:
        return len(self._running) < self._parallel

    def _has_use_for_more(self) -> bool:
        """What is left waiting while there are places has a host that has its fill: others may be behind it."""
        if not self._more:
            return False
        return self._window.is_low or (self._has_places() and self._window.may_pass(self._clock.now()))

    def _start_waiting(self) -> None:
        """From every host in turn, as many as it may have now."""
        now, waiting = self._clock.now(), self._window.queues
        for host in list(waiting):
            queue = waiting.pop(host)
            while queue and self._has_places() and not self._window.is_stale(queue[0], now):
                admitted = self._caller.admit(host)
                if isinstance(admitted, Closed) and admitted.until is None:
                    break
                one = queue.popleft()
                self._start(self._run(one, admitted), one.row, host)
            if queue:  # behind the others the next time, should there be more of them than may run
                waiting[host] = queue

    async def _give_back(self, rows: Collection[OutboxRow]) -> None:
        """From now on others may have them. They are as due as before."""
        if not rows:
            return
        self._held.difference_update(row.outbox_id for row in rows)
        try:
            await self._outbox.put_back(rows)
        except LedgerError as error:
            log.warning("notices stay held until their time is over", rows=len(rows), reason=str(error))

    def _start(self, work: Coroutine[None, None, None], row: OutboxRow, host: str = "") -> None:
        task = asyncio.create_task(work, name=f"lucius-notice-{row.outbox_id}")
        self._running.add(task)
        task.add_done_callback(lambda done: self._ended(done, row, host))

    def _ended(self, done: asyncio.Task[None], row: OutboxRow, host: str) -> None:
        """Its place goes to the next one at once; the turn is woken for what it alone can do."""
        self._running.discard(done)
        self._held.discard(row.outbox_id)
        if not self._stopping:
            self._start_waiting()
        if self._has_use_for_more() or self._window.is_short_of(host):
            self._look.set()

    async def _run(self, due: Waiting, admitted: Slot | Closed) -> None:
        """What goes wrong with one notice is that one's alone."""
        try:
            if isinstance(admitted, Closed):
                told = NoticeTold(row=due.row, put_off_until=admitted.until)
            else:
                told = await self._told(due, admitted)
            await self._record(told)
        except Exception:
            log.exception("what became of a job notice could not be recorded", job_id=due.row.job_id)
            await self._set_aside(due.row)

    async def _set_aside(self, row: OutboxRow) -> None:
        """Not to be looked at again at once: nothing would have changed."""
        self._on_failure("notices")
        log.warning("a job notice is set aside", job_id=row.job_id)
        await asyncio.sleep(self._interval)

    async def _told(self, due: Waiting, slot: Slot) -> NoticeTold:
        row = due.row
        try:
            return await self._sent(row, due.url)
        except CallRefused as refused:
            log.warning("a job notice is refused by policy", job_id=row.job_id, reason=str(refused))
            return NoticeTold(row=row, error=ErrorInfo("CALL_REFUSED", str(refused)), final=True)
        except CallFailed as failed:
            return NoticeTold(row=row, error=ErrorInfo("CALL_FAILED", str(failed)))
        except Exception as error:
            self._on_failure("notices")
            log.exception("a job notice failed unexpectedly", job_id=row.job_id)
            return NoticeTold(row=row, error=ErrorInfo("CALL_FAILED", f"the call failed ({type(error).__name__})"))
        finally:
            slot.release()

    async def _sent(self, row: OutboxRow, url: str) -> NoticeTold:
        """Raises CallRefused or CallFailed."""
        view, run_no = await self._view(row.job_id), int(row.lease_id)
        call = Outgoing(
            method="POST",
            url=url,
            body=notice_body(view, run_no),
            timeout_ms=TIMEOUT_MS,
            idempotency_key=notice_id(row.job_id, run_no),
            from_client=True,
            sign_with=SECRET,
            traceparent=view.job.command.traceparent,
        )
        return _by_status(row, await self._caller.send(call))

    async def _view(self, job_id: str) -> JobView:
        """The job, and the step whose result is its output."""
        view = await self._ledger.load(job_id, fresh=True)
        if view is not None and view.job.output_step_id:
            view = await self._ledger.load(job_id, (view.job.output_step_id,), fresh=True)
        assert view is not None, "a job that has a row is there"
        return view

    async def _record(self, told: NoticeTold) -> None:
        """A notice can't be unsent, so a ledger in trouble is asked until it has taken this: nobody is told twice."""
        backoff = FIRST_BACKOFF
        while True:
            try:
                await self._jobs.apply(told.row.job_id, (told,))
            except LedgerError as error:
                log.warning("could not record a notice, will try again", job_id=told.row.job_id, reason=str(error))
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, MAX_BACKOFF)
            else:
                return


def _by_status(row: OutboxRow, answer: Answer) -> NoticeTold:
    if 200 <= answer.status < 300:
        return NoticeTold(row=row)
    error = ErrorInfo(f"HTTP_{answer.status}", "the receiver did not take the notice")
    return NoticeTold(row=row, error=error, retry_after_ms=answer.retry_after_ms, final=answer.status == 410)
