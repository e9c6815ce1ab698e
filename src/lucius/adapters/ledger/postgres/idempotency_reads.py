"""Batched reads of idempotency keys: lookups that arrive while a query runs share the next one."""

import asyncio

from lucius.adapters.ledger.postgres.batch import replace_nul
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.sql_files import load_statements
from lucius.ports.errors import LedgerDown, LedgerError
from lucius.ports.ledger import IdempotencyRow

_SQL = load_statements(__package__, "idempotency_reads")
SELECT_KEYS = _SQL["select_keys"]

Key = tuple[str, str]


class _Batch:
    def __init__(self) -> None:
        self.keys: dict[Key, None] = {}
        self.outcome: dict[Key, IdempotencyRow | LedgerError] | LedgerError | None = None


class IdempotencyReader:
    """Looks up which job holds an idempotency key, with at most one query in flight."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._query_lock = asyncio.Lock()
        self._next = _Batch()

    async def find(self, tenant_id: str, key: str) -> IdempotencyRow | None:
        """Return the job that holds a tenant's key, or None. Raises LedgerError."""
        wanted, batch = (replace_nul(tenant_id), replace_nul(key)), self._next
        batch.keys[wanted] = None
        async with self._query_lock:
            if batch.outcome is None:  # the first caller queries for all; the next one does if it was cancelled
                self._next = _Batch() if batch is self._next else self._next
                try:
                    batch.outcome = await self._find_all(batch.keys)
                except LedgerError as error:
                    batch.outcome = error
        found = batch.outcome if isinstance(batch.outcome, LedgerError) else batch.outcome.get(wanted)
        if isinstance(found, LedgerError):
            raise found
        return found

    async def _find_all(self, keys: dict[Key, None]) -> dict[Key, IdempotencyRow | LedgerError]:
        """Query all keys at once; if that fails over one of them, query each on its own."""
        try:
            return {**await self._query(keys)}
        except LedgerDown:
            raise
        except LedgerError:
            if len(keys) == 1:
                raise
        found: dict[Key, IdempotencyRow | LedgerError] = {}
        for key in keys:
            try:
                found |= await self._query({key: None})
            except LedgerError as error:
                found[key] = error
        return found

    async def _query(self, keys: dict[Key, None]) -> dict[Key, IdempotencyRow]:
        found = await self._database.fetch_rows(SELECT_KEYS, [tenant for tenant, _ in keys], [key for _, key in keys])
        return {(tenant, key): IdempotencyRow(job_id, hash_) for tenant, key, job_id, hash_ in found}
