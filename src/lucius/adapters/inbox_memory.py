"""What was heard and has yet to become part of a job's history, kept in a dictionary."""

from collections.abc import Collection, Sequence

from lucius.core.model import Instant
from lucius.ports.inbox import Letter


class MemoryInbox:
    """Implements Inbox."""

    def __init__(self) -> None:
        self._letters: dict[str, Letter] = {}

    async def put(self, letters: Sequence[Letter]) -> list[bool]:
        return [self._letters.setdefault(letter.letter_id, letter) is letter for letter in letters]

    async def throw_away(self, letter_ids: Collection[str], *, lazily: bool = False) -> None:
        for letter_id in letter_ids:
            self._letters.pop(letter_id, None)

    async def unread(self, before: Instant, limit: int, after: Letter | None = None) -> list[Letter]:
        read = (after.at, after.letter_id) if after is not None else (-1, "")
        places = {(letter.at, letter.letter_id): letter for letter in self._letters.values() if letter.at < before}
        return [places[place] for place in sorted(places) if place > read][:limit]

    async def letters(self, letter_ids: Collection[str]) -> list[Letter]:
        return [self._letters[letter_id] for letter_id in dict.fromkeys(letter_ids) if letter_id in self._letters]

    def announce(self, letter_ids: Collection[str]) -> None:
        """There is nobody else."""
