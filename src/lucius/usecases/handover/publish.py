"""Hands over directives to a push bus: claims rows, publishes their directives and records the outcome."""

import asyncio
from collections.abc import Awaitable

import structlog

from lucius.core.model.counters import unacked_counter
from lucius.core.model.inputs import HandedOver, HandOverFailed, HandOverStarted, Input
from lucius.core.model.records import ErrorInfo, Millis, OutboxRow
from lucius.core.protocol.definition import ENGINE_SERVICES
from lucius.ports.bus import Publisher
from lucius.ports.errors import BusDown, LedgerAway, LedgerError, MessageRefused, OutcomeUnknown
from lucius.usecases.errors import Rejected
from lucius.usecases.handover.directive_loader import DirectiveLoader
from lucius.usecases.handover.handover_recorder import HandoverRecorder
from lucius.usecases.handover.row_holds import HOLD_TTL_MS, RowHolds
from lucius.usecases.handover.unacked_caps import UnackedCaps
from lucius.usecases.handover.unpublished_claims import UnpublishedClaims

log = structlog.get_logger(__name__)


class BusHandover:
    """Publishes rows of all platform services, within their caps."""

    def __init__(
        self,
        holds: RowHolds,
        caps: UnackedCaps,
        recorder: HandoverRecorder,
        loader: DirectiveLoader,
        claims: UnpublishedClaims,
    ) -> None:
        self._holds = holds
        self._caps = caps
        self._recorder = recorder
        self._loader = loader
        self._claims = claims

    def is_capped(self, service: str) -> bool:
        """Return True if the service was at its cap recently."""
        return self._caps.is_capped(unacked_counter(service))

    async def take_rows(self, limit: int, hold_ms: Millis = HOLD_TTL_MS) -> list[OutboxRow]:
        """Take up to `limit` PENDING rows; of each service at its cap up to `limit` more, if it has room for them."""
        capped = self._caps.capped_services()
        rooms = {name: min(limit, await self._caps.room(unacked_counter(name))) for name in sorted(capped)}
        rows = await self._holds.take_except(ENGINE_SERVICES | capped, limit, hold_ms)
        try:
            for name, room in rooms.items():
                if room:
                    rows += await self._holds.take(name, room, hold_ms=hold_ms)
        except LedgerError:
            await self._holds.put_back(rows)
            raise
        return rows

    async def publish(self, row: OutboxRow, publisher: Publisher, timeout_seconds: float) -> bool:
        """Push one row: claim, publish, record. Return False if it must wait.

        Raises BusDown; the claim is then given back, now or later by `release_claims`.
        """
        limits = self._caps.limits(unacked_counter(row.service))
        claim = HandOverStarted(row.step_id, row.attempt_no, row.lease_id, limits, by=self._claims.owner_id)
        self._claims.forget(row)  # from now on the new claim counts
        try:
            claimed = await self._recorder.record(row, claim)
            directive = await self._loader.load(row, claimed) if claimed is not None else None
        except Exception as error:  # the claim may be durable or not, but the directive was surely not published
            self._claims.note(row)
            if not isinstance(error, (LedgerAway, Rejected)):
                self._holds.set_aside(row)
            raise
        if directive is None:
            return False
        try:
            outcome = await self._outcome(row, publisher.publish(row.topic, directive), timeout_seconds)
        except BusDown:
            await self._claims.release_or_note(row)
            raise
        await self._recorder.record(row, outcome)
        return True

    async def _outcome(self, row: OutboxRow, publishing: Awaitable[None], timeout_seconds: float) -> Input:
        """Await the publish and return what it means for the job. Raises BusDown."""
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

    async def release_claims(self) -> None:
        """Give back the claims on rows that were surely not published; a claim that stays counts as a hand-over."""
        await self._claims.release_noted()
