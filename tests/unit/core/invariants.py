"""Invariants of every decision, computed from the records without the core's helpers.

The invariants of a job after a decision are in `standing.py`, those of its whole life in `lives.py`.
"""

from itertools import chain

from msgspec.structs import replace

from lucius.core.model.decision import Applied, CallbackReply, Decision, Env, Ignored, Refused
from lucius.core.model.event_chain import verify_events
from lucius.core.model.records import Attempt, Event, Job, OutboxRow, Quarantined, ReviewItem, Step
from lucius.core.model.statuses import TERMINAL_JOB, TERMINAL_STEP, Disposition, JobStatus, OutboxStatus, ReviewStatus
from lucius.core.protocol.definition import WEBHOOK_SERVICE, ProtocolDefinition
from tests.unit.core.lives import Life
from tests.unit.core.standing import Standing, check_standing

MAX_ROWS = 40
KNOWN_REFUSALS = frozenset(
    {
        "JOB_TERMINAL",
        "STEP_NOT_FOUND",
        "JOB_LIVE",
        "JOB_CANCELLING",
        "COMPENSATING",
        "REVIEW_OPEN",
        "REVIEW_CLOSED",
        "STEP_NOT_REACHED",
        "STEP_SUCCEEDED",
        "COMPENSATED",
        "NOTHING_TO_COMPENSATE",
        "UNKNOWN_SIGNAL",
        "TOO_MANY_SIGNALS",
        "APPROVAL_ENDED",
        "NOT_AN_APPROVER",
        "ACT_NOT_APPLICABLE",
        "ALREADY_VOTED",
    }
)


