"""An engine without an API that records the queries to its outbox, and whose ledger can be down."""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence

from lucius.contract import Directive
from lucius.core.model.decision import Decision
from lucius.core.model.inputs import Ack
from lucius.core.model.records import OutboxRow
from lucius.core.protocol.definition import StepSpec
from lucius.ports.errors import LedgerDown, LimitReached
from lucius.ports.outbox import PendingQuery
from tests.support.engine import Engine

OCR = StepSpec(step_id="ocr", step_type="OCR", service="ocr")


class WatchedEngine(Engine):
    """An engine that records the queries to its ledger."""

    def __init__(self, max_unacked: int = 1_000) -> None:
        super().__init__(max_unacked=max_unacked)
        self.refused = 0
        self.queries: list[PendingQuery] = []
        self.given_back: list[str] = []
        self.down = False
        self._guard, self._pending = self.store.tables.guard, self.store.outbox.pending
        self.store.tables.guard = self._watch_guard  # type: ignore[method-assign]
        self.store.outbox.pending = self._watch_pending  # type: ignore[method-assign]
        self.store.outbox.put_back = self._watch_put_back  # type: ignore[method-assign]

    def _watch_guard(self, decision: Decision) -> None:
        try:
            self._guard(decision)
        except LimitReached:
            self.refused += 1
            raise

    async def _watch_pending(self, query: PendingQuery) -> list[OutboxRow]:
        if self.down:
            raise LedgerDown("no connection")
        self.queries.append(query)
        return await self._pending(query)

    async def _watch_put_back(self, rows: Collection[OutboxRow]) -> None:
        if self.down:
            raise LedgerDown("no connection")
        self.given_back += [row.job_id for row in rows]

    async def jobs_of(self, tenant_id: str, n: int) -> None:
        ids = [f"{tenant_id}-{i}" for i in range(n)]
        await asyncio.gather(*(self.submit(OCR, job_id=job_id, tenant_id=tenant_id) for job_id in ids))

    async def pull(self, limit: int, wait_seconds: float = 0) -> list[Directive]:
        return await self.directive_pulls.pull("ocr", limit, wait_seconds)

    async def ack(self, directives: Sequence[Directive]) -> None:
        for got in directives:
            await self.feed(Ack(step_id=got.stepId, attempt_no=got.attempt_no, lease_id=got.lease_id), job_id=got.jobId)


def count_by_tenant(directives: Sequence[Directive]) -> Counter[str]:
    return Counter(directive.tenant_id for directive in directives)
