"""Signing secrets shared by all replicas."""

from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.sql_files import load_statements

_SQL = load_statements(__package__, "secrets")
_KEEP = _SQL["keep"]


class PostgresSecrets:
    """Implements SharedSecrets with a table; the first replica to store a secret wins."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def secret(self, name: str, made: str) -> str:
        async with self._database.connection() as connection:
            await connection.execute(_KEEP, name, made)
            return str(await connection.fetchval(_SQL["secret"], name))
