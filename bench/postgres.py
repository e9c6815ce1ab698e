"""PostgreSQL server for measurements, on disk, with every commit flushed as in production."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.postgres import DATABASE, PostgresServer, binaries

SETTINGS = {
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_level": "replica",
    "shared_buffers": "256MB",
    # No automatic checkpoint during a run.
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "max_connections": "1000",
}


class Server:
    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self.pid: int = self.ask("SELECT split_part(pg_read_file('postmaster.pid'), E'\\n', 1)::int")

    def url(self, database: str = DATABASE) -> str:
        return self._server.url().removesuffix(f"/{DATABASE}") + f"/{database}"

    def create(self, database: str, template: str = "template0") -> str:
        """Create a database, empty or a copy of `template`, and return its URL."""
        self._server.query(f'CREATE DATABASE "{database}" TEMPLATE "{template}"')
        return self.url(database)

    def drop(self, database: str) -> None:
        self._server.query(f'DROP DATABASE "{database}" WITH (FORCE)')

    def ask(self, statement: str) -> int:
        ((number,),) = (row.values() for row in self._server.query(statement))
        return int(number)


@contextmanager
def postgres(**settings: str) -> Iterator[Server]:
    """Yield a server; raise SystemExit if PostgreSQL is not installed."""
    if binaries() is None:
        raise SystemExit("PostgreSQL is not installed here, or not on PATH")
    server = PostgresServer(fsync=True, **{**SETTINGS, **settings})
    try:
        server.start()
        yield Server(server)
    finally:
        server.remove()
