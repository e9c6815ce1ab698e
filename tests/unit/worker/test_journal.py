import asyncio
import fcntl
import json
import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from lucius.contract import StepInput
from lucius.worker import state_file
from lucius.worker.idempotency import NEW, RUNNING, Finished, Key, StoreDown, StoreTooNew, key_of, open_store
from lucius.worker.journal import TIDY_EVERY, Journal, LeftOver
from lucius.worker.owners import OwnerLock, is_alive
from tests.unit.worker.support import directive

REPOSITORY = Path(__file__).parents[3]
RESULT = b'{"status":"SUCCEEDED"}'

Opener = Callable[..., Journal]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    """Opens journals on one folder, as processes of one service would, and closes them."""
    journals: list[Journal] = []

    def open_one(**options: Any) -> Journal:
        journals.append(Journal(tmp_path, **options))
        return journals[-1]

    yield open_one
    for journal in journals:
        journal.close()


@pytest.fixture
def journal(opened: Opener) -> Journal:
    return opened()


def key(number: int = 1) -> Key:
    return key_of(directive(number=number))


def finished(journal: Journal, *numbers: int) -> None:
    journal.begin([directive(number=number) for number in numbers])
    for number in numbers:
        journal.finish(directive(number=number), RESULT)


def left_in(journal: Journal) -> dict[str, bytes | None]:
    return {left.directive.jobId: left.result for left in journal.left_over()}


def peers(what: str, folder: Path, *numbers: int) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.unit.worker.journal_peers", what, str(folder), *map(str, numbers)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return dict[str, int](json.loads(ended.stdout.splitlines()[-1]))  # what comes before are logs


class TestLeftOvers:
    def test_what_a_dead_process_began_and_finished_is_there_for_the_next(self, opened: Opener) -> None:
        dead = opened()
        dead.begin([directive(number=1), directive(number=2)])
        dead.finish(directive(number=2), RESULT)
        dead.close()
        assert left_in(opened()) == {"job-1": None, "job-2": RESULT}

    def test_the_directive_is_kept_but_for_what_it_carries(self, opened: Opener) -> None:
        dead = opened()
        given = directive(payload={"a": 1}, inputs={"x": StepInput(result={"b": 2})}, item={"c": 3}, timeout_ms=5)
        dead.begin([given])
        dead.close()
        assert opened().left_over() == [LeftOver(directive(timeout_ms=5), None)]

    def test_what_was_dropped_is_not_left_over(self, opened: Opener) -> None:
        dead = opened()
        finished(dead, 1, 2)
        dead.drop(key(1))
        dead.close()
        assert left_in(opened()) == {"job-2": RESULT}

    def test_a_living_process_keeps_its_own(self, opened: Opener) -> None:
        alive, other = opened(), opened()
        finished(alive, 1)
        assert other.left_over() == []
        assert alive.left_over() == []

    def test_a_left_over_is_told_once(self, opened: Opener) -> None:
        dead = opened()
        finished(dead, 1)
        dead.close()
        one, other = opened(), opened()
        assert left_in(one) == {"job-1": RESULT}
        assert left_in(other) == {}
        assert left_in(one) == {}

    def test_a_left_over_outlives_the_one_who_took_it(self, opened: Opener) -> None:
        for _ in range(3):
            process = opened()
            finished(process, 1)
            process.close()
        for _ in range(3):
            process = opened()
            assert left_in(process) == {"job-1": RESULT}
            process.close()

    def test_what_was_begun_again_is_not_left_over(self, opened: Opener) -> None:
        dead = opened()
        dead.begin([directive()])
        dead.close()
        alive = opened()
        alive.begin([directive()])
        assert left_in(opened()) == {}

    def test_nobody_drops_the_row_of_another(self, opened: Opener) -> None:
        one, other = opened(), opened()
        finished(one, 1)
        other.drop(key())
        one.close()
        assert left_in(other) == {"job-1": RESULT}

    def test_a_directive_that_cannot_be_read_is_named_and_does_not_hide_the_others(self, opened: Opener) -> None:
        dead = opened()
        finished(dead, 1, 2)
        dead.file.execute("UPDATE attempts SET directive = '{}' WHERE key = ?", b'["job-1","ocr",1,"lease-1"]')
        dead.close()
        again = opened()
        with capture_logs() as logs:
            assert left_in(again) == {"job-2": RESULT}
        assert "job-1" in str(logs)
        again.close()
        with capture_logs() as logs:
            assert left_in(opened()) == {"job-2": RESULT}
        assert logs == []

    def test_processes_that_start_at_once_share_them_out(self, tmp_path: Path) -> None:
        assert peers("race", tmp_path, 10, 4) == {"taken": 200}

    def test_a_kill_at_any_instant_loses_nothing_and_makes_nothing_up(self, tmp_path: Path) -> None:
        tally = peers("kills", tmp_path, 80, 7)
        assert min(tally.values()) > 3, tally

    def test_a_child_process_does_not_keep_its_dead_parent_alive(self, tmp_path: Path) -> None:
        assert peers("orphan", tmp_path) == {"left_over": 1}


