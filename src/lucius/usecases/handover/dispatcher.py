"""Hands over directives: takes PENDING outbox rows, and gives them to services that pull or to the bus.

A pull commits the hand-over and then answers; the relay claims, publishes and reports. Both respect the cap on a
service's un-ACKed directives; over the cap a row stays PENDING.
"""

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

import structlog
from msgspec import UNSET
from msgspec.structs import replace

from lucius.backoff import KeyedBackoff
from lucius.contract import Directive
from lucius.core.model.counters import unacked_counter
from lucius.core.model.decision import Applied, Decision
from lucius.core.model.inputs import HandedOver, HandOverFailed, HandOverReleased, HandOverStarted, Input
from lucius.core.model.records import ErrorInfo, Millis, OutboxRow
from lucius.core.protocol.definition import ENGINE_SERVICES
from lucius.ports.bus import Publisher
from lucius.ports.clock import Clock
from lucius.ports.engine import Engine
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
from lucius.ports.ledger import Ledger
from lucius.ports.outbox import Outbox, PendingQuery
from lucius.ports.peers import Wake
from lucius.ports.readers import JobReader
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.handover.broker import MAX_AT_ONCE, HandoverBroker
from lucius.usecases.handover.deliverable_directives import DeliverableDirectives
from lucius.usecases.handover.rendering import DirectiveWriter, seen_from
from lucius.usecases.handover.waiting_pulls import Pull
from lucius.usecases.notifier import Notifier

log = structlog.get_logger(__name__)

HOLD_MS: Millis = 15_000  # more than a hand-over takes; other processes can't take a dead process's rows for so long
MAX_UNCLAIMED = 1_000
ASIDE_SECONDS = 8.0  # with its jitter below HOLD_MS, so no other process tries a row first set aside here
MAX_ASIDE = 2_000
SETTLED_WITHIN = 2.0
"""Time within which an engine other than the embedded one usually settles the row of a handed-over directive."""
MAX_LOOKS = 100


class Attempted(Protocol):
    """Identifies an attempt."""

    @property
    def job_id(self) -> str: ...
    @property
    def step_id(self) -> str: ...
    @property
    def lease_id(self) -> str: ...


