"""Dictionaries that stand for the tables of a ledger, and the guarded change of all of them by one decision."""

from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from lucius.adapters.ledger.memory.reviews import MemoryReviews
from lucius.adapters.ledger.tenant_fairness import QueueKey, TenantRotation
from lucius.core.model.decision import Decision, EndedAttempt, JobSnapshot
from lucius.core.model.records import Event, Job, OutboxRow, Quarantined, Step
from lucius.core.model.statuses import OutboxStatus
from lucius.core.protocol.definition import ProtocolDefinition
from lucius.ports.errors import AlreadyAccepted, LedgerError, LimitReached, VersionConflict
from lucius.ports.ledger import IdempotencyRow, idempotency_token


class JobEntry(Struct, eq=False):
    """Everything about one job. `position` is its place in the order of acceptance."""

    position: int
    job: Job
    protocol: ProtocolDefinition
    steps: dict[str, Step] = field(default_factory=dict)
    attempts: dict[tuple[str, int], EndedAttempt] = field(default_factory=dict)
    outbox: dict[str, OutboxRow] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    quarantined: dict[tuple[str, int, str], Quarantined] = field(default_factory=dict)

    def view(self, step_ids: Iterable[str]) -> JobSnapshot:
        asked = frozenset(step_ids)
        return JobSnapshot(self.job, self.protocol, {s: self.steps[s] for s in asked if s in self.steps}, asked)

    def whole_view(self) -> JobSnapshot:
        return JobSnapshot(self.job, self.protocol, dict(self.steps))

    def pending_rows(self) -> Iterable[OutboxRow]:
        return (row for row in self.outbox.values() if row.status is OutboxStatus.PENDING)


class MemoryTables:
    """State of a ledger in memory, shared by the ports that read or change it."""

    def __init__(self) -> None:
        self.records: dict[str, JobEntry] = {}
        self.live: dict[str, JobEntry] = {}
        self.pending: TenantRotation[dict[tuple[str, str], OutboxRow]] = TenantRotation()
        self.keys: dict[tuple[str, str], IdempotencyRow] = {}
        self.counters: dict[str, int] = {}
        self.reviews = MemoryReviews()

    def write(self, decisions: Sequence[Decision]) -> list[Exception | None]:
        """Apply decisions; return for each None or why it was refused."""
        return [self.write_one(decision) for decision in decisions]

    def write_one(self, decision: Decision) -> Exception | None:
        try:
            self.guard(decision)
        except LedgerError as refusal:
            return refusal
        self._apply(decision)
        return None

    def guard(self, decision: Decision) -> None:
        """Raise AlreadyAccepted, VersionConflict or LimitReached if the decision must not be applied."""
        job = decision.job
        if decision.creates:
            holder = self.keys.get((job.tenant_id, idempotency_token(job.command)))
            if holder is not None:
                raise AlreadyAccepted(holder.job_id, holder.idempotency_hash)
        record = self.records.get(job.job_id)
        version = record.job.version if record else 0
        if version != decision.expected_version or decision.creates is not (record is None):
            raise VersionConflict(f"job {job.job_id} is at version {version}, not {decision.expected_version}")
        for cap in decision.caps:
            if self.counters.get(cap.counter, 0) + decision.counters.get(cap.counter, 0) > cap.limit:
                raise LimitReached(cap.counter, cap.limit)

    def _apply(self, decision: Decision) -> None:
        job = decision.job
        if decision.creates:
            self.records[job.job_id] = JobEntry(len(self.records) + 1, job, decision.protocol)
            row = IdempotencyRow(job.job_id, job.command.idempotency_hash)
            self.keys[job.tenant_id, idempotency_token(job.command)] = row
        record = self.records[job.job_id]
        record.job = job
        record.steps.update((step.step_id, step) for step in decision.steps)
        record.attempts.update(((a.step_id, a.attempt.attempt_no), a) for a in decision.attempts)
        record.events.extend(decision.events)
        for review in decision.reviews:
            self.reviews.put(review)
        for item in decision.quarantined:
            record.quarantined.setdefault((item.step_id, item.attempt_no, item.lease_id), item)
        self._index(record, decision)

    def _index(self, record: JobEntry, decision: Decision) -> None:
        job_id = record.job.job_id
        if record.job.live:
            self.live[job_id] = record
        else:
            self.live.pop(job_id, None)
        for row in decision.outbox:
            record.outbox[row.outbox_id] = row
            if row.status is OutboxStatus.PENDING:
                self._keep_pending(row)
            else:
                self.drop_pending(row)
        for counter, move in decision.counters.items():
            self.counters[counter] = self.counters.get(counter, 0) + move
            if not self.counters[counter]:
                del self.counters[counter]

    def _keep_pending(self, row: OutboxRow) -> None:
        queue = QueueKey(row.service, row.tenant_id)
        rows = self.pending.find(queue)
        if rows is None:
            rows = self.pending.add(queue, {})
        rows[row.job_id, row.outbox_id] = row

    def drop_pending(self, row: OutboxRow) -> None:
        queue = QueueKey(row.service, row.tenant_id)
        rows = self.pending.find(queue)
        if rows is not None:
            rows.pop((row.job_id, row.outbox_id), None)
            if not rows:
                self.pending.remove(queue)