class TestDelivery:
    def test_undelivered_counts_results_that_wait(self, journal: Journal) -> None:
        journal.begin([directive(number=1), directive(number=2)])
        assert journal.undelivered() == 0
        journal.finish(directive(number=1), RESULT)
        assert journal.undelivered() == 1
        journal.drop(key(1))
        journal.drop(key(2))
        assert journal.undelivered() == 0

    def test_undelivered_counts_results_of_the_dead(self, opened: Opener) -> None:
        dead = opened()
        finished(dead, 1, 2)
        dead.close()
        journal = opened()
        journal.left_over()
        assert journal.undelivered() == 2

    def test_a_result_is_on_disk_when_finish_returns(self, journal: Journal, tmp_path: Path) -> None:
        finished(journal, 1)
        with closing(sqlite3.connect(tmp_path / "journal.db")) as other:
            assert other.execute("SELECT result FROM attempts").fetchall() == [(RESULT,)]

    def test_the_first_result_stays(self, opened: Opener) -> None:
        journal = opened()
        finished(journal, 1)
        journal.finish(directive(), b"another")
        journal.close()
        assert left_in(opened()) == {"job-1": RESULT}

    def test_what_was_never_begun_can_be_finished(self, opened: Opener) -> None:
        journal = opened()
        journal.finish(directive(), RESULT)
        journal.close()
        assert left_in(opened()) == {"job-1": RESULT}

    async def test_drops_are_written_in_a_moment(self, journal: Journal, tmp_path: Path) -> None:
        finished(journal, 1, 2, 3)
        for number in (1, 2):
            journal.drop(key(number))
        with closing(sqlite3.connect(tmp_path / "journal.db")) as other:
            async with asyncio.timeout(5):
                while other.execute("SELECT count(*) FROM attempts").fetchone() != (1,):  # noqa: ASYNC110 - only asking tells
                    await asyncio.sleep(0.01)

    async def test_drops_are_written_with_the_next_pull(self, journal: Journal) -> None:
        finished(journal, 1)
        journal.drop(key(1))
        journal.begin([directive(number=2)])
        assert journal.file.rows("SELECT key FROM attempts") == [(b'["job-2","ocr",1,"lease-2"]',)]

    async def test_what_is_begun_again_right_after_its_drop_stays(self, opened: Opener) -> None:
        journal = opened()
        journal.begin([directive()])
        journal.drop(key())
        journal.begin([directive()])
        journal.close()
        assert left_in(opened()) == {"job-1": None}

    def test_without_a_folder_it_is_in_memory(self) -> None:
        journal = Journal(None)
        finished(journal, 1)
        assert journal.undelivered() == 1
        assert journal.left_over() == []
        journal.drop(key())
        assert journal.undelivered() == 0
        journal.close()

    def test_closing_twice_is_no_error(self, opened: Opener) -> None:
        journal = opened()
        journal.close()
        journal.close()