class Dispatcher:
    """Hands over directives to pulls and to the bus, within the caps of services."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        outbox: Outbox,
        jobs: JobReader,
        engine: Engine,
        broker: HandoverBroker,
        notifier: Notifier,
        writer: DirectiveWriter,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        on_failure: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._ledger = ledger
        self._outbox = outbox
        self._jobs = jobs
        self._engine = engine
        self._broker = broker
        self._notifier = notifier
        self._writer = writer
        self._clock = clock
        self._taken: dict[str, set[str]] = {}
        self._on_failure = on_failure
        self._unclaimed: dict[str, OutboxRow] = {}
        self._put_off = KeyedBackoff(clock, jitter, most_names=MAX_UNCLAIMED)
        self._aside: set[str] = set()
        """Rows whose jobs can't be decided, or that were handed over before; put back at once, they would be the next
        to be taken, forever."""
        self._in_vain = KeyedBackoff(clock, jitter, first=ASIDE_SECONDS, most=10 * ASIDE_SECONDS, most_names=MAX_ASIDE)
        self._unsettled: set[str] = set()
        """Rows of directives that were handed over: still PENDING, but not to be handed over again."""
        self._returning: set[asyncio.Task[None]] = set()
        self._jitter = jitter
        self._given = DeliverableDirectives(ledger, notifier.pulls, clock, self.directive, on_failure)
        self._me = secrets.token_hex(6)

    async def pull(
        self,
        service: str,
        limit: int,
        wait_seconds: float,
        lanes: frozenset[int] | None = None,
        gone: Callable[[], asyncio.Future[Any]] | None = None,
        tenants: frozenset[str] | None = None,
    ) -> list[Directive]:
        """Hand over directives for a service durably and return them; wait up to `wait_seconds` for the first.

        With `tenants`, only those of these tenants.

        `gone`, called before the wait begins, makes a future that is done once the client disconnects: a hand-over to
        a closed connection would cost an attempt. What it raises ends the pull.
        """
        seen = self._notifier.pulls.arrivals(service)
        directives = await self._hand_out(service, limit, lanes, tenants)
        if directives or wait_seconds <= 0:
            return directives
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        hung_up = gone() if gone else None
        try:
            while not directives and (remaining := deadline - loop.time()) > 0:
                paced = self._broker.pace.wait()
                waiting = Pull(lanes, limit, hung_up, tenants)
                woken = await self._notifier.pulls.wait(service, waiting, min(remaining, paced or remaining), seen)
                if not woken and (not paced or self._notifier.closed or (hung_up is not None and hung_up.done())):
                    break
                seen = self._notifier.pulls.arrivals(service)
                if waiting.given:
                    directives = await self._given.directives(waiting.given, hung_up)
                else:
                    directives = await self._hand_out(service, limit, lanes, tenants)
        finally:
            if hung_up is not None:
                hung_up.cancel()
        return directives

    async def _hand_out(
        self, service: str, limit: int, lanes: frozenset[int] | None, tenants: frozenset[str] | None
    ) -> list[Directive]:
        if tenants is None and (directives := await self._given.kept(service, limit, lanes)):
            return directives
        for capped, served in self._split_by_cap(service, tenants):
            if directives := await self._hand_out_within(capped, service, limit, lanes, served):
                return directives
        return []

    def _split_by_cap(
        self, service: str, tenants: frozenset[str] | None
    ) -> list[tuple[str | None, frozenset[str] | None]]:
        """Return the tenants of a pull in the order to serve them, each with its counter if that was at its cap.

        The others come together. The order is random, so that no tenant waits for the others for long.
        """
        if tenants is None:
            counter = unacked_counter(service)
            return [(counter if self._broker.is_capped(counter) else None, None)]
        capped = self._broker.capped_tenants(service, tenants)
        if not capped:
            return [(None, tenants)]
        parts: list[tuple[str | None, frozenset[str] | None]]
        parts = [(counter, frozenset({tenant})) for tenant, counter in capped.items()]
        if others := tenants - capped.keys():
            parts.append((None, others))
        first = int(self._jitter() * len(parts)) % len(parts)
        return [*parts[first:], *parts[:first]]

    async def _hand_out_within(
        self,
        capped: str | None,
        service: str,
        limit: int,
        lanes: frozenset[int] | None,
        tenants: frozenset[str] | None,
    ) -> list[Directive]:
        """Hand over rows, of a counter that was at its cap only as many as it has room for."""
        if capped is None or not self._broker.is_capped(capped):
            return await self._hand_over(service, limit, lanes, tenants)
        async with self._broker.cap_lock(capped):  # one at a time, so that two pulls don't try for the same room
            room = await self._room(capped)
            return await self._hand_over(service, min(limit, room), lanes, tenants) if room else []

    async def _hand_over(
        self, service: str, limit: int, lanes: frozenset[int] | None, tenants: frozenset[str] | None
    ) -> list[Directive]:
        """Hand over rows; skip rows that were handed over before and look for later ones."""
        for _ in range(MAX_LOOKS):
            rows, directives = await self._hand_over_first(service, limit, lanes, tenants)
            if directives or not any(map(self._is_put_by, rows)):
                return directives
        return []

    async def _hand_over_first(
        self, service: str, limit: int, lanes: frozenset[int] | None, tenants: frozenset[str] | None
    ) -> tuple[list[OutboxRow], list[Directive]]:
        limit = min(limit, self._broker.pace.room(), max(1, MAX_AT_ONCE - self._count_taken(service)))
        if not limit:
            return [], []
        self._broker.pace.began(limit)
        rows: list[OutboxRow] = []
        try:
            rows = await self.take(service, limit, lanes, tenants=tenants)
            directives = await self._give_all(rows, is_bound=tenants is not None)
        except LedgerDown:
            self._broker.pace.outage()
            raise
        finally:
            self._broker.pace.began(len(rows) - limit)
        self._broker.pace.went_well()
        return rows, directives

    async def _give_all(self, rows: list[OutboxRow], *, is_bound: bool) -> list[Directive]:
        left = rows
        try:
            giving = (self._give(row, is_bound=is_bound) for row in rows)
            given = await asyncio.gather(*giving, return_exceptions=True)
            left = [row for row, directive in zip(rows, given, strict=True) if not isinstance(directive, Directive)]
        finally:
            self.let_go(rows)
            await self.put_back(left)
        self._offer_to_others(left, is_bound=is_bound)
        directives = [directive for directive in given if isinstance(directive, Directive)]
        failures = [failure for failure in given if isinstance(failure, BaseException)]
        if failures and not directives:  # directives that were handed over are returned even if other rows failed
            raise failures[0]
        return directives

    def _offer_to_others(self, left: Collection[OutboxRow], *, is_bound: bool) -> None:
        """Wake pulls of the other kind for rows that a cap of these pulls refused: they have a cap of their own."""
        for row in left:
            if not self._broker.is_capped(_counter_of(row, is_bound=is_bound)):
                continue
            if is_bound:
                self._notifier.pulls.wake_unbound(row.service, row.lane)
            else:
                self._notifier.pulls.wake_bound(row.service, row.lane, row.tenant_id)

    async def take(
        self,
        service: str | None,
        limit: int,
        lanes: frozenset[int] | None = None,
        hold_ms: Millis = HOLD_MS,
        passing: frozenset[str] = frozenset(),
        tenants: frozenset[str] | None = None,
        postponed: bool = False,
    ) -> list[OutboxRow]:
        """Take up to `limit` PENDING rows that are not being handed over, here or elsewhere; none of `passing`.

        Other processes can't take them for `hold_ms`. With `postponed`, takes also rows whose retry time has come.
        Without a service, takes rows of all platform services; of one
        at its cap only as many as it has room for.
        """
        query = PendingQuery(
            limit=limit,
            now=self._clock.now(),
            service=service,
            lanes=lanes,
            tenants=tenants,
            hold_ms=hold_ms,
            later=postponed,
        )
        if service is not None:
            return await self._take(replace(query, except_rows=self._in_hand({service}) | passing))
        capped = self._broker.capped_services()
        others = ENGINE_SERVICES | capped
        rooms = {name: min(limit, await self._room(unacked_counter(name))) for name in sorted(capped)}
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
        """Let others take these rows, unless they are set aside or their engine will settle them soon."""
        for row in rows:
            if not self._is_put_by(row):
                self._taken.get(row.service, set()).discard(row.outbox_id)

    async def put_back(self, rows: Collection[OutboxRow]) -> None:
        """Return rows that were not handed over, so that any process can take them at once."""
        self.let_go(rows)
        rows = [row for row in rows if not self._is_put_by(row)]
        if not rows:
            return
        try:
            await self._outbox.put_back(rows)
        except LedgerError as error:
            log.warning("could not return rows; they stay held for a while", rows=len(rows), reason=str(error))

    @property
    def aside_count(self) -> int:
        """Number of rows that are set aside for a while, as they could not be handed over."""
        return len(self._aside)

    @property
    def unsettled_count(self) -> int:
        """Number of rows whose directives were handed over but that the outbox still lists as pending."""
        return len(self._unsettled)

    def _set_aside(self, row: OutboxRow, seconds: float | None = None) -> None:
        """Withhold a row for a while, so that it does not delay others."""
        if row.outbox_id not in self._aside and len(self._aside) < MAX_ASIDE:
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
        self._notifier.apply_wake(Wake(ready=((row.service, row.lane),)))

    def _is_put_by(self, row: OutboxRow) -> bool:
        return row.outbox_id in self._aside or row.outbox_id in self._unsettled

    def _is_taken(self, row: OutboxRow) -> bool:
        return row.outbox_id in self._taken.get(row.service, ())

    def _in_hand(self, services: Collection[str]) -> frozenset[str]:
        return frozenset().union(*(self._taken.get(service, ()) for service in services))

    def _count_taken(self, service: str) -> int:
        return len(self._taken.get(service, set()) - self._unsettled - self._aside)

    def is_capped(self, service: str) -> bool:
        """Return True if the service was at its cap recently."""
        return self._broker.is_capped(unacked_counter(service))

    async def has_room(self, service: str, on_its_way: int = 0) -> bool:
        """Return True if one more directive may be un-ACKed, besides `on_its_way` ones that are not counted yet."""
        unacked = await self._count(unacked_counter(service))
        return unacked + on_its_way < self._broker.max_unacked

    async def _room(self, counter: str) -> int:
        """Return how many more directives may be un-ACKed; only called for a counter that was at its cap recently."""
        seen = self._notifier.pick_ups(counter)
        room = max(0, self._broker.max_unacked - await self._count(counter))
        if not room:
            self._notifier.hold(counter, seen)
        elif room * 2 > self._broker.max_unacked:
            self._broker.lift_cap(counter)
        return room

    async def _count(self, counter: str) -> int:
        return (await self._jobs.counters(counter)).get(counter, 0)

    async def _give(self, row: OutboxRow, *, is_bound: bool) -> Directive | None:
        caps = self._broker.caps(_counter_of(row, is_bound=is_bound))
        tenant_bound = True if is_bound else UNSET
        decision = await self._report(
            row, HandedOver(row.step_id, row.attempt_no, row.lease_id, caps, tenant_bound=tenant_bound)
        )
        return await self.directive(row, decision) if decision is not None else None

    def _leave_to_its_engine(self, row: OutboxRow) -> None:
        """Withhold a row until its engine has settled it; otherwise pulls would try it first, in vain."""
        self._unsettled.add(row.outbox_id)
        asyncio.get_running_loop().call_later(SETTLED_WITHIN, self._forget_unsettled, row)

    def _forget_unsettled(self, row: OutboxRow) -> None:
        self._unsettled.discard(row.outbox_id)
        self.let_go([row])

    async def release_claims(self) -> None:
        """Give back the claims on rows that were surely not published; a claim that stays counts as a hand-over."""
        for row in [row for name, row in self._unclaimed.items() if not self._put_off.waits(name)]:
            try:
                if await self._is_claimed_by_us(row):
                    await self._release(row)
            except LedgerAway:
                raise
            except Exception:  # concerns this job only: others must not wait for it
                self._on_failure("relay")
                pause = self._put_off.failed(row.outbox_id)
                log.exception("could not give back a claim, will try again", job_id=row.job_id, retry_in_seconds=pause)
                continue
            self._forget_unclaimed(row)

    def _note_unclaimed(self, row: OutboxRow) -> None:
        """Note a claim of this process that may be durable, although the directive was surely not published."""
        self._unclaimed[row.outbox_id] = row
        if len(self._unclaimed) > MAX_UNCLAIMED:
            self._forget_unclaimed(next(iter(self._unclaimed.values())))

    def _forget_unclaimed(self, row: OutboxRow) -> None:
        self._unclaimed.pop(row.outbox_id, None)
        self._put_off.forget(row.outbox_id)

    async def _is_claimed_by_us(self, row: OutboxRow) -> bool:
        """Return True if the claim is ours.

        A crash of the ledger may lose holds, so another process may have claimed and published the row.
        """
        view = await self._ledger.load(row.job_id, (row.step_id,), fresh=True)
        attempt = view.steps[row.step_id].attempt if view and row.step_id in view.steps else None
        return attempt is not None and (attempt.lease_id, attempt.claimed_by) == (row.lease_id, self._me)

    async def _release(self, row: OutboxRow) -> None:
        await self._report(row, HandOverReleased(row.step_id, row.attempt_no, row.lease_id))

    async def publish(self, row: OutboxRow, publisher: Publisher, timeout_seconds: float) -> bool:
        """Push one row: claim, publish, report. Return False if it must wait.

        Raises BusDown; the claim is then given back, now or later by `release_claims`.
        """
        caps = self._broker.caps(unacked_counter(row.service))
        claim = HandOverStarted(row.step_id, row.attempt_no, row.lease_id, caps, by=self._me)
        self._forget_unclaimed(row)  # from now on the new claim counts
        try:
            claimed = await self._report(row, claim)
            directive = await self.directive(row, claimed) if claimed is not None else None
        except Exception as error:  # the claim may be durable or not, but the directive was surely not published
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

    async def _report(self, row: OutboxRow, happened: Input) -> Decision | None:
        """Apply an input and return the decision; None if the row must wait or is no longer wanted."""
        is_bound = isinstance(happened, HandedOver) and bool(happened.tenant_bound)
        counter = _counter_of(row, is_bound=is_bound)
        seen = self._notifier.pick_ups(counter)
        try:
            decision = await self._engine.apply(row.job_id, (happened,), row.step_id)
        except LimitReached:
            self._broker.note_cap(counter)
            self._notifier.hold(counter, seen)
            return None
        except LedgerAway:
            raise
        except ForeignEngine as foreign:
            self._set_aside(row)
            log.error("outbox row belongs to an engine that is not used here", job_id=row.job_id, reason=str(foreign))
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
        if not decision.job.is_ledger_driven and isinstance(happened, HandedOver):
            if applied:
                self._leave_to_its_engine(row)
            else:
                self._set_aside(row, self._in_vain.failed(row.outbox_id))
        return decision if applied else None

    async def directive(self, about: Attempted, decision: Decision) -> Directive | None:
        """Return the directive with the attempt as the hand-over decision left it.

        Returns None if the attempt was fenced since then.
        """
        view = await self._ledger.load(about.job_id, seen_from(decision.protocol, about.step_id))
        if view is None or about.step_id not in view.steps:
            return None
        decided = {step.step_id: step for step in decision.steps}
        step = decided.get(about.step_id, view.steps[about.step_id])
        if {step.attempt.lease_id, view.steps[about.step_id].attempt.lease_id} != {about.lease_id}:
            return None
        return self._writer.write(view, step)


def _counter_of(row: OutboxRow, *, is_bound: bool) -> str:
    """Return the counter of un-ACKed directives towards which the row counts if such a pull takes it."""
    return unacked_counter(row.service, row.tenant_id if is_bound else None)