class CheckedRecords:
    """All records that the decisions about one job have written, and the checks of each new decision."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self.protocol: ProtocolDefinition | None = None
        self.steps: dict[str, Step] = {}
        self.alive: dict[str, Step] = {}
        self.rows: dict[str, OutboxRow] = {}
        self.pending: dict[str, OutboxRow] = {}
        self.history: dict[tuple[str, int], Attempt] = {}
        self.events: list[Event] = []
        self.quarantined: list[Quarantined] = []
        self.reviews: dict[str, ReviewItem] = {}
        self.counters: dict[str, int] = {}
        self.leases: dict[str, tuple[str, int]] = {}
        self.life = Life()

    def keep(self, decision: Decision, now: int, env: Env, inputs: int = 1) -> None:
        self._check_replies(decision)
        self._check_size(decision, inputs)
        self._check_version(decision, now)
        self._check_what_is_fixed(decision)
        self._check_runs(decision)
        self._check_cancel_starts_nothing(decision)
        self._check_pause_starts_nothing(decision)
        self._check_attempts_grow(decision)
        self._check_rows_settle_once(decision)
        self._check_ignored_changes_nothing(decision)
        self.life.keep(decision, self.steps)
        self._add(decision)
        self._check_history(decision)
        self._check_chain(decision)
        assert self.job is not None
        check_standing(
            Standing(
                job=self.job,
                protocol=decision.protocol,
                steps=self.steps,
                alive=self.alive,
                pending=self.pending,
                reviews=self.reviews,
                counters=self.counters,
                changed=[self.steps[step.step_id] for step in decision.steps],
            ),
            env,
        )

    def _add(self, decision: Decision) -> None:
        self.job, self.protocol = decision.job, decision.protocol
        for step in decision.steps:
            self.steps[step.step_id] = step
            self.alive.pop(step.step_id, None)
            if step.status not in TERMINAL_STEP:
                self.alive[step.step_id] = step
        for row in decision.outbox:
            self.rows[row.outbox_id] = row
            self.pending.pop(row.outbox_id, None)
            if row.status is OutboxStatus.PENDING:
                self.pending[row.outbox_id] = row
        for ended in decision.attempts:
            key = ended.step_id, ended.attempt.attempt_no
            assert key not in self.history, f"{key} went into the history twice"
            self.history[key] = ended.attempt
        self.events.extend(decision.events)
        self.quarantined.extend(decision.quarantined)
        for item in decision.reviews:
            self._check_review(item)
            self.reviews[item.review_id] = item
        for counter, move in decision.counters.items():
            self.counters[counter] = self.counters.get(counter, 0) + move

    def lose_row(self, outbox_id: str) -> None:
        """Lose an outbox row, as a store might. Only `Repair` may be fed next."""
        del self.rows[outbox_id]
        del self.pending[outbox_id]

    # Checks of the decision

    def _check_replies(self, decision: Decision) -> None:
        for reply in decision.replies:
            assert isinstance(reply, Applied | Ignored | Refused | CallbackReply)
            if isinstance(reply, Refused):
                assert reply.code in KNOWN_REFUSALS, reply
                assert reply.message
            if isinstance(reply, Ignored):
                assert reply.why

    def _check_size(self, decision: Decision, inputs: int) -> None:
        rows = chain(
            decision.steps,
            decision.attempts,
            decision.outbox,
            decision.events,
            decision.quarantined,
            decision.reviews,
        )
        allowed = MAX_ROWS + 6 * (inputs - 1)  # a decision that combines several inputs may write more rows
        assert 1 + len(list(rows)) <= allowed, "a decision touches too many rows"

    def _check_version(self, decision: Decision, now: int) -> None:
        was = self.job.version if self.job else 0
        assert decision.expected_version == was or not decision.changes
        assert decision.job.version == was + (1 if decision.changes else 0)
        seen = self.job.event_seq if self.job else 0
        assert [event.seq for event in decision.events] == list(range(seen + 1, seen + 1 + len(decision.events)))
        assert decision.job.event_seq == seen + len(decision.events)
        assert all(event.at == now and event.job_id == decision.job.job_id for event in decision.events)
        assert decision.creates is (self.job is None)

    def _check_what_is_fixed(self, decision: Decision) -> None:
        if self.job is None:
            return
        assert decision.job.routing == self.job.routing
        assert decision.job.command == self.job.command
        assert decision.job.protocol_digest == self.job.protocol_digest
        assert decision.job.signals[:0] == ()
        for step in decision.steps:
            before = self.steps.get(step.step_id)
            if before is not None:
                assert (step.index, step.service, step.created_at) == (before.index, before.service, before.created_at)

    def _check_runs(self, decision: Decision) -> None:
        """Check that an ended run is not changed: later changes belong to a new run."""
        was, now = self.job, decision.job
        if was is None:
            assert now.run_no == 1
            return
        opened = [event for event in decision.events if event.type == "RUN_STARTED"]
        assert now.run_no == was.run_no + len(opened)
        assert len(now.runs) == min(now.run_no - 1, 50)
        if not opened:
            assert now.runs == was.runs
            if not was.live:
                assert _same_but_for_the_review(was, now), "an ended job changed"
                assert not _moved(decision)
            return
        ended = now.runs[-1]
        assert ended.status in TERMINAL_JOB - {JobStatus.SUCCEEDED}
        if not was.live:
            assert (ended.run_no, ended.status, ended.error) == (was.run_no, was.status, was.error)
            assert ended.completed_at == was.completed_at

    def _check_cancel_starts_nothing(self, decision: Decision) -> None:
        was, now = self.job, decision.job
        if was is None or not (_cancelling(was) and _cancelling(now)):
            return
        adopted = sum(event.type == "RESULT_ADOPTED" for event in decision.events)
        assert now.attempts_total == was.attempts_total + adopted, "a cancelled job started something"

    def _check_pause_starts_nothing(self, decision: Decision) -> None:
        """Check that a paused job creates nothing, sends nothing and does not end."""
        was, now = self.job, decision.job
        if was is None or was.paused is None or now.paused != was.paused:
            return
        assert now.live
        assert now.status is was.status
        written = sum(event.type in ("RESULT_ADOPTED", "DRIFT_REPAIRED") for event in decision.events)
        assert now.attempts_total <= was.attempts_total + written, "a paused job started something"
        for step in decision.steps:
            before = self.steps[step.step_id]
            newly = step.attempt.claimed_at is not None and before.attempt.claimed_at is None
            assert not newly, "a paused job handed something out"

    def _check_attempts_grow(self, decision: Decision) -> None:
        for step in decision.steps:
            before = self.steps.get(step.step_id)
            attempt = step.attempt
            assert attempt.routing == decision.job.routing, "an attempt must keep the routing decided at ingress"
            assert attempt.attempt_no >= (before.attempt.attempt_no if before else 1)
            if before is not None and attempt.attempt_no == before.attempt.attempt_no:
                assert attempt.lease_id == before.attempt.lease_id
                assert attempt.created_at == before.attempt.created_at
            else:
                assert attempt.lease_id not in self.leases, "a lease was given out twice"
                self.leases[attempt.lease_id] = (step.step_id, attempt.attempt_no)

    def _check_rows_settle_once(self, decision: Decision) -> None:
        for row in decision.outbox:
            before = self.rows.get(row.outbox_id)
            assert before is None or before.status is OutboxStatus.PENDING, f"{row.outbox_id} left {before}"
            assert (row.settled_at is None) is (row.status is OutboxStatus.PENDING)

    def _check_ignored_changes_nothing(self, decision: Decision) -> None:
        """Check that DUPLICATE, LATE and STALE write only an event, Ignored and Refused nothing."""
        was = self.job
        if was is None or not all(_changes_nothing(reply) for reply in decision.replies) or _left_over(was):
            return
        assert _same_but_for_version_and_events(was, decision.job)
        assert not _moved(decision)
        recorded = [reply for reply in decision.replies if isinstance(reply, CallbackReply)]
        assert len(decision.events) == len(recorded)
        assert decision.changes is bool(recorded)

    def _check_review(self, item: ReviewItem) -> None:
        before = self.reviews.get(item.review_id)
        if before is not None:
            assert before.created_at == item.created_at or item.status is ReviewStatus.OPEN
        assert (item.resolved_by is not None) is (item.status is not ReviewStatus.OPEN)

    # Checks of what it wrote

    def _check_history(self, decision: Decision) -> None:
        """Check that attempts are numbered without gaps and enter the history once, as they ended."""
        for ended in decision.attempts:
            assert ended.attempt.ended_at is not None
            assert ended.attempt.outcome is not None
            number = ended.attempt.attempt_no
            assert number == 1 or (ended.step_id, number - 1) in self.history, "the history has a gap"
        for step in decision.steps:
            number, ended_now = step.attempt.attempt_no, step.status in TERMINAL_STEP
            assert number == 1 or (step.step_id, number - 1) in self.history, "the history has a gap"
            assert ((step.step_id, number) in self.history) is ended_now
            if ended_now:
                assert self.history[step.step_id, number] == step.attempt

    def _check_chain(self, decision: Decision) -> None:
        """Verify the hash chain: always while it is short, sometimes once it is long."""
        if len(self.events) < 40 or decision.job.version % 64 == 0:
            assert verify_events(self.events, decision.job.event_seq, decision.job.event_hash).breaks == []


def _cancelling(job: Job) -> bool:
    return job.status is JobStatus.CANCELLING and job.compensation is None


def _left_over(job: Job) -> bool:
    """Return True if the previous decision reached its limit and left work to the next one."""
    return job.live and job.due_at is not None and job.due_at <= job.updated_at and job.status is not JobStatus.QUEUED


def _moved(decision: Decision) -> list[object]:
    rows = [row for row in decision.outbox if row.service != WEBHOOK_SERVICE]  # the webhook about an end follows it
    return [*decision.steps, *decision.attempts, *rows, *decision.counters]


def _changes_nothing(reply: object) -> bool:
    if isinstance(reply, CallbackReply):
        return reply.disposition is not Disposition.APPLIED
    return isinstance(reply, Ignored | Refused)


def _same_but_for_version_and_events(before: Job, after: Job) -> bool:
    changed = {"version": before.version, "event_seq": before.event_seq, "event_hash": before.event_hash}
    return replace(after, **changed) == before


def _same_but_for_the_review(before: Job, after: Job) -> bool:
    return _same_but_for_version_and_events(before, replace(after, review=before.review, updated_at=before.updated_at))
