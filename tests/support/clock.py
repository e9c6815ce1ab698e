"""A clock that tests advance."""

EPOCH_MS = 1_800_000_000_000


class ManualClock:
    def __init__(self, now: int = EPOCH_MS) -> None:
        self.time = now

    def now(self) -> int:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += round(seconds * 1000)
