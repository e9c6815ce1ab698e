"""Builds ledgers as the last development version made them, before migrations were squashed to version 1."""

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.support.postgres import PostgresServer

DATA = Path(__file__).parents[1] / "data"
LAST_VERSION = 8


def create_development_file(path: Path, version: int = LAST_VERSION) -> None:
    """Create a SQLite ledger with one job that records this schema version."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        fill_development_file(connection, version)


def fill_development_file(connection: sqlite3.Connection, version: int = LAST_VERSION) -> None:
    connection.executescript((DATA / "development_ledger.sqlite.sql").read_text())
    connection.execute(f"PRAGMA user_version = {version}")


def create_development_schema(server: PostgresServer, url: str, version: int = LAST_VERSION) -> str:
    """Create a PostgreSQL ledger with one job, as the schema that the URL names. Returns the schema's name."""
    (schema,) = parse_qs(urlsplit(url).query)["schema"]
    script = (DATA / "development_ledger.postgres.sql").read_text()
    server.execute(script.replace("development.", f"{schema}.").replace("SCHEMA development;", f"SCHEMA {schema};"))
    server.execute(f"DELETE FROM {schema}.schema_version WHERE version > {version}")
    return schema
