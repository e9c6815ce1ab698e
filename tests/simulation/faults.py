"""Kinds of faults, their rates and their counts. Every seed draws its own mix, so that some faults meet alone."""

import random
from collections import Counter

# Probability per opportunity, in a seed that has this fault at all.
RATES: dict[str, float] = {
    "request_lost": 0.05,
    "request_doubled": 0.06,
    "request_delayed": 0.15,
    "reply_lost": 0.05,
    "reply_delayed": 0.10,
    "publish_refused": 0.08,
    "publish_unknown_sent": 0.05,
    "publish_unknown_lost": 0.05,
    "publish_hung_sent": 0.03,
    "publish_hung_lost": 0.03,
    "message_lost": 0.04,
    "message_doubled": 0.08,
    "message_delayed": 0.15,
    "ledger_conflict": 0.06,
    "ledger_full": 0.03,
    "ledger_slow": 0.25,
    "service_crashed": 0.06,
    "service_did_not_ack": 0.05,
    "service_silent": 0.06,
    "service_contradicted": 0.06,
    "service_failed_retryable": 0.08,
    "service_failed_for_good": 0.03,
    "service_rate_limited": 0.03,
    "service_half_done": 0.10,
    "undo_failed": 0.4,
    "service_dependency_failed": 0.03,
    "call_lost": 0.08,
    "call_slowed": 0.05,
    "call_half_done": 0.05,
    "call_failed": 0.10,
    "call_hung": 0.05,
    "call_answer_lost": 0.08,
    "client_repeated": 0.20,
    "client_reused_key": 0.10,
    "client_cancelled": 0.15,
}

# Most occurrences of each event in one seed, at random moments.
EVENTS: dict[str, int] = {"crash": 4, "freeze": 2, "bus_down": 2, "disk_full": 1, "drift": 2, "outbox_retry": 2}


class Faults:
    """Random faults of one seed; none occurs while `on` is False."""

    def __init__(self, rng: random.Random) -> None:
        self.calm = rng.random() < 0.04  # a world without faults, in which nothing may fail
        self.on = not self.calm
        self.counts: Counter[str] = Counter()
        self._rng = rng
        self._rates = {kind: self._mix(rate) for kind, rate in RATES.items()}
        self.planned = {kind: rng.randint(0, most) if rng.random() < 0.7 else 0 for kind, most in EVENTS.items()}

    def _mix(self, rate: float) -> float:
        return 0.0 if self._rng.random() < 0.35 else rate * self._rng.uniform(0.4, 2.0)

    def hit(self, kind: str) -> bool:
        """Return True if this fault strikes now, and count it."""
        if not self.on or self._rng.random() >= self._rates[kind]:
            return False
        self.counts[kind] += 1
        return True

    def saw(self, what: str) -> None:
        self.counts[what] += 1
