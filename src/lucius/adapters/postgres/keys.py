"""Who holds an idempotency key. Those who ask while a query is under way share the next one."""

import asyncio

from lucius.adapters.postgres.batch import storable
from lucius.adapters.postgres.database import Database
from lucius.ports.errors import LedgerError
from lucius.ports.ledger import IdempotencyRow

HOLDERS = """
    SELECT j.tenant_id, j.key, j.job_id, j.hash FROM jobs AS j
    JOIN unnest($1::text[], $2::text[]) AS k (tenant_id, key) ON j.tenant_id = k.tenant_id AND j.key = k.key
"""

Key = tuple[str, str]


class _Batch:
    def __init__(self) -> None:
        self.keys: dict[Key, None] = {}
        self.outcome: dict[Key, IdempotencyRow] | LedgerError | None = None


class Keys:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._turn = asyncio.Lock()
        self._next = _Batch()

    async def holder(self, tenant_id: str, key: str) -> IdempotencyRow | None:
        """Raises LedgerDown and the like."""
        asked, batch = (storable(tenant_id), storable(key)), self._next
        batch.keys[asked] = None
        async with self._turn:
            if batch.outcome is None:  # the first of them asks for all; the second, if the first was cancelled
                self._next = _Batch() if batch is self._next else self._next
                try:
                    batch.outcome = await self._look(batch.keys)
                except LedgerError as error:
                    batch.outcome = error
        if isinstance(batch.outcome, LedgerError):
            raise batch.outcome
        return batch.outcome.get(asked)

    async def _look(self, keys: dict[Key, None]) -> dict[Key, IdempotencyRow]:
        found = await self._database.rows(HOLDERS, [tenant for tenant, _ in keys], [key for _, key in keys])
        return {(tenant, key): IdempotencyRow(job_id, hash_) for tenant, key, job_id, hash_ in found}
