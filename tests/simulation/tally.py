"""Sums over many seeds, with minimum counts, so that a simulation cannot pass by doing nothing."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from lucius.core.model.statuses import JobStatus
from tests.simulation.faults import EVENTS, RATES
from tests.simulation.world import Outcome

# Minimum per hundred seeds on average; about a third of the usual count.
LEAST_OF_100: dict[str, int] = {
    "request_lost": 70,
    "request_doubled": 90,
    "request_delayed": 230,
    "reply_lost": 45,
    "reply_delayed": 90,
    "publish_refused": 7,
    "publish_unknown_sent": 4,
    "publish_unknown_lost": 5,
    "message_lost": 3,
    "message_doubled": 6,
    "message_delayed": 11,
    "delivered_twice": 6,
    "publish_on_a_bus_that_is_down": 25,
    "ledger_conflict": 60,
    "conflict_of_replicas": 12,
    "commit_refused_full": 100,
    "limit_reached": 150,
    "crash": 40,
    "frozen": 20,
    "DRIFT_REPAIRED": 3,
    "DEADLINE_EXTENDED": 20,
    "downtime_result_APPLIED": 11,
    "service_crashed": 9,
    "service_contradicted": 8,
    "service_failed_retryable": 12,
    "CALLBACK_ACK_DUPLICATE": 9,
    "CALLBACK_RESULT_DUPLICATE": 17,
    "CALLBACK_RESULT_LATE": 16,
    "CALLBACK_RESULT_STALE": 10,
    "retry_after_ACK_TIMEOUT": 25,
    "retry_after_LEASE_EXPIRED": 8,
    "retry_after_FAILED": 15,
    "retry_after_HANDOVER_FAILED": 6,
    "CANCEL_REQUESTED": 18,
    # From varied worlds (protocols of every kind, operators), which are every second one.
    "STEP_STARTED": 50,
    "STEP_WAITING": 30,
    "APPROVAL_REQUESTED": 30,
    "STEP_APPROVED": 20,
    "STEP_REJECTED": 6,
    "SIGNAL_RECEIVED": 17,
    "JOB_PAUSED": 23,
    "JOB_RESUMED": 20,
    "JOB_HELD": 5,
    "RUN_STARTED": 22,
    "STEP_SKIPPED": 4,
    "COMPENSATION_STARTED": 6,
    "STEP_COMPENSATED": 4,
    "REVIEW_CLOSED": 20,
    "retry_GRANTED": 12,
    "retry_from_GRANTED": 3,
    "discard_GRANTED": 4,
    "resume_REVIEW_OPEN": 1,
    "vote_APPROVAL_ENDED": 5,
    "signal_UNKNOWN_SIGNAL": 9,
    "service_half_done": 3,
    "call_failed": 2,
    "call_lost": 2,
}
SUCCEEDED_OF_100 = 250

# Rarer events, which two thousand seeds must show at least once.
SEEN_IN_2000 = (
    *RATES,
    *EVENTS,
    *LEAST_OF_100,
    "commit_lost_in_crash",
    "commit_survived_crash",
    "HANDOVER_RETRY_REQUESTED",
    "retry_after_STEP_TIMEOUT",
    "CALLBACK_ACK_STALE",
    "CALLBACK_ACK_LATE",
    "CALLBACK_HEARTBEAT_STALE",
    "drift_row",
    "drift_clock",
    "RESULT_ADOPTED",
    "COMPENSATION_COMPLETED",
    "COMPENSATION_HALTED",
    "COMPENSATION_REQUESTED",
    "COMPENSATION_RESUMED",
    "adopt_STEP_SUCCEEDED",
    "cancel_COMPENSATING",
    "compensate_NOTHING_TO_COMPENSATE",
    "pause_JOB_CANCELLING",
    "retry_JOB_LIVE",
    "retry_TENANT_LIMIT",
    "retry_from_STEP_NOT_REACHED",
    "skip_COMPENSATED",
    "vote_ALREADY_VOTED",
    "vote_NOT_AN_APPROVER",
    "weigh_GRANTED",
)


class Tally(Struct):
    seeds: int = 0
    steps: int = 0
    virtual_seconds: float = 0.0
    jobs: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, other: "Outcome | Tally") -> None:
        self.seeds += other.seeds if isinstance(other, Tally) else 1
        self.steps += other.steps
        self.virtual_seconds += other.virtual_seconds
        self.jobs = _plus(self.jobs, {str(status): n for status, n in other.jobs.items()})
        self.counts = _plus(self.counts, other.counts)

    @property
    def succeeded(self) -> int:
        return self.jobs.get(JobStatus.SUCCEEDED, 0)

    def missing(self, slack: int = 1) -> list[str]:
        """Return what happened too rarely for this many seeds; a few seeds need slack, as each has its own mix."""
        least = {kind: n * self.seeds // 100 // slack for kind, n in LEAST_OF_100.items()}
        seen = {kind: self.counts.get(kind, 0) for kind in least}
        return [f"{kind}: {seen[kind]} < {n}" for kind, n in least.items() if seen[kind] < n]

    def never(self, kinds: Iterable[str] = SEEN_IN_2000) -> list[str]:
        return [kind for kind in kinds if not self.counts.get(kind)]


def _plus(one: dict[str, int], other: dict[str, Any]) -> dict[str, int]:
    return dict(Counter(one) + Counter(other))
