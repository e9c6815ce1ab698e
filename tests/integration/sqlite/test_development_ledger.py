"""Ledgers from before version 1 counted to 8: no such version may be taken for one of ours, and none is altered."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lucius.adapters.ledger.sqlite.schema import DEVELOPMENT_APPLICATION_IDS, MIGRATIONS, Migration
from lucius.adapters.ledger.sqlite.store import open_sqlite
from lucius.ports.errors import LedgerError, LedgerTooNew, LedgerTooOld
from tests.conformance.builders import accept
from tests.support.development_ledger import LAST_VERSION, create_development_file, fill_development_file

KNOWN = len(MIGRATIONS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def up_to(version: int) -> tuple[Migration, ...]:
    """Return the migrations up to this version, the later ones made up."""
    return (*MIGRATIONS, *[()] * version)[:version]


def contents(path: Path) -> dict[str, tuple[bytes, int, str]]:
    """Return the bytes, time of change and mode of the file and its WAL; the lock and `-shm` hold no data."""
    files = sorted(path.parent.glob(f"{path.name}*"))
    kept = {file: file.stat() for file in files if file.name.removeprefix(path.name) in ("", "-wal")}
    return {file.name: (file.read_bytes(), found.st_mtime_ns, oct(found.st_mode)) for file, found in kept.items()}


@pytest.fixture(autouse=True)
def readable_by_a_group() -> Iterator[None]:
    """Create files as other programs do, with a mode that those of Lucius do not have."""
    before = os.umask(0o027)
    yield
    os.umask(before)


def jobs(path: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT job_id FROM jobs").fetchall()


def copy_as_killed(connection: sqlite3.Connection, source: Path, target: Path) -> None:
    """Copy the files of an open ledger, as its process leaves them if it is killed."""
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{source}{suffix}", f"{target}{suffix}")
    connection.close()


@pytest.mark.parametrize("version", [1, 2, LAST_VERSION])
@pytest.mark.parametrize("known", [KNOWN, LAST_VERSION, LAST_VERSION + 1])
def test_development_ledger_of_any_version_is_refused_and_left_as_it_is(path: Path, version: int, known: int) -> None:
    create_development_file(path, version)
    before = contents(path)
    assert before.keys() == {"ledger.db"}
    with pytest.raises(LedgerTooOld) as refusal:
        open_sqlite(path, migrations=up_to(known))
    assert contents(path) == before
    parts = (str(path), "unreleased development version", "left as it is", "LUCIUS_DATA_DIR", "the Lucius that made it")
    assert [part for part in parts if part not in str(refusal.value)] == []
    assert jobs(path) == [("j1",)]


@pytest.mark.parametrize("is_checkpointed", [True, False])
def test_development_ledger_of_a_killed_process_keeps_its_wal(
    tmp_path: Path, path: Path, is_checkpointed: bool
) -> None:
    """Before the first checkpoint, not even the mark of such ledgers is in the file itself."""
    source = tmp_path / "source.db"
    connection = sqlite3.connect(source, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    fill_development_file(connection)
    if is_checkpointed:
        connection.execute("PRAGMA wal_checkpoint(FULL)")
    connection.execute("UPDATE jobs SET job_id = 'in the WAL'")
    copy_as_killed(connection, source, path)
    assert (b"CREATE TABLE jobs" in path.read_bytes()) is is_checkpointed
    before = contents(path)
    assert before.keys() == {"ledger.db", "ledger.db-wal"}
    for _ in range(2):
        with pytest.raises(LedgerTooOld):
            open_sqlite(path)
        assert contents(path) == before
    assert jobs(path) == [("in the WAL",)]


async def test_newer_ledger_of_a_killed_process_keeps_its_wal(tmp_path: Path, path: Path) -> None:
    source = tmp_path / "source.db"
    await open_sqlite(source, migrations=up_to(KNOWN + 1)).close()
    connection = sqlite3.connect(source, isolation_level=None)
    connection.execute("INSERT INTO counters VALUES ('in the WAL', 1)")
    copy_as_killed(connection, source, path)
    before = contents(path)
    assert len(before["ledger.db-wal"][0]) > 0
    with pytest.raises(LedgerTooNew):
        open_sqlite(path)
    assert contents(path) == before


async def test_ledger_of_a_killed_process_is_opened_with_the_commits_of_its_wal(tmp_path: Path, path: Path) -> None:
    source = tmp_path / "source.db"
    store = open_sqlite(source)
    await store.ledger.commit(accept("j1"))
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{source}{suffix}", f"{path}{suffix}")
    await store.close()
    assert b"CREATE TABLE jobs" not in contents(path)[path.name][0]
    store = open_sqlite(path)
    assert await store.jobs.job("j1") is not None
    await store.close()


@pytest.mark.parametrize("version", range(2, LAST_VERSION + 2))
async def test_later_version_of_this_schema_is_not_taken_for_a_development_ledger(path: Path, version: int) -> None:
    store = open_sqlite(path, migrations=up_to(version))
    await store.ledger.commit(accept("j1"))
    await store.close()
    store = open_sqlite(path, migrations=up_to(version))
    assert await store.jobs.job("j1") is not None
    await store.close()
    with pytest.raises(LedgerTooNew, match=f"schema version {version}"):
        open_sqlite(path)


async def test_no_development_ledger_has_the_mark_of_this_schema(path: Path, tmp_path: Path) -> None:
    """A development version checks the mark, too, and so refuses the ledgers of this schema."""
    await open_sqlite(path).close()
    create_development_file(tmp_path / "old.db")
    marks = set()
    for file in (path, tmp_path / "old.db"):
        with closing(sqlite3.connect(file)) as connection:
            marks |= set(connection.execute("PRAGMA application_id").fetchall())
    assert len(marks) == 2


def test_refused_development_ledger_is_not_left_locked(path: Path) -> None:
    create_development_file(path)
    for _ in range(2):
        with pytest.raises(LedgerError, match="unreleased development version"):
            open_sqlite(path)


@pytest.mark.parametrize("application_id", DEVELOPMENT_APPLICATION_IDS)
def test_ledger_with_the_mark_of_a_development_version_is_refused(path: Path, application_id: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE inbox (letter_id TEXT)")
        connection.execute(f"PRAGMA application_id = {application_id}")
    before = contents(path)
    with pytest.raises(LedgerTooOld):
        open_sqlite(path)
    assert contents(path) == before


def test_database_of_another_program_is_refused_and_left_as_it_is(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (body TEXT)")
    before = contents(path)
    assert before["ledger.db"][2] == "0o100640"
    with pytest.raises(LedgerError, match="not a Lucius ledger"):
        open_sqlite(path)
    assert contents(path) == before
