"""What was heard and has yet to become part of a job's history."""

from collections.abc import Collection, Sequence

from lucius.adapters.postgres.database import Database
from lucius.core.model import Instant
from lucius.ports.inbox import Letter

_PUT = """
    INSERT INTO inbox (letter_id, job_id, at, body)
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
    ON CONFLICT DO NOTHING RETURNING letter_id
"""
_DELETE = "DELETE FROM inbox WHERE letter_id = ANY ($1)"
_DELETE_LAZILY = """
    WITH soon AS (SELECT set_config('synchronous_commit', 'off', true))
    DELETE FROM inbox USING soon WHERE letter_id = ANY ($1)
"""
_UNREAD = """
    SELECT letter_id, job_id, body, at FROM inbox WHERE at < $1 AND (at, letter_id) > ($2, $3)
    ORDER BY at, letter_id LIMIT $4
"""
_LETTERS = "SELECT letter_id, job_id, body, at FROM inbox WHERE letter_id = ANY ($1)"


class PostgresInbox:
    """Implements Inbox, but for what is announced."""

    _database: Database

    async def put(self, letters: Sequence[Letter]) -> list[bool]:
        one_of_each = {letter.letter_id: letter for letter in reversed(letters)}
        in_order = [one_of_each[letter_id] for letter_id in sorted(one_of_each)]  # or two might wait for each other
        columns = [[getattr(letter, name) for letter in in_order] for name in ("letter_id", "job_id", "at", "body")]
        async with self._database.connection() as connection:
            new = {row["letter_id"] for row in await connection.fetch(_PUT, *columns)}
        return [letter.letter_id in new and one_of_each[letter.letter_id] is letter for letter in letters]

    async def throw_away(self, letter_ids: Collection[str], *, lazily: bool = False) -> None:
        if letter_ids:
            async with self._database.connection() as connection:
                await connection.execute(_DELETE_LAZILY if lazily else _DELETE, list(letter_ids))

    async def unread(self, before: Instant, limit: int, after: Letter | None = None) -> list[Letter]:
        read = (after.at, after.letter_id) if after is not None else (-1, "")
        return [Letter(**row) for row in await self._database.rows(_UNREAD, before, *read, limit)]

    async def letters(self, letter_ids: Collection[str]) -> list[Letter]:
        asked = list(dict.fromkeys(letter_ids))
        found = {row["letter_id"]: Letter(**row) for row in await self._database.rows(_LETTERS, asked)}
        return [found[letter_id] for letter_id in asked if letter_id in found]
