"""The ledger that processes share: one PostgreSQL schema and any number of equal replicas."""

from collections.abc import Collection

from lucius.adapters.ledger.postgres.batched_reads import JobLoader
from lucius.adapters.ledger.postgres.cache import JobCache
from lucius.adapters.ledger.postgres.claims import OutboxClaims
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.idempotency_reads import IdempotencyReader
from lucius.adapters.ledger.postgres.writer import Writer
from lucius.adapters.ledger.sql_files import load_statements
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.records import Instant, Millis
from lucius.ports.ledger import Drift, IdempotencyRow

DRIFT_BATCH_JOBS = 2_000
"""Live jobs examined by one call of `drifted`; the next call continues where it stopped."""

_SQL = load_statements(__package__, "ledger", drift_batch_jobs=DRIFT_BATCH_JOBS)
_DRIFTED = _SQL["drifted"]


class PostgresLedger:
    """Implements Ledger."""

    def __init__(
        self, database: Database, cache: JobCache, loader: JobLoader, writer: Writer, claims: OutboxClaims
    ) -> None:
        self._database = database
        self._cache = cache
        self._loader = loader
        self._writer = writer
        self._claims = claims
        self._idempotency = IdempotencyReader(database)
        self._drift_after = 0

    async def commit(self, decision: Decision) -> None:
        await self._writer.commit(decision)

    async def load(self, job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobSnapshot | None:
        cached = None if fresh else self._cache.view(job_id, step_ids)
        return cached or await self._loader.load(job_id, step_ids)

    async def accepted(self, tenant_id: str, key: str) -> IdempotencyRow | None:
        return await self._idempotency.find(tenant_id, key)

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        return await self._claims.due(now, limit, hold_ms)

    async def drifted(self, limit: int) -> list[Drift]:
        found = await self._database.fetch_rows(_DRIFTED, self._drift_after, limit)
        lost = [row for row in found if row["id"] is not None]
        self._drift_after = lost[-1]["id"] if len(lost) == limit else found[0]["reach"]
        return [Drift(row["job_id"], tuple(row["missing"])) for row in lost]
