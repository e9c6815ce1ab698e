"""Progress of an attempt: a fraction from 0 to 1, and counts if the service reports them."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the CLI describes progress, too, and need not load the core for it
    from lucius.core.model.inputs import Heartbeat
    from lucius.core.model.records import Attempt, ProgressCounts


class Counts(Protocol):
    """Interface shared by the counts of the core and of the message contract."""

    @property
    def done(self) -> int: ...

    @property
    def total(self) -> int | None: ...

    @property
    def unit(self) -> str: ...


def progress_after(attempt: "Attempt", heartbeat: "Heartbeat") -> "tuple[float | None, ProgressCounts | None]":
    """Return fraction and counts after a heartbeat; one without progress leaves both unchanged."""
    if heartbeat.counts is not None:
        return fraction_of(heartbeat.counts), heartbeat.counts
    if heartbeat.progress is not None:
        return heartbeat.progress, None
    return attempt.progress, attempt.counts


def fraction_of(counts: Counts) -> float | None:
    """Return the fraction done, at most 1; None if the total is unknown."""
    return min(1.0, counts.done / counts.total) if counts.total else None


def usable_total(counts: Counts) -> int | None:
    """Return the total; None if it is unknown, or wrong because more is done."""
    return counts.total if counts.total is not None and counts.done <= counts.total else None


def describe_progress(fraction: float | None, counts: Counts | None) -> str:
    """Describe progress: "page 7 of 20", without a total "page 7" or "7 done", else "35% done", else nothing."""
    if counts is None:
        return f"{fraction:.0%} done" if fraction is not None else ""
    unit = f"{counts.unit} " if counts.unit else ""
    if total := usable_total(counts):
        return f"{unit}{counts.done} of {total}"
    return f"{unit}{counts.done}" if unit else f"{counts.done} done"
