"""Which other processes are there, as far as they were heard lately."""

from collections.abc import Callable

from lucius.ports.peers import MOST_STRETCH

REMEMBERED_SECONDS = 150.0
LOOKERS = 4
MOST_POLL_STRETCH = 8.0


class Company:
    def __init__(self, steady: Callable[[], float]) -> None:
        self._steady = steady
        self._alone = False
        self._counted_at = self._changed_at = -REMEMBERED_SECONDS
        self._all: dict[int, float] = {}
        self._sweepers: dict[int, float] = {}
        self._counted = self._counted_sweepers = 0
        self.sweeps = False
        """Whether this process minds the deadlines."""
        self.serves: Callable[[], bool] = lambda: False
        """Whether services can speak to this process."""

    def counted(self, others: int, sweepers: int, asked: float) -> bool:
        """So many listened when we asked, whoever they are. Whether we are alone now and were not before."""
        if not others and self._changed_at >= asked:
            return False  # somebody has come since, or may have come unheard
        was_alone = self.alone()
        self._counted, self._counted_sweepers, self._counted_at = others, sweepers, self._steady()
        self._alone = others == 0
        return self._alone and not was_alone

    def meet(self, sender: int, sweeps: bool) -> None:
        self._alone, self._changed_at = False, self._steady()
        self._all[sender] = self._steady()
        if sweeps:
            self._sweepers[sender] = self._steady()

    def hear_nobody(self) -> None:
        """The line is gone: whoever comes now can't say so."""
        self._alone, self._changed_at = False, self._steady()

    def alone(self) -> bool:
        """Nobody else listened when they were counted, not long ago, and nobody has come since."""
        return self._alone and self._steady() - self._counted_at < REMEMBERED_SECONDS

    def stretch(self) -> float:
        """How much rarer each may look: together they look twice a second, and what one finds it tells the others."""
        return min(self._shared_by(self._all, self._counted), MOST_POLL_STRETCH)

    def sweepers_stretch(self) -> float:
        """The same of those who mind the deadlines."""
        return min(self._shared_by(self._sweepers, self._counted_sweepers), MOST_STRETCH)

    def _shared_by(self, seen: dict[int, float], counted: int) -> float:
        if self.alone():
            return 1.0
        oldest = self._steady() - REMEMBERED_SECONDS
        for sender in [sender for sender, at in seen.items() if at < oldest]:
            del seen[sender]
        return max(1.0, (max(len(seen), counted) + 1) / LOOKERS)
