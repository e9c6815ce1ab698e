"""The journal's file: damage, no room, and who may read it."""

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
from lucius.worker.owners import OwnerLock, is_alive
from tests.unit.worker.journals import RESULT, Opener, finished, key, left_in, peers
from tests.unit.worker.support import directive


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
    def test_a_damaged_file_is_set_aside_with_loud_words(self, tmp_path: Path, opened: Opener, content: bytes) -> None:
        (tmp_path / "journal.db").write_bytes(content)
        with capture_logs() as logs:
            finished(opened(), 1)
        assert [log["log_level"] for log in logs] == ["error", "error"]
        assert str(tmp_path / "journal.db.damaged-1") in str(logs)
        assert (tmp_path / "journal.db.damaged-1").read_bytes() == content

    def test_no_file_that_was_set_aside_is_overwritten(self, tmp_path: Path, opened: Opener) -> None:
        for number in range(3):
            (tmp_path / "journal.db").write_bytes(b"garbage %d" % number)
            opened().close()
        assert self.set_aside(tmp_path) == [f"journal.db.damaged-{number}" for number in (1, 2, 3)]
        assert (tmp_path / "journal.db.damaged-2").read_bytes() == b"garbage 1"

    def test_damage_inside_is_found_at_the_start(self, tmp_path: Path, opened: Opener) -> None:
        journal = opened()
        finished(journal, *range(200))
        journal.close()
        damage_page(tmp_path / "journal.db", 2)
        finished(opened(), 1)
        assert self.set_aside(tmp_path) == ["journal.db.damaged-1"]

    def test_damage_in_what_nobody_reads_at_the_start_is_found(self, tmp_path: Path, opened: Opener) -> None:
        journal = opened()
        journal.finish(directive(), b"x" * 100_000)
        journal.close()
        damage_page(tmp_path / "journal.db", os.stat(tmp_path / "journal.db").st_size // 4096 - 5)
        opened()
        assert self.set_aside(tmp_path) == ["journal.db.damaged-1"]

    def test_those_that_start_at_once_set_it_aside_once(self, tmp_path: Path) -> None:
        assert peers("damaged", tmp_path, 15, 4) == {"set_aside": 15}

    def test_a_folder_in_its_place_is_set_aside(self, tmp_path: Path, opened: Opener) -> None:
        (tmp_path / "journal.db").mkdir()
        finished(opened(), 1)
        assert self.set_aside(tmp_path) == ["journal.db.damaged-1"]

    def test_a_database_of_others_is_set_aside(self, tmp_path: Path, opened: Opener) -> None:
        with closing(sqlite3.connect(tmp_path / "journal.db")) as other:
            other.execute("CREATE TABLE theirs (a)")
        finished(opened(), 1)
        assert self.set_aside(tmp_path) == ["journal.db.damaged-1"]

    def test_an_empty_file_is_a_new_one(self, tmp_path: Path, opened: Opener) -> None:
        (tmp_path / "journal.db").touch()
        finished(opened(), 1)
        assert self.set_aside(tmp_path) == []

    @pytest.mark.parametrize("checked", [0, 1 << 20], ids=["too large to be checked", "checked"])
    def test_damage_met_while_in_use_costs_no_result(
        self, tmp_path: Path, opened: Opener, checked: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(state_file, "CHECKED_UP_TO_BYTES", checked)
        journal = opened()
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
        assert left_in(opened()) == {"job-7": RESULT}

    @pytest.mark.parametrize("remove", [True, False])
    def test_a_file_that_was_moved_away_is_not_written_any_more(
        self, tmp_path: Path, opened: Opener, remove: bool
    ) -> None:
        journal = opened()
        finished(journal, 1)
        for path in tmp_path.glob("journal.db*"):
            path.unlink() if remove else path.rename(path.with_name(f"moved-{path.name}"))
        other = opened() if not remove else None
        finished(journal, 2)
        assert left_in(opened()) == {}, "its owner lives"
        journal.close()
        assert left_in(other or opened()) == {"job-2": RESULT}

    def test_a_newer_file_is_refused_and_left_alone(self, tmp_path: Path, opened: Opener) -> None:
        journal = opened()
        finished(journal, 1)
        journal.file.execute("PRAGMA user_version = 99")
        journal.close()
        before = (tmp_path / "journal.db").read_bytes()
        with pytest.raises(StoreTooNew, match="schema version 99"):
            opened()
        assert (tmp_path / "journal.db").read_bytes() == before
        assert self.set_aside(tmp_path) == []
        assert list((tmp_path / "owners").iterdir()) == []

    def test_files_are_for_their_owner_only(self, tmp_path: Path, opened: Opener) -> None:
        (tmp_path / "journal.db").touch(mode=0o666)
        finished(opened(), 1)
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert len(files) >= 4
        assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}

    def test_lock_files_of_the_dead_are_removed(self, tmp_path: Path, opened: Opener) -> None:
        peers("abandon", tmp_path, 3)
        (dead,) = (tmp_path / "owners").iterdir()
        opened()
        assert not dead.exists()
        assert len(list((tmp_path / "owners").iterdir())) == 1


class TestOwners:
    def test_two_who_ask_at_once_whether_one_lives_do_not_mistake_each_other_for_it(self, tmp_path: Path) -> None:
        (tmp_path / "dead").touch()
        with (tmp_path / "dead").open() as asked_by_another:
            fcntl.flock(asked_by_another, fcntl.LOCK_SH)
            assert not is_alive(tmp_path, "dead")

    def test_an_owner_lives_until_it_lets_go(self, tmp_path: Path) -> None:
        lock = OwnerLock(tmp_path, "one")
        assert is_alive(tmp_path, "one")
        lock.release()
        lock.release()
        assert not is_alive(tmp_path, "one")


class TestNoRoom:
    def test_a_transaction_that_fails_halfway_leaves_nothing(self, journal: Journal) -> None:
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

    def test_nothing_is_begun_on_a_full_disk(self, opened: Opener) -> None:
        journal = opened()
        self.fill(journal)
        with pytest.raises(StoreDown):
            journal.begin([directive(number=number) for number in range(100)])
        self.make_room(journal)
        journal.begin([directive(number=1)])
        journal.close()
        assert left_in(opened()) == {"job-1": None}

    def test_a_result_that_finds_no_room_is_not_counted(self, journal: Journal) -> None:
        journal.begin([directive()])
        self.fill(journal)
        with pytest.raises(StoreDown):
            journal.finish(directive(), b"x" * 100_000)
        assert journal.undelivered() == 0
        self.make_room(journal)
        journal.finish(directive(), b"x" * 100_000)
        assert journal.undelivered() == 1

    async def test_a_claim_that_finds_no_room_was_not_made(self, journal: Journal) -> None:
        store = open_store("", journal)
        self.fill(journal)
        with pytest.raises(StoreDown):
            await store.claim([key(number) for number in range(1000)], 60)
        self.make_room(journal)
        assert await store.claim([key(0)], 60) == [NEW]

    def test_a_file_held_by_another_for_too_long_is_down(self, journal: Journal, tmp_path: Path) -> None:
        finished(journal, 1)
        journal.file.rows("PRAGMA busy_timeout = 10")
        with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreDown):
                journal.begin([directive(number=2)])
            journal.drop(key(1))  # keeps nobody from going on, and is written when it can be
        journal.begin([directive(number=3)])
        assert journal.file.rows("SELECT key FROM attempts") == [(b'["job-3","ocr",1,"lease-3"]',)]

    def test_opening_waits_for_one_who_reads(
        self, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Some of what opening does fails at once if it can't have the file for itself."""
        monkeypatch.setattr(state_file, "BUSY_TIMEOUT_MS", 1)
        with closing(sqlite3.connect(tmp_path / "journal.db", isolation_level=None, check_same_thread=False)) as other:
            other.execute("BEGIN EXCLUSIVE")
            done = threading.Timer(0.2, lambda: other.execute("ROLLBACK"))
            done.start()
            finished(opened(), 1)
            done.join()

    def test_a_folder_that_cannot_be_made_is_down(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StoreDown, match="journal"):
            Journal(tmp_path / "file" / "folder")


def test_durable_when_asked(opened: Opener) -> None:
    assert opened().file.rows("PRAGMA synchronous") == [(1,)]
    assert opened(sync=True).file.rows("PRAGMA synchronous") == [(2,)]
    assert opened().file.rows("PRAGMA journal_mode") == [("wal",)]
