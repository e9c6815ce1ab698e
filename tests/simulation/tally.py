"""Many seeds added up, and the least that must have happened in them: a simulation must not pass by doing nothing."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from msgspec import Struct, field

from lucius.core.model import JobStatus
from tests.simulation.faults import EVENTS, RATES
from tests.simulation.world import Outcome

# In a hundred seeds on average; about a third of what is usual.
LEAST_OF_100: dict[str, int] = {
    "request_lost": 70,
    "request_doubled": 90,
    "request_delayed": 250,
    "reply_lost": 50,
    "reply_delayed": 90,
    "publish_refused": 8,
    "publish_unknown_sent": 5,
    "publish_unknown_lost": 7,
    "message_lost": 4,
    "message_doubled": 7,
    "message_delayed": 15,
    "delivered_twice": 7,
    "publish_on_a_bus_that_is_down": 25,
    "ledger_conflict": 60,
    "conflict_of_replicas": 10,
    "commit_refused_full": 100,
    "limit_reached": 150,
    "crash": 40,
    "frozen": 15,
    "DRIFT_REPAIRED": 3,
    "DEADLINE_EXTENDED": 20,
    "downtime_result_APPLIED": 12,
    "service_crashed": 10,
    "service_contradicted": 10,
    "service_failed_retryable": 14,
    "CALLBACK_ACK_DUPLICATE": 10,
    "CALLBACK_RESULT_DUPLICATE": 20,
    "CALLBACK_RESULT_LATE": 15,
    "CALLBACK_RESULT_STALE": 12,
    "retry_after_ACK_TIMEOUT": 40,
    "retry_after_LEASE_EXPIRED": 10,
    "retry_after_FAILED": 15,
    "retry_after_HANDOVER_FAILED": 6,
    "CANCEL_REQUESTED": 10,
}
SUCCEEDED_OF_100 = 350

# Rarer than that, but in two thousand seeds they happen.
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
        """What happened too rarely for this many seeds; few seeds need slack, because each has its own mix."""
        least = {kind: n * self.seeds // 100 // slack for kind, n in LEAST_OF_100.items()}
        seen = {kind: self.counts.get(kind, 0) for kind in least}
        return [f"{kind}: {seen[kind]} < {n}" for kind, n in least.items() if seen[kind] < n]

    def never(self, kinds: Iterable[str] = SEEN_IN_2000) -> list[str]:
        return [kind for kind in kinds if not self.counts.get(kind)]


def _plus(one: dict[str, int], other: dict[str, Any]) -> dict[str, int]:
    return dict(Counter(one) + Counter(other))
