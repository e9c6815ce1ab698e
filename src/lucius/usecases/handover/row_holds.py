"""Outbox rows that this process holds: taken to be handed over, set aside for a while, or not settled yet."""

import asyncio
import random
from collections.abc import Callable, Collection

import structlog

from lucius.backoff import KeyedBackoff
from lucius.core.model.records import Millis, OutboxRow
from lucius.ports.clock import Clock
from lucius.ports.errors import LedgerError
from lucius.ports.outbox import Outbox, PendingQuery
from lucius.ports.peers import Wake
from lucius.usecases.notifier import Notifier

log = structlog.get_logger(__name__)

HOLD_TTL_MS: Millis = 15_000
"""More than a hand-over takes; other processes can't take the rows of a dead process for so long."""
SET_ASIDE_SECONDS = 8.0
"""With its jitter below HOLD_TTL_MS, so that no other process tries a row that was first set aside here."""
MAX_SET_ASIDE_ROWS = 2_000
SETTLE_SECONDS = 2.0
"""Time within which an engine other than the embedded one usually settles the row of a handed-over directive."""


class RowHolds:
    """Takes PENDING rows and puts them back, so that no row is handed over twice at the same time."""

    def __init__(
        self, outbox: Outbox, notifier: Notifier, clock: Clock, jitter: Callable[[], float] = random.random
    ) -> None:
        self._outbox = outbox
        self._notifier = notifier
        self._clock = clock
        self._jitter = jitter
        self._held: dict[str, set[str]] = {}
        self._set_aside: set[str] = set()
        """Rows whose jobs can't be decided, or that were handed over before; put back at once, they would be the next
        to be taken, forever."""
        self._unsettled: set[str] = set()
        """Rows of directives that were handed over: still PENDING, but not to be handed over again."""
        first, most = SET_ASIDE_SECONDS, 10 * SET_ASIDE_SECONDS
        self._backoff = KeyedBackoff(clock, jitter, first=first, most=most, most_names=MAX_SET_ASIDE_ROWS)
        self._returning: set[asyncio.Task[None]] = set()

    @property
    def set_aside_count(self) -> int:
        """Number of rows that are set aside for a while, as they could not be handed over."""
        return len(self._set_aside)

    @property
    def unsettled_count(self) -> int:
        """Number of rows whose directives were handed over but that the outbox still lists as pending."""
        return len(self._unsettled)

    def count_in_progress(self, service: str) -> int:
        """Return how many rows of the service are being handed over here."""
        return len(self._held.get(service, set()) - self._unsettled - self._set_aside)

    async def take(
        self,
        service: str,
        limit: int,
        lanes: frozenset[int] | None = None,
        hold_ms: Millis = HOLD_TTL_MS,
        passing: frozenset[str] = frozenset(),
        tenants: frozenset[str] | None = None,
        postponed: bool = False,
    ) -> list[OutboxRow]:
        """Take up to `limit` PENDING rows that are not being handed over, here or elsewhere; none of `passing`.

        Other processes can't take them for `hold_ms`. With `postponed`, takes also rows whose retry time has come.
        """
        query = PendingQuery(
            limit=limit,
            now=self._clock.now(),
            service=service,
            lanes=lanes,
            tenants=tenants,
            hold_ms=hold_ms,
            later=postponed,
            except_rows=self._held_of((service,)) | passing,
        )
        return self._hold_new(await self._outbox.pending(query))

    async def take_except(self, services: frozenset[str], limit: int, hold_ms: Millis = HOLD_TTL_MS) -> list[OutboxRow]:
        """Take rows as `take` does, without postponed ones, of all services but these."""
        query = PendingQuery(
            limit=limit,
            now=self._clock.now(),
            hold_ms=hold_ms,
            later=False,
            except_services=services,
            except_rows=self._held_of(self._held.keys() - services),
        )
        return self._hold_new(await self._outbox.pending(query))

    def _hold_new(self, rows: Collection[OutboxRow]) -> list[OutboxRow]:
        """Hold the rows, and return those that another task of this process did not hold before."""
        new = [row for row in rows if row.outbox_id not in self._held.get(row.service, ())]
        for row in new:
            self._held.setdefault(row.service, set()).add(row.outbox_id)
        return new

    def _held_of(self, services: Collection[str]) -> frozenset[str]:
        return frozenset().union(*(self._held.get(service, ()) for service in services))

    def let_go(self, rows: Collection[OutboxRow]) -> None:
        """Let others take these rows, except withheld ones."""
        for row in rows:
            if not self.is_withheld(row):
                self._held.get(row.service, set()).discard(row.outbox_id)

    async def put_back(self, rows: Collection[OutboxRow]) -> None:
        """Return rows that were not handed over, so that any process can take them at once."""
        self.let_go(rows)
        rows = [row for row in rows if not self.is_withheld(row)]
        if not rows:
            return
        try:
            await self._outbox.put_back(rows)
        except LedgerError as error:
            log.warning("could not return rows; they stay held for a while", rows=len(rows), reason=str(error))

    def is_withheld(self, row: OutboxRow) -> bool:
        """Return True if the row is set aside, or if its engine will settle it soon."""
        return row.outbox_id in self._set_aside or row.outbox_id in self._unsettled

    def set_aside(self, row: OutboxRow) -> None:
        """Withhold a row for a while, so that it does not delay others."""
        if self._can_set_aside(row):
            self._withhold(row, SET_ASIDE_SECONDS * (1 + self._jitter() / 2))

    def set_aside_with_backoff(self, row: OutboxRow) -> None:
        """Withhold a row for a while, each time for longer."""
        seconds = self._backoff.failed(row.outbox_id)
        if self._can_set_aside(row):
            self._withhold(row, seconds)

    def _can_set_aside(self, row: OutboxRow) -> bool:
        return row.outbox_id not in self._set_aside and len(self._set_aside) < MAX_SET_ASIDE_ROWS

    def _withhold(self, row: OutboxRow, seconds: float) -> None:
        self._set_aside.add(row.outbox_id)
        self._held.setdefault(row.service, set()).add(row.outbox_id)
        asyncio.get_running_loop().call_later(seconds, self._start_return, row)

    def _start_return(self, row: OutboxRow) -> None:
        task = asyncio.get_running_loop().create_task(self._return(row))
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _return(self, row: OutboxRow) -> None:
        self._set_aside.discard(row.outbox_id)
        await self.put_back([row])
        self._notifier.apply_wake(Wake(ready=((row.service, row.lane),)))

    def withhold_until_settled(self, row: OutboxRow) -> None:
        """Withhold a handed-over row while its engine may still settle it; pulls would try it first, in vain."""
        self._unsettled.add(row.outbox_id)
        asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._forget_unsettled, row)

    def _forget_unsettled(self, row: OutboxRow) -> None:
        self._unsettled.discard(row.outbox_id)
        self.let_go([row])
