"""What all replicas sign with."""

from lucius.adapters.postgres.database import Database

_KEEP = "INSERT INTO secrets (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING"


class PostgresSecrets:
    """Implements SharedSecrets."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def secret(self, name: str, made: str) -> str:
        async with self._database.connection() as connection:
            await connection.execute(_KEEP, name, made)
            return str(await connection.fetchval("SELECT value FROM secrets WHERE name = $1", name))
