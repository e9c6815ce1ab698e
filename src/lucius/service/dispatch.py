"""Hand-over: from a PENDING outbox row to a directive that has left us.

A pull commits the hand-over and then answers; the relay claims, publishes and reports. Both respect the cap on a
service's un-ACKed directives, and over it a row simply stays PENDING.
"""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

import structlog
from msgspec.structs import replace

from lucius.contract import Directive
from lucius.core.decide import unacked_counter
from lucius.core.decision import Applied, Decision
from lucius.core.inputs import Cap, HandedOver, HandOverFailed, HandOverReleased, HandOverStarted, Input, Taker
from lucius.core.model import ErrorInfo, Millis, OutboxRow
from lucius.core.protocol import OF_THE_ENGINE
from lucius.ports.bus import Publisher
from lucius.ports.clock import Clock
from lucius.ports.errors import (
    BusDown,
    ForeignEngine,
    LedgerAway,
    LedgerDown,
    LedgerError,
    LimitReached,
    MessageRefused,
    OutcomeUnknown,
)
from lucius.ports.ledger import Ledger, Outbox, PendingQuery, Reader
from lucius.ports.peers import Wake
from lucius.service.backoff import PutOff
from lucius.service.directives import DirectiveWriter, seen_from
from lucius.service.doubts import Doubts
from lucius.service.errors import RejectCode, Rejected
from lucius.service.given import GivenDirectives
from lucius.service.hub import Hub
from lucius.service.jobs import Jobs
from lucius.service.pulls import Promise, Pull
from lucius.service.ramp import Pace

log = structlog.get_logger(__name__)

HOLD_MS: Millis = 15_000  # more than a hand-over takes; whoever dies with rows in hand keeps them from others so long
MOST_AT_ONCE = 1_024
MOST_UNCLAIMED = 1_000
ASIDE_SECONDS = 8.0  # with its jitter less than HOLD_MS: nobody else tries what we have set aside for the first time
MOST_ASIDE = 2_000
SETTLED_WITHIN = 2.0
"""So soon, as a rule, does an engine of its own settle the row of what was given out."""
MOST_LOOKS = 100


class Attempted(Protocol):
    """What names an attempt."""

    @property
    def job_id(self) -> str: ...
    @property
    def step_id(self) -> str: ...
    @property
    def lease_id(self) -> str: ...


