"""Trace of a seed: its hash tells whether two runs were the same, its lines explain a failure."""

import asyncio
import hashlib


class Broken(AssertionError):
    """An invariant does not hold."""


class Trace:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lines: list[tuple[float, str, str, tuple[object, ...]]] = []

    def note(self, who: str, job_id: str, *what: object) -> None:
        """Append one line. `what` must print the same in every run: no addresses, no sets."""
        self._lines.append((self._loop.time(), who, job_id, what))

    def digest(self) -> str:
        lines = hashlib.sha256()
        for line in self._lines:
            lines.update(repr(line).encode())
        return lines.hexdigest()

    def about(self, job_id: str) -> str:
        """Return the lines of one job and of events that concern all jobs; of everything if `job_id` is empty."""
        wanted = (line for line in self._lines if not job_id or line[2] in ("", job_id))
        return "\n".join(f"  {at:9.3f}s {who:<12} {' '.join(map(str, what))}" for at, who, _, what in wanted)
