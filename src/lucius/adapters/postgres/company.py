"""Which other processes are there, as far as they were heard lately."""

from collections.abc import Callable

REMEMBERED_SECONDS = 150.0
LOOKERS = 4
MOST_STRETCH, MOST_SWEEPERS_STRETCH = 8.0, 4.0


class Company:
    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._until = 0.0
        self._all: dict[int, float] = {}
        self._sweepers: dict[int, float] = {}
        self._counted = self._counted_sweepers = 0
        self.sweeps = False
        """Whether this process minds the deadlines."""

    def counted(self, others: int, sweepers: int) -> None:
        """So many are there, whoever they are."""
        self._counted, self._counted_sweepers = others, sweepers
        if others:
            self._until = self._steady() + REMEMBERED_SECONDS

    def meet(self, sender: int, sweeps: bool) -> None:
        self._until = self._steady() + REMEMBERED_SECONDS
        self._all[sender] = self._steady()
        if sweeps:
            self._sweepers[sender] = self._steady()

    def alone(self) -> bool:
        return self._steady() > self._until

    def stretch(self) -> float:
        """How much rarer each may look: together they look twice a second, and what one finds it tells the others."""
        return min(self._shared_by(self._all, self._counted), MOST_STRETCH)

    def sweepers_stretch(self) -> float:
        """The same of those who mind the deadlines."""
        return min(self._shared_by(self._sweepers, self._counted_sweepers), MOST_SWEEPERS_STRETCH)

    def _shared_by(self, seen: dict[int, float], counted: int) -> float:
        if self.alone():
            return 1.0
        oldest = self._steady() - REMEMBERED_SECONDS
        for sender in [sender for sender, at in seen.items() if at < oldest]:
            del seen[sender]
        return max(1.0, (max(len(seen), counted) + 1) / LOOKERS)
