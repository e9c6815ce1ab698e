"""What was heard and has yet to become part of a job's history. Looks and writes follow each other undisturbed."""

from collections.abc import Collection, Sequence
from contextlib import suppress

from lucius.adapters.sqlite.store import Store, Write
from lucius.core.model import Instant
from lucius.ports.errors import LedgerError
from lucius.ports.inbox import Letter

_KNOWN = "SELECT 1 FROM inbox WHERE letter_id = ?"
_PUT = "INSERT INTO inbox (letter_id, job_id, at, body) VALUES (?, ?, ?, ?)"
_DELETE = "DELETE FROM inbox WHERE letter_id = ?"
_UNREAD = """
    SELECT letter_id, job_id, body, at FROM inbox WHERE at < ? AND (at, letter_id) > (?, ?)
    ORDER BY at, letter_id LIMIT ?
"""
_LETTER = "SELECT letter_id, job_id, body, at FROM inbox WHERE letter_id = ?"
MOST_THROWN_AWAY = 1_000


class SqliteInbox:
    """Implements Inbox."""

    _store: Store

    def __init__(self) -> None:
        self._thrown_away: dict[str, None] = {}
        """Deleted by the next write."""

    async def put(self, letters: Sequence[Letter]) -> list[bool]:
        new: dict[str, Letter] = {}
        for letter in letters:
            if letter.letter_id in self._thrown_away or self._store.row(_KNOWN, (letter.letter_id,)) is None:
                new.setdefault(letter.letter_id, letter)
        put = [(letter.letter_id, letter.job_id, letter.at, letter.body) for letter in new.values()]
        if put:
            self._write_along([(_PUT, put)])
        return [new.get(letter.letter_id) is letter for letter in letters]

    async def throw_away(self, letter_ids: Collection[str], *, lazily: bool = False) -> None:
        self._thrown_away |= dict.fromkeys(letter_ids)
        if not lazily or len(self._thrown_away) > MOST_THROWN_AWAY:
            self._write_along(())

    async def unread(self, before: Instant, limit: int, after: Letter | None = None) -> list[Letter]:
        read = (after.at, after.letter_id) if after is not None else (-1, "")
        with suppress(LedgerError):  # who can't write can still read
            self._write_along(())
        found = self._store.rows(_UNREAD, (before, *read, limit + len(self._thrown_away)))
        letters = (Letter(*row) for row in found)
        return [letter for letter in letters if letter.letter_id not in self._thrown_away][:limit]

    async def letters(self, letter_ids: Collection[str]) -> list[Letter]:
        asked = (letter_id for letter_id in dict.fromkeys(letter_ids) if letter_id not in self._thrown_away)
        found = (self._store.row(_LETTER, (letter_id,)) for letter_id in asked)
        return [Letter(*row) for row in found if row is not None]

    def announce(self, letter_ids: Collection[str]) -> None:
        """There is nobody else."""

    def _write_along(self, writes: Sequence[Write]) -> None:
        thrown_away = list(self._thrown_away)
        if thrown_away or writes:
            self._store.write([(_DELETE, [(letter_id,) for letter_id in thrown_away]), *writes])
        for letter_id in thrown_away:
            self._thrown_away.pop(letter_id, None)
