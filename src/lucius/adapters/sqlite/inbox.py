"""What was heard and has yet to become part of a job's history.

Letters become durable together, with all that is decided in the same turn of the event loop: a flush for each of them
would keep the loop waiting longer than anything else does.
"""

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress

from msgspec import Struct

from lucius.adapters.group_commit import settle
from lucius.adapters.sqlite.store import Row, Store, Write
from lucius.core.model import Instant
from lucius.ports.errors import LedgerBusy, LedgerError
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


class _Parcel(Struct, frozen=True, eq=False):
    """Letters that somebody puts in together."""

    letters: Sequence[Letter]
    arrived: asyncio.Future[None]

    @property
    def rows(self) -> list[Row]:
        return [(letter.letter_id, letter.job_id, letter.at, letter.body) for letter in self.letters]


class SqliteInbox:
    """Implements Inbox."""

    _store: Store

    def __init__(self) -> None:
        self._thrown_away: dict[str, None] = {}
        """Deleted by the next write."""
        self._coming: dict[str, _Parcel] = {}
        """Put in by the next write, by letter."""

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """A write, at the end of this turn of the loop."""
        raise NotImplementedError

    async def put(self, letters: Sequence[Letter]) -> list[bool]:
        new: dict[str, Letter] = {}
        for letter in letters:
            if self._is_new(letter.letter_id):
                new.setdefault(letter.letter_id, letter)
        if new:
            loop = asyncio.get_running_loop()
            parcel = _Parcel(list(new.values()), loop.create_future())
            parcel.arrived.add_done_callback(lambda done: done.exception())  # should all who wait be cut off
            self._coming |= dict.fromkeys(new, parcel)
            self._schedule(loop)
        for parcel in [self._coming[letter.letter_id] for letter in letters if letter.letter_id in self._coming]:
            await asyncio.shield(parcel.arrived)
        return [new.get(letter.letter_id) is letter for letter in letters]

    def _is_new(self, letter_id: str) -> bool:
        if letter_id in self._coming:
            return False
        return letter_id in self._thrown_away or self._store.row(_KNOWN, (letter_id,)) is None

    async def throw_away(self, letter_ids: Collection[str], *, lazily: bool = False) -> None:
        if not self._coming.keys().isdisjoint(letter_ids):
            self._write_letters()  # a write deletes before it puts in
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
        """Whatever is written takes along what is to be deleted, and what is to be put in unless that is in its way."""
        parcels = self._parcels()
        try:
            self._write_with(writes, parcels)
        except LedgerBusy as busy:  # who waited for it once need not do so again
            for parcel in parcels:
                self._come(parcel, busy)
            raise
        except Exception:
            if not parcels:
                raise
            self._write_with(writes, ())

    def _write_letters(self) -> None:
        """Those that nothing took along; if need be one by one, so that none is in the way of another."""
        parcels = self._parcels()
        refusal = self._refusal(parcels) if parcels else None
        if refusal is None:
            return
        apart = len(parcels) > 1 and not isinstance(refusal, LedgerBusy)
        for parcel in parcels:
            its_own = self._refusal([parcel]) if apart else refusal
            if its_own is not None:
                self._come(parcel, its_own)

    def _refusal(self, parcels: Sequence[_Parcel]) -> Exception | None:
        try:
            self._write_with((), parcels)
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits must hear of it
            return error
        return None

    def _write_with(self, writes: Sequence[Write], parcels: Sequence[_Parcel]) -> None:
        thrown_away = list(self._thrown_away)
        deleted: Write = (_DELETE, [(letter_id,) for letter_id in thrown_away])
        put: Write = (_PUT, [row for parcel in parcels for row in parcel.rows])
        if thrown_away or writes or parcels:
            self._store.write([*([deleted] if thrown_away else ()), *writes, *([put] if parcels else ())])
        for letter_id in thrown_away:
            self._thrown_away.pop(letter_id, None)
        for parcel in parcels:
            self._come(parcel, None)

    def _parcels(self) -> list[_Parcel]:
        return list(dict.fromkeys(self._coming.values()))

    def _come(self, parcel: _Parcel, refusal: Exception | None) -> None:
        for letter in parcel.letters:
            self._coming.pop(letter.letter_id, None)
        settle(parcel.arrived, refusal)
