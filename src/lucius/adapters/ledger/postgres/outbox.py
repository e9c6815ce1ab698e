"""Outbox shared by all replicas."""

from collections.abc import Collection

from lucius.adapters.ledger.postgres.claims import OutboxClaims
from lucius.adapters.ledger.postgres.notify import PeerNotifier
from lucius.core.model.records import OutboxRow
from lucius.ports.outbox import PendingQuery


class PostgresOutbox:
    """Implements Outbox."""

    def __init__(self, claims: OutboxClaims, notifier: PeerNotifier) -> None:
        self._claims = claims
        self._notifier = notifier

    async def pending(self, query: PendingQuery) -> list[OutboxRow]:
        return await self._claims.pending(query)

    async def put_back(self, rows: Collection[OutboxRow]) -> None:
        await self._claims.release(rows)
        self._notifier.publish_released({(row.service, row.lane): None for row in rows})
