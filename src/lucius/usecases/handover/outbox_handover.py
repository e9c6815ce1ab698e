"""Hands over PENDING outbox rows to a pull, within the caps of its service and tenants."""

import asyncio
import random
from collections.abc import Callable, Collection

from msgspec import UNSET

from lucius.contract import Directive
from lucius.core.model.counters import unacked_counter
from lucius.core.model.inputs import HandedOver
from lucius.core.model.records import OutboxRow
from lucius.ports.errors import LedgerDown
from lucius.usecases.handover.broker import MAX_CONCURRENT_HANDOVERS
from lucius.usecases.handover.directive_loader import DirectiveLoader
from lucius.usecases.handover.handover_recorder import HandoverRecorder
from lucius.usecases.handover.row_holds import RowHolds
from lucius.usecases.handover.slow_start import PacedRamp
from lucius.usecases.handover.unacked_caps import UnackedCaps, counter_of
from lucius.usecases.handover.waiting_pulls import WaitingPulls

MAX_CLAIM_ROUNDS = 100


class OutboxHandover:
    """Takes rows for a pull and commits their hand-over, at the pace that the last outage permits."""

    def __init__(
        self,
        *,
        holds: RowHolds,
        caps: UnackedCaps,
        recorder: HandoverRecorder,
        loader: DirectiveLoader,
        pulls: WaitingPulls,
        pace: PacedRamp,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._holds = holds
        self._caps = caps
        self._recorder = recorder
        self._loader = loader
        self._pulls = pulls
        self._pace = pace
        self._jitter = jitter

    async def hand_over(
        self, service: str, limit: int, lanes: frozenset[int] | None, tenants: frozenset[str] | None
    ) -> list[Directive]:
        """Hand over up to `limit` rows durably and return their directives."""
        for capped, served in self._split_by_cap(service, tenants):
            if directives := await self._hand_over_within(capped, service, limit, lanes, served):
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
            return [(counter if self._caps.is_capped(counter) else None, None)]
        capped = self._caps.capped_tenants(service, tenants)
        if not capped:
            return [(None, tenants)]
        parts: list[tuple[str | None, frozenset[str] | None]]
        parts = [(counter, frozenset({tenant})) for tenant, counter in capped.items()]
        if others := tenants - capped.keys():
            parts.append((None, others))
        first = int(self._jitter() * len(parts)) % len(parts)
        return [*parts[first:], *parts[:first]]

    async def _hand_over_within(
        self,
        capped: str | None,
        service: str,
        limit: int,
        lanes: frozenset[int] | None,
        tenants: frozenset[str] | None,
    ) -> list[Directive]:
        """Hand over rows, of a counter that was at its cap only as many as it has room for."""
        if capped is None or not self._caps.is_capped(capped):
            return await self._hand_over_in_rounds(service, limit, lanes, tenants)
        async with self._caps.lock(capped):  # one at a time, so that two pulls don't try for the same room
            room = await self._caps.room(capped)
            return await self._hand_over_in_rounds(service, min(limit, room), lanes, tenants) if room else []

    async def _hand_over_in_rounds(
        self, service: str, limit: int, lanes: frozenset[int] | None, tenants: frozenset[str] | None
    ) -> list[Directive]:
        """Hand over rows; skip rows that were handed over before and look for later ones."""
        for _ in range(MAX_CLAIM_ROUNDS):
            rows, directives = await self._hand_over_once(service, limit, lanes, tenants)
            if directives or not any(map(self._holds.is_withheld, rows)):
                return directives
        return []

    async def _hand_over_once(
        self, service: str, limit: int, lanes: frozenset[int] | None, tenants: frozenset[str] | None
    ) -> tuple[list[OutboxRow], list[Directive]]:
        """Take the first rows that no other task holds and hand them over; return the rows and the directives."""
        concurrent = self._holds.count_in_progress(service)
        limit = min(limit, self._pace.room(), max(1, MAX_CONCURRENT_HANDOVERS - concurrent))
        if not limit:
            return [], []
        self._pace.count_started(limit)
        rows: list[OutboxRow] = []
        try:
            rows = await self._holds.take(service, limit, lanes, tenants=tenants)
            directives = await self._hand_over_rows(rows, is_bound=tenants is not None)
        except LedgerDown:
            self._pace.outage()
            raise
        finally:
            self._pace.count_started(len(rows) - limit)
        self._pace.note_success()
        return rows, directives

    async def _hand_over_rows(self, rows: list[OutboxRow], *, is_bound: bool) -> list[Directive]:
        pending = rows
        try:
            handing_over = (self._hand_over_row(row, is_bound=is_bound) for row in rows)
            results = await asyncio.gather(*handing_over, return_exceptions=True)
            pending = [row for row, result in zip(rows, results, strict=True) if not isinstance(result, Directive)]
        finally:
            self._holds.let_go(rows)
            await self._holds.put_back(pending)
        self._offer_to_others(pending, is_bound=is_bound)
        directives = [result for result in results if isinstance(result, Directive)]
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures and not directives:  # directives that were handed over are returned even if other rows failed
            raise failures[0]
        return directives

    async def _hand_over_row(self, row: OutboxRow, *, is_bound: bool) -> Directive | None:
        limits = self._caps.limits(counter_of(row, is_bound=is_bound))
        tenant_bound = True if is_bound else UNSET
        decision = await self._recorder.record(
            row, HandedOver(row.step_id, row.attempt_no, row.lease_id, limits, tenant_bound=tenant_bound)
        )
        return await self._loader.load(row, decision) if decision is not None else None

    def _offer_to_others(self, pending: Collection[OutboxRow], *, is_bound: bool) -> None:
        """Wake pulls of the other kind for rows that a cap of these pulls refused: they have a cap of their own."""
        for row in pending:
            if not self._caps.is_capped(counter_of(row, is_bound=is_bound)):
                continue
            if is_bound:
                self._pulls.wake_unbound(row.service, row.lane)
            else:
                self._pulls.wake_bound(row.service, row.lane, row.tenant_id)
