"""The journal's file: damage, a full disk, and permissions."""

import fcntl
import os
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from lucius.worker import state_file
from lucius.worker.connect import open_store
from lucius.worker.idempotency import NEW, StoreDown, StoreTooNew
from lucius.worker.journal import Journal
from lucius.worker.process_locks import ProcessLock, is_alive
from tests.integration.worker.journals import RESULT, Opener, adopt_results, finished, key, peers
from tests.integration.worker.support import directive


def damage_page(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * page)
        file.write(b"\xff" * 4096)


class TestDamage:
    def set_aside(self, folder: Path) -> list[str]:
        return sorted(path.name for path in folder.glob("*damaged-?"))

    @pytest.mark.parametrize(
        "content", [b"not a database", b"SQLite format 3\0" + b"\xff" * 5000], ids=["text", "head"]
    )
    def test_damaged_file_is_set_aside_and_reported(self, tmp_path: Path, open_journal: Opener, content: bytes) -> None:
        (tmp_path / "journal.db").write_bytes(content)
        with capture_logs() as logs:
            finished(open_journal(), 1)
        assert [log["log_level"] for log in logs] == ["error", "error"]
        assert str(tmp_path / "journal.db.damaged-1") in str(logs)
        assert (tmp_path / "journal.db.damaged-1").read_bytes() == content

    def test_files_set_aside_are_never_overwritten(self, tmp_path: Path, open_journal: Opener) -> None:
        for number in range(3):
            (tmp_path / "journal.db").write_bytes(b"garbage %d" % number)
            open_journal().close()
        assert self.set_aside(tmp_path) == [f"journal.db.damaged-{number}" for number in (1, 2, 3)]
        assert (tmp_path / "journal.db.damaged-2").read_bytes() == b"garbage 1"

    def test_damaged_page_is_found_at_the_start(self, tmp_path: Path, open_journal: Opener) -> None:
        journal = open_journal()
        finished(journal, *range(200))
        journal.close()
        damage_page(tmp_path / "journal.db", 2)
        finished(open_journal(), 1)
        assert self.set_aside(tmp_path) == ["journal.db.damaged-1"]

    def test_damaged_overflow_page_is_found_at_the_start(self, tmp_path: Path, open_journal: Opener) -> None:
        journal = open_journal()
        journal.finish(directive(), b"x" * 100_000)
        journal.close()
        damage_page(tmp_path / "journal.db", os.stat(tmp_path / "journal.db").st_size // 4096 - 5)
        open_journal()
        assert self.set_aside(tmp_path) == ["journal.db.damaged-1"]

    def test_concurrently_starting_processes_set_a_damaged_file_aside_once(self, tmp_path: Path) -> None:
        assert peers("damaged", tmp_path, 15, 4) == {"set_aside": 15}

    def test_folder_in_place_of_the_file_is_set_aside(self, tmp_path: Path, open_journal: Opener) -> None:
        (tmp_path / "journal.db").mkdir()
        finished(open_journal(), 1)
        assert self.set_aside(tmp_path) == ["journal.db.damaged-1"]

    def test_database_of_another_program_is_set_aside(self, tmp_path: Path, open_journal: Opener) -> None:
        with closing(sqlite3.connect(tmp_path / "journal.db")) as other:
            other.execute("CREATE TABLE theirs (a)")
        finished(open_journal(), 1)
        assert self.set_aside(tmp_path) == ["journal.db.damaged-1"]

    def test_empty_file_becomes_a_new_journal(self, tmp_path: Path, open_journal: Opener) -> None:
        (tmp_path / "journal.db").touch()
        finished(open_journal(), 1)
        assert self.set_aside(tmp_path) == []

    @pytest.mark.parametrize("checked", [0, 1 << 20], ids=["too large to be checked", "checked"])
    def test_damage_found_while_in_use_costs_no_result(
        self, tmp_path: Path, open_journal: Opener, checked: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(state_file, "MAX_CHECKED_BYTES", checked)
        journal = open_journal()
        journal.begin([directive(number=number) for number in range(300)])
        journal.file.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        for page in range(2, os.stat(tmp_path / "journal.db").st_size // 4096):
            damage_page(tmp_path / "journal.db", page)
        journal.file.rows("PRAGMA shrink_memory")
        with capture_logs() as logs:
            journal.finish(directive(number=7), RESULT)
        assert "damaged" in str(logs)
        assert self.set_aside(tmp_path) == ["journal.db.damaged-1"]
        journal.close()
        assert adopt_results(open_journal()) == {"job-7": RESULT}

    @pytest.mark.parametrize("remove", [True, False])
    def test_moved_file_is_no_longer_written(self, tmp_path: Path, open_journal: Opener, remove: bool) -> None:
        journal = open_journal()
        finished(journal, 1)
        for path in tmp_path.glob("journal.db*"):
            path.unlink() if remove else path.rename(path.with_name(f"moved-{path.name}"))
        other = open_journal() if not remove else None
        finished(journal, 2)
        assert adopt_results(open_journal()) == {}, "its owner lives"
        journal.close()
        assert adopt_results(other or open_journal()) == {"job-2": RESULT}

    def test_a_newer_file_is_refused_and_left_alone(self, tmp_path: Path, open_journal: Opener) -> None:
        journal = open_journal()
        finished(journal, 1)
        journal.file.execute("PRAGMA user_version = 99")
        journal.close()
        before = (tmp_path / "journal.db").read_bytes()
        with pytest.raises(StoreTooNew, match="schema version 99"):
            open_journal()
        assert (tmp_path / "journal.db").read_bytes() == before
        assert self.set_aside(tmp_path) == []
        assert list((tmp_path / "owners").iterdir()) == []

    def test_files_are_private_to_their_owner(self, tmp_path: Path, open_journal: Opener) -> None:
        (tmp_path / "journal.db").touch(mode=0o666)
        finished(open_journal(), 1)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(files) >= 4
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}

    def test_lock_files_of_dead_processes_are_removed(self, tmp_path: Path, open_journal: Opener) -> None:
        peers("abandon", tmp_path, 3)
        (dead,) = (tmp_path / "owners").iterdir()
        open_journal()
        assert not dead.exists()
        assert len(list((tmp_path / "owners").iterdir())) == 1


class TestProcessLocks:
    def test_concurrent_liveness_check_does_not_make_a_dead_process_seem_alive(self, tmp_path: Path) -> None:
        (tmp_path / "dead").touch()
        with (tmp_path / "dead").open() as asked_by_another:
            fcntl.flock(asked_by_another, fcntl.LOCK_SH)
            assert not is_alive(tmp_path, "dead")

    def test_process_counts_as_alive_until_it_releases_its_lock(self, tmp_path: Path) -> None:
        lock = ProcessLock(tmp_path, "one")
        assert is_alive(tmp_path, "one")
        lock.release()
        lock.release()
        assert not is_alive(tmp_path, "one")


class TestFullDisk:
    def test_transaction_that_fails_halfway_leaves_nothing(self, journal: Journal) -> None:
        def fail(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT INTO attempts (key) VALUES ('x')")
            raise KeyError

        with pytest.raises(KeyError):
            journal.write(fail)
        assert journal.file.rows("SELECT * FROM attempts") == []

    def fill(self, journal: Journal) -> None:
        (pages,) = journal.file.rows("PRAGMA page_count")[0]
        journal.file.rows(f"PRAGMA max_page_count = {pages}")

    def make_room(self, journal: Journal) -> None:
        journal.file.rows("PRAGMA max_page_count = 1000000")

    def test_attempts_are_not_begun_on_a_full_disk(self, open_journal: Opener) -> None:
        journal = open_journal()
        self.fill(journal)
        with pytest.raises(StoreDown):
            journal.begin([directive(number=number) for number in range(100)])
        self.make_room(journal)
        journal.begin([directive(number=1)])
        journal.close()
        assert adopt_results(open_journal()) == {"job-1": None}

    def test_result_that_does_not_fit_is_not_counted_as_undelivered(self, journal: Journal) -> None:
        journal.begin([directive()])
        self.fill(journal)
        with pytest.raises(StoreDown):
            journal.finish(directive(), b"x" * 100_000)
        assert journal.undelivered() == 0
        self.make_room(journal)
        journal.finish(directive(), b"x" * 100_000)
        assert journal.undelivered() == 1

    async def test_claim_that_does_not_fit_is_not_made(self, journal: Journal) -> None:
        store = open_store("", journal)
        self.fill(journal)
        with pytest.raises(StoreDown):
            await store.claim([key(number) for number in range(1000)], 60)
        self.make_room(journal)
        assert await store.claim([key(0)], 60) == [NEW]

    def test_file_locked_for_too_long_raises_store_down(self, journal: Journal, tmp_path: Path) -> None:
        finished(journal, 1)
        journal.file.rows("PRAGMA busy_timeout = 10")
        with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreDown):
                journal.begin([directive(number=2)])
            journal.drop(key(1))  # blocks nothing, and is written when possible
        journal.begin([directive(number=3)])
        assert journal.file.rows("SELECT key FROM attempts") == [(b'["job-3","ocr",1,"lease-3"]',)]

    def test_opening_waits_for_a_reader(
        self, open_journal: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Parts of opening fail at once without exclusive access to the file."""
        monkeypatch.setattr(state_file, "BUSY_TIMEOUT_MS", 1)
        with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None, check_same_thread=False)) as other:
            other.execute("BEGIN EXCLUSIVE")
            done = threading.Timer(0.2, lambda: other.execute("ROLLBACK"))
            done.start()
            finished(open_journal(), 1)
            done.join()

    def test_folder_that_cannot_be_created_raises_store_down(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StoreDown, match="journal"):
            Journal(tmp_path / "file" / "folder")


def test_synchronous_mode_follows_the_sync_option(open_journal: Opener) -> None:
    assert open_journal().file.rows("PRAGMA synchronous") == [(1,)]
    assert open_journal(sync=True).file.rows("PRAGMA synchronous") == [(2,)]
    assert open_journal().file.rows("PRAGMA journal_mode") == [("wal",)]