class TestTogetherWithIdempotency:
    async def test_a_spooled_result_is_remembered_by_the_same_commit(self, opened: Opener) -> None:
        """Killed between the two, a service would else run an attempt again whose result it has."""
        one, other = opened(), opened()
        await open_store("", one).claim([key()], 60)
        finished(one, 1)
        assert await open_store("", other).claim([key()], 60) == [Finished(RESULT)]

    async def test_a_result_is_remembered_when_it_was_delivered(self, opened: Opener) -> None:
        journal = opened()
        store = open_store("", journal)
        await store.claim([key()], 60)
        finished(journal, 1)
        await store.finish(key(), RESULT)
        journal.drop(key())
        journal.close()
        again = opened()
        assert left_in(again) == {}
        assert await open_store("sqlite:", again).claim([key()], 60) == [Finished(RESULT)]

    async def test_the_claim_of_a_dead_process_is_free_at_once(self, opened: Opener) -> None:
        dead, alive = opened(), opened()
        await open_store("", dead).claim([key()], 3600)
        store = open_store("", alive)
        assert await store.claim([key()], 3600) == [RUNNING]
        dead.close()
        assert await store.claim([key()], 3600) == [NEW]

    async def test_nobody_begins_what_another_has_taken_over(self, opened: Opener) -> None:
        """Else one would report that it was cut off, and the other that it was done."""
        dead = opened()
        await open_store("", dead).claim([key()], 3600)
        dead.begin([directive()])
        dead.close()
        one, other = opened(), opened()
        assert left_in(one) == {"job-1": None}
        assert await open_store("", other).claim([key()], 3600) == [RUNNING]

    async def test_nobody_takes_over_what_another_is_about_to_begin(self, opened: Opener) -> None:
        dead = opened()
        await open_store("", dead).claim([key(1), key(2)], 3600)
        dead.begin([directive(number=1), directive(number=2)])
        dead.close()
        one, other = opened(), opened()
        assert await open_store("", other).claim([key(1)], 3600) == [NEW]
        assert left_in(one) == {"job-2": None}
        other.close()
        assert left_in(one) == {"job-1": None}

    async def test_a_claim_that_was_taken_over_is_free_again_in_time(self, opened: Opener) -> None:
        now = [0.0]
        dead = opened(now=lambda: now[0])
        await open_store("", dead).claim([key()], 60)
        dead.begin([directive()])
        dead.close()
        now[0] = 61.0
        one, other = opened(now=lambda: now[0]), opened(now=lambda: now[0])
        one.left_over()
        assert await open_store("", other).claim([key()], 60) == [RUNNING]
        now[0] = 200.0
        assert await open_store("", other).claim([key()], 60) == [NEW]

    @pytest.mark.parametrize("release_first", [True, False])
    async def test_a_fenced_attempt_leaves_nothing_behind(self, journal: Journal, release_first: bool) -> None:
        store = open_store("", journal)
        await store.claim([key()], 60)
        journal.begin([directive()])
        if release_first:
            await store.release(key())
        journal.drop(key())
        if not release_first:
            await store.release(key())
        journal.begin([])
        assert journal.file.rows("SELECT * FROM attempts") == []

    async def test_claims_of_the_dead_are_swept_at_the_next_start(self, opened: Opener) -> None:
        dead = opened()
        await open_store("", dead).claim([key(number) for number in range(5)], 3600)
        dead.close()
        assert opened().file.rows("SELECT * FROM attempts") == []

    async def test_the_clock_on_the_wall_ends_no_claim(self, opened: Opener) -> None:
        wall = [1_000.0]
        journal = opened(wall=lambda: wall[0])
        store = open_store("", journal)
        await store.claim([key()], 60)
        for wrong in (1e12, 0.0, -5.0):
            wall[0] = wrong
            assert await store.claim([key()], 60) == [RUNNING]

    async def test_a_claim_from_before_a_reboot_is_free_though_the_clock_began_anew(self, opened: Opener) -> None:
        dead = opened(now=lambda: 1e9)
        await open_store("", dead).claim([key()], 60)
        dead.begin([directive()])
        dead.close()
        assert await open_store("", opened(now=lambda: 1.0)).claim([key()], 60) == [NEW]

    async def test_an_undelivered_result_is_kept_past_its_time(self, opened: Opener) -> None:
        wall = [0.0]
        journal = opened(wall=lambda: wall[0], capacity=10)
        store = open_store("", journal)
        finished(journal, *range(TIDY_EVERY + 20))
        wall[0] = 1e9
        journal.begin([])
        assert await store.claim([key(3)], 60) == [Finished(RESULT)]
        assert len(journal.file.rows("SELECT 1 FROM attempts")) == TIDY_EVERY + 20

    async def test_what_is_remembered_is_forgotten_after_its_time(self, opened: Opener) -> None:
        wall = [0.0]
        journal = opened(wall=lambda: wall[0], retention=100.0)
        open_store("", journal)
        finished(journal, *range(TIDY_EVERY))
        for number in range(TIDY_EVERY):
            journal.drop(key(number))
        wall[0] = 101.0
        finished(journal, *range(5000, 5000 + TIDY_EVERY))
        journal.begin([])
        assert len(journal.file.rows("SELECT 1 FROM attempts")) == TIDY_EVERY

    def test_a_url_that_names_no_store_is_refused(self, journal: Journal) -> None:
        with pytest.raises(ValueError, match="postgresql"):
            open_store("postgresql://x", journal)


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

    def test_a_folder_that_cannot_be_made_is_down(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(StoreDown, match="journal"):
            Journal(tmp_path / "file" / "folder")


def test_durable_when_asked(opened: Opener) -> None:
    assert opened().file.rows("PRAGMA synchronous") == [(1,)]
    assert opened(sync=True).file.rows("PRAGMA synchronous") == [(2,)]
    assert opened().file.rows("PRAGMA journal_mode") == [("wal",)]
