"""What was heard and has yet to become part of a job's history. Looks and writes follow each other undisturbed."""

from collections.abc import Collection, Sequence

from lucius.adapters.sqlite.store import Store
from lucius.core.model import Instant
from lucius.ports.inbox import Letter

_KNOWN = "SELECT 1 FROM inbox WHERE letter_id = ?"
_PUT = "INSERT INTO inbox (letter_id, job_id, at, body) VALUES (?, ?, ?, ?)"
_DELETE = "DELETE FROM inbox WHERE letter_id = ?"
_UNREAD = """
    SELECT letter_id, job_id, body, at FROM inbox WHERE at < ? AND (at, letter_id) > (?, ?)
    ORDER BY at, letter_id LIMIT ?
"""


class SqliteInbox:
    """Implements Inbox."""

    _store: Store

    async def put(self, letters: Sequence[Letter]) -> list[bool]:
        new: dict[str, Letter] = {}
        for letter in letters:
            if self._store.row(_KNOWN, (letter.letter_id,)) is None:
                new.setdefault(letter.letter_id, letter)
        put = [(letter.letter_id, letter.job_id, letter.at, letter.body) for letter in new.values()]
        if put:
            self._store.write([(_PUT, put)])
        return [new.get(letter.letter_id) is letter for letter in letters]

    async def throw_away(self, letter_ids: Collection[str]) -> None:
        if letter_ids:
            self._store.write([(_DELETE, [(letter_id,) for letter_id in letter_ids])])

    async def unread(self, before: Instant, limit: int, after: Letter | None = None) -> list[Letter]:
        read = (after.at, after.letter_id) if after is not None else (-1, "")
        return [Letter(*row) for row in self._store.rows(_UNREAD, (before, *read, limit))]