class Dispatcher:
    def __init__(
        self,
        *,
        ledger: Ledger,
        outbox: Outbox,
        reader: Reader,
        jobs: Jobs,
        hub: Hub,
        writer: DirectiveWriter,
        clock: Clock,
        max_unacked: int,
        jitter: Callable[[], float] = random.random,
        on_failure: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._ledger = ledger
        self._outbox = outbox
        self._reader = reader
        self._jobs = jobs
        self._hub = hub
        self._writer = writer
        self._clock = clock
        self._max_unacked = max_unacked
        self._taken: dict[str, set[str]] = {}
        self._capped: dict[str, asyncio.Lock] = {}
        self._on_failure = on_failure
        self._unclaimed: dict[str, OutboxRow] = {}
        self._put_off = PutOff(clock, jitter, most_names=MOST_UNCLAIMED)
        self._aside: set[str] = set()
        """Rows of jobs that can't be decided about, or that were given out before. Put back at once they would be the
        next to be taken, for ever."""
        self._in_vain = PutOff(clock, jitter, first=ASIDE_SECONDS, most=10 * ASIDE_SECONDS, most_names=MOST_ASIDE)
        self._unsettled: set[str] = set()
        """Rows of what was given out: PENDING still, and wanted by nobody."""
        self._returning: set[asyncio.Task[None]] = set()
        self._jitter = jitter
        self._pace = Pace(MOST_AT_ONCE, jitter, lambda: asyncio.get_running_loop().time())
        self._doubts = Doubts(ledger, hub.pulls, jitter)
        self._given = GivenDirectives(ledger, hub.pulls, clock, self.directive, on_failure)
        self._me = secrets.token_hex(6)

    async def pull(
        self,
        service: str,
        limit: int,
        wait_seconds: float,
        lanes: frozenset[int] | None = None,
        gone: Callable[[], asyncio.Future[Any]] | None = None,
    ) -> list[Directive]:
        """Directives for a service, handed over durably before they are answered. Waits for the first one.

        `gone` makes a future that is done once the puller hung up: handing over to nobody would cost an attempt.
        """
        seen = self._hub.pulls.arrivals(service)
        directives = await self._hand_out(service, limit, lanes)
        if directives or wait_seconds <= 0:
            return directives
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        hung_up = gone() if gone else None
        try:
            while not directives and (remaining := deadline - loop.time()) > 0:
                paced = self._pace.wait()
                waiting = Pull(lanes, limit, hung_up)
                woken = await self._hub.pulls.wait(service, waiting, min(remaining, paced or remaining), seen)
                if not woken and (not paced or self._hub.closed or (hung_up is not None and hung_up.done())):
                    break
                seen = self._hub.pulls.arrivals(service)
                if waiting.given:
                    directives = await self._given.directives(waiting.given, hung_up)
                else:
                    directives = await self._hand_out(service, limit, lanes)
        finally:
            if hung_up is not None:
                hung_up.cancel()
        return directives

    def taker(self, service: str, tenant_id: str) -> Taker | None:
        """Nobody, while there is a reason to give out few: then rows wait in the outbox, where all take their turn."""
        if self.is_capped(service) or not self._pace.is_full:
            return None
        room = self._hub.pulls.room(service, tenant_id)
        return Taker(room, self._caps(service)) if room else None

    def promise(self, decision: Decision) -> list[Promise]:
        return self._hub.pulls.promise(decision.given)

    def freed(self, counter: str) -> None:
        self._hub.freed(counter)

    def doubt(self, decision: Decision) -> None:
        self._doubts.note(decision)

    async def _hand_out(self, service: str, limit: int, lanes: frozenset[int] | None) -> list[Directive]:
        if directives := await self._given.kept(service, limit, lanes):
            return directives
        if not self.is_capped(service):
            return await self._hand_over(service, limit, lanes)
        async with self._capped[service]:  # in turn, so that nobody tries for the room that another has found
            room = await self._room(service)
            return await self._hand_over(service, min(limit, room), lanes) if room else []

    async def _hand_over(self, service: str, limit: int, lanes: frozenset[int] | None) -> list[Directive]:
        """Behind rows that were given out before, there may be others."""
        for _ in range(MOST_LOOKS):
            rows, directives = await self._hand_over_first(service, limit, lanes)
            if directives or not any(map(self._is_put_by, rows)):
                return directives
        return []

    async def _hand_over_first(
        self, service: str, limit: int, lanes: frozenset[int] | None
    ) -> tuple[list[OutboxRow], list[Directive]]:
        limit = min(limit, self._pace.room(), max(1, MOST_AT_ONCE - self._count_taken(service)))
        if not limit:
            return [], []
        self._pace.began(limit)
        rows: list[OutboxRow] = []
        try:
            rows = await self.take(service, limit, lanes)
            directives = await self._give_all(rows)
        except LedgerDown:
            self._pace.outage()
            raise
        finally:
            self._pace.began(len(rows) - limit)
        self._pace.went_well()
        return rows, directives

    async def _give_all(self, rows: list[OutboxRow]) -> list[Directive]:
        left = rows
        try:
            given = await asyncio.gather(*(self._give(row) for row in rows), return_exceptions=True)
            left = [row for row, directive in zip(rows, given, strict=True) if not isinstance(directive, Directive)]
        finally:
            self.let_go(rows)
            await self.put_back(left)
        directives = [directive for directive in given if isinstance(directive, Directive)]
        failures = [failure for failure in given if isinstance(failure, BaseException)]
        if failures and not directives:  # what was handed over is answered, whatever became of the rest
            raise failures[0]
        return directives

    async def take(
        self,
        service: str | None,
        limit: int,
        lanes: frozenset[int] | None = None,
        hold_ms: Millis = HOLD_MS,
        passing: frozenset[str] = frozenset(),
    ) -> list[OutboxRow]:
        """PENDING rows that nobody else is handing over right now, here or for `hold_ms` elsewhere; none of `passing`.

        Without a service, those of every platform service; of one at its cap only as many as it has room for.
        """
        query = PendingQuery(
            limit=limit, now=self._clock.now(), service=service, lanes=lanes, hold_ms=hold_ms, later=False
        )
        if service is not None:
            return await self._take(replace(query, except_rows=self._in_hand({service}) | passing))
        capped = frozenset(self._capped)
        others = OF_THE_ENGINE | capped
        rooms = {name: min(limit, await self._room(name)) for name in sorted(capped)}
        rows = await self._take(
            replace(query, except_services=others, except_rows=self._in_hand(self._taken.keys() - others))
        )
        try:
            for name, room in rooms.items():
                if room:
                    here = self._in_hand({name})
                    rows += await self._take(replace(query, limit=room, service=name, except_rows=here))
        except LedgerError:
            await self.put_back(rows)
            raise
        return rows

    async def _take(self, query: PendingQuery) -> list[OutboxRow]:
        rows = [row for row in await self._outbox.pending(query) if not self._is_taken(row)]
        for row in rows:
            self._taken.setdefault(row.service, set()).add(row.outbox_id)
        return rows

    def let_go(self, rows: Collection[OutboxRow]) -> None:
        """They are settled, or somebody else may have them, unless they are set aside or will be settled soon."""
        for row in rows:
            if not self._is_put_by(row):
                self._taken.get(row.service, set()).discard(row.outbox_id)

    async def put_back(self, rows: Collection[OutboxRow]) -> None:
        """They were not handed over: whoever asks next may have them at once, in other processes too."""
        self.let_go(rows)
        rows = [row for row in rows if not self._is_put_by(row)]
        if not rows:
            return
        try:
            await self._outbox.put_back(rows)
        except LedgerError as error:
            log.warning("rows stay held until their time is over", rows=len(rows), reason=str(error))

    def _set_aside(self, row: OutboxRow, seconds: float | None = None) -> None:
        """Nobody gets it for a while, and others need not wait for it."""
        if row.outbox_id not in self._aside and len(self._aside) < MOST_ASIDE:
            self._aside.add(row.outbox_id)
            self._taken.setdefault(row.service, set()).add(row.outbox_id)
            pause = ASIDE_SECONDS * (1 + self._jitter() / 2)
            asyncio.get_running_loop().call_later(pause if seconds is None else seconds, self._start_return, row)

    def _start_return(self, row: OutboxRow) -> None:
        task = asyncio.get_running_loop().create_task(self._return(row))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _return(self, row: OutboxRow) -> None:
        self._aside.discard(row.outbox_id)
        await self.put_back([row])
        self._hub.heard(Wake(ready=((row.service, row.lane),)))

    def _is_put_by(self, row: OutboxRow) -> bool:
        return row.outbox_id in self._aside or row.outbox_id in self._unsettled

    def _is_taken(self, row: OutboxRow) -> bool:
        return row.outbox_id in self._taken.get(row.service, ())

    def _in_hand(self, services: Collection[str]) -> frozenset[str]:
        return frozenset().union(*(self._taken.get(service, ()) for service in services))

    def _count_taken(self, service: str) -> int:
        return len(self._taken.get(service, set()) - self._unsettled - self._aside)

    def is_capped(self, service: str) -> bool:
        """Whether it was at its cap lately."""
        return service in self._capped

    async def has_room(self, service: str, on_its_way: int = 0) -> bool:
        """Whether another of its directives may be un-ACKed, beside those that no counter knows of yet."""
        unacked = await self._count_unacked(service)
        return unacked + on_its_way < self._max_unacked

    async def _room(self, service: str) -> int:
        """How many more of its directives may be un-ACKed. Asked only of a service that was at its cap lately."""
        seen = self._hub.pick_ups(service)
        unacked = await self._count_unacked(service)
        room = max(0, self._max_unacked - unacked)
        if not room:
            self._hub.hold(service, seen)
        elif room * 2 > self._max_unacked:
            self._capped.pop(service, None)
        return room

    async def _count_unacked(self, service: str) -> int:
        counter = unacked_counter(service)
        return (await self._reader.counters(counter)).get(counter, 0)

    async def _give(self, row: OutboxRow) -> Directive | None:
        decision = await self._report(
            row, HandedOver(row.step_id, row.attempt_no, row.lease_id, self._caps(row.service))
        )
        return await self.directive(row, decision) if decision is not None else None

    def _leave_to_its_engine(self, row: OutboxRow) -> None:
        """Which settles it when it has heard of the hand-over. Whoever pulls would try it first, and in vain."""
        self._unsettled.add(row.outbox_id)
        asyncio.get_running_loop().call_later(SETTLED_WITHIN, self._forget_unsettled, row)

    def _forget_unsettled(self, row: OutboxRow) -> None:
        self._unsettled.discard(row.outbox_id)
        self.let_go([row])

    async def release_claims(self) -> None:
        """Give back the claims on what was surely not published; left alone they would count as handed over."""
        for row in [row for name, row in self._unclaimed.items() if not self._put_off.waits(name)]:
            try:
                if await self._is_claimed_by_us(row):
                    await self._release(row)
            except LedgerAway:
                raise
            except Exception:  # of this job alone: others are not to wait for it
                self._on_failure("relay")
                pause = self._put_off.failed(row.outbox_id)
                log.exception("could not give back a claim, will try again", job_id=row.job_id, retry_in_seconds=pause)
                continue
            self._forget_unclaimed(row)

    def _note_unclaimed(self, row: OutboxRow) -> None:
        """A claim of ours that may stand, on what has surely not left us."""
        self._unclaimed[row.outbox_id] = row
        if len(self._unclaimed) > MOST_UNCLAIMED:
            self._forget_unclaimed(next(iter(self._unclaimed.values())))

    def _forget_unclaimed(self, row: OutboxRow) -> None:
        self._unclaimed.pop(row.outbox_id, None)
        self._put_off.forget(row.outbox_id)

    async def _is_claimed_by_us(self, row: OutboxRow) -> bool:
        """A crash of the ledger may lose holds, so another may have claimed the row as well, and published it."""
        view = await self._ledger.load(row.job_id, (row.step_id,), fresh=True)
        attempt = view.steps[row.step_id].attempt if view and row.step_id in view.steps else None
        return attempt is not None and (attempt.lease_id, attempt.claimed_by) == (row.lease_id, self._me)

    async def _release(self, row: OutboxRow) -> None:
        await self._report(row, HandOverReleased(row.step_id, row.attempt_no, row.lease_id))

    async def publish(self, row: OutboxRow, publisher: Publisher, timeout_seconds: float) -> bool:
        """Push one row: claim, publish, report. False if it must wait. Raises BusDown, with the claim given back."""
        claim = HandOverStarted(row.step_id, row.attempt_no, row.lease_id, self._caps(row.service), by=self._me)
        self._forget_unclaimed(row)  # from now on it is this claim that counts
        try:
            claimed = await self._report(row, claim)
            directive = await self.directive(row, claimed) if claimed is not None else None
        except Exception as error:  # the claim may stand or not, but surely nothing has left us
            self._note_unclaimed(row)
            if not isinstance(error, (LedgerAway, Rejected)):
                self._set_aside(row)
            raise
        if directive is None:
            return False
        try:
            report = await self._outcome(row, publisher.publish(row.topic, directive), timeout_seconds)
        except BusDown as down:
            try:
                await self._release(row)
            except LedgerAway as error:
                self._note_unclaimed(row)
                log.warning("a claim will be given back later", job_id=row.job_id, reason=str(error))
            except Exception:
                self._note_unclaimed(row)
                self._on_failure("relay")
                log.exception("could not give back a claim, will try again", job_id=row.job_id)
            raise down
        await self._report(row, report)
        return True

    async def _outcome(self, row: OutboxRow, publishing: Awaitable[None], timeout_seconds: float) -> Input:
        handed_over = HandedOver(row.step_id, row.attempt_no, row.lease_id)
        try:
            async with asyncio.timeout(timeout_seconds):
                await publishing
        except MessageRefused as refused:
            error = ErrorInfo("HANDOVER_FAILED", str(refused))
            return HandOverFailed(row.step_id, row.attempt_no, row.lease_id, error)
        except (OutcomeUnknown, TimeoutError):
            log.warning("handover outcome unknown, counts as handed over", outbox_id=row.outbox_id)
        return handed_over

    def _caps(self, service: str) -> tuple[Cap, ...]:
        return (Cap(unacked_counter(service), self._max_unacked),)

    async def _report(self, row: OutboxRow, happened: Input) -> Decision | None:
        """The decision if it was applied; None if the row must wait or is no longer wanted."""
        seen = self._hub.pick_ups(row.service)
        try:
            decision = await self._jobs.apply(row.job_id, (happened,), row.step_id)
        except LimitReached:
            self._capped.setdefault(row.service, asyncio.Lock())
            self._hub.hold(row.service, seen)
            return None
        except LedgerAway:
            raise
        except ForeignEngine as foreign:
            self._set_aside(row)
            log.error("an outbox row waits for an engine that is not here", job_id=row.job_id, reason=str(foreign))
            return None
        except Rejected as rejected:
            if rejected.code is not RejectCode.JOB_NOT_FOUND:
                raise
            self._set_aside(row)
            log.error("an outbox row has no job", outbox_id=row.outbox_id)
            return None
        except Exception:
            self._set_aside(row)
            raise
        applied = isinstance(decision.reply, Applied)
        if decision.job.engine and isinstance(happened, HandedOver):
            if applied:
                self._leave_to_its_engine(row)
            else:
                self._set_aside(row, self._in_vain.failed(row.outbox_id))
        return decision if applied else None

    async def directive(self, about: Attempted, decision: Decision) -> Directive | None:
        """As the decision that hands it over left the attempt. None if it was fenced between that and now: a directive
        that nobody waits for is not sent."""
        view = await self._ledger.load(about.job_id, seen_from(decision.protocol, about.step_id))
        if view is None or about.step_id not in view.steps:
            return None
        decided = {step.step_id: step for step in decision.steps}
        step = decided.get(about.step_id, view.steps[about.step_id])
        if {step.attempt.lease_id, view.steps[about.step_id].attempt.lease_id} != {about.lease_id}:
            return None
        return self._writer.write(view, step)
