"""A volume that goes and comes back, a file of another user's: no living process is taken for dead, nothing is lost."""

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from lucius.worker import owners, state_file
from lucius.worker.connect import open_store
from lucius.worker.idempotency import RUNNING, StoreDown
from lucius.worker.journal import Journal
from tests.unit.worker.journals import RESULT, Opener, finished, key, left_in
from tests.unit.worker.support import directive


def take_away(folder: Path) -> Callable[[], None]:
    """As an unmounted volume, in whose place nothing can be made. Returns what brings it back."""
    away = folder.with_name("away")
    folder.rename(away)
    folder.symlink_to("/nonexistent/volume")

    def bring_back() -> None:
        folder.unlink()
        away.rename(folder)

    return bring_back


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "journal"


class TestVolume:
    def test_one_that_was_away_is_used_again(self, folder: Path) -> None:
        journal = Journal(folder)
        journal.begin([directive(number=1)])
        bring_back = take_away(folder)
        for _ in range(2):
            with pytest.raises(StoreDown):
                journal.begin([directive(number=2)])
            with pytest.raises(StoreDown):
                journal.finish(directive(number=1), RESULT)
        bring_back()
        journal.finish(directive(number=1), RESULT)
        journal.begin([directive(number=2)])
        journal.close()
        assert left_in(Journal(folder)) == {"job-1": RESULT, "job-2": None}

    def test_its_absence_makes_nobody_seem_dead(self, folder: Path) -> None:
        journal = Journal(folder)
        journal.begin([directive(number=1)])
        bring_back = take_away(folder)
        with pytest.raises(StoreDown):
            journal.begin([directive(number=2)])
        bring_back()
        assert left_in(Journal(folder)) == {}
        journal.finish(directive(number=1), RESULT)
        assert left_in(Journal(folder)) == {}

    def test_a_copy_in_its_place_still_has_our_rows_as_ours(self, opened: Opener, tmp_path: Path) -> None:
        """A backup, or a file system whose inode numbers change."""
        journal = opened()
        journal.begin([directive(number=1)])
        journal.file.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(tmp_path / "journal.db", tmp_path / "copy")
        (tmp_path / "copy").replace(tmp_path / "journal.db")
        journal.begin([directive(number=2)])
        assert left_in(journal) == {}
        assert left_in(opened()) == {}
        journal.close()
        assert left_in(opened()) == {"job-1": None, "job-2": None}

    def test_in_another_folder_we_live_as_well(self, folder: Path) -> None:
        journal = Journal(folder)
        folder.rename(folder.with_name("moved"))
        journal.begin([directive(number=1)])
        assert left_in(Journal(folder)) == {}
        journal.close()
        assert left_in(Journal(folder)) == {"job-1": None}

    def test_damage_that_cannot_be_set_aside_is_set_aside_later(
        self, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = opened()
        journal.begin([directive(number=number) for number in range(300)])
        journal.file.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        with (tmp_path / "journal.db").open("r+b") as file:
            file.seek(8192)
            file.write(b"\xff" * 100_000)
        journal.file.rows("PRAGMA shrink_memory")
        with monkeypatch.context() as patched:
            patched.setattr(state_file, "_set_aside", refuse(errno.EROFS))
            for _ in range(2):
                with pytest.raises(StoreDown, match="Read-only"):
                    journal.finish(directive(number=2), RESULT)
        journal.finish(directive(number=3), RESULT)
        journal.close()
        assert left_in(opened()) == {"job-3": RESULT}


def refuse(number: int) -> Callable[..., Any]:
    def act(*args: Any, **_: Any) -> Any:
        raise OSError(number, os.strerror(number), str(args[0]))

    return act


class TestErrorsOfTheDisk:
    """Whatever the operating system says, callers hear StoreDown."""

    @pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOTDIR])
    def test_a_file_that_cannot_be_looked_at(
        self, journal: Journal, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "stat", refuse(number))
            with pytest.raises(StoreDown):
                journal.begin([directive()])
            with pytest.raises(StoreDown):
                journal.finish(directive(), RESULT)
        finished(journal, 1)

    async def test_an_owner_that_cannot_be_asked_for(self, opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = opened(), opened()
        await open_store("", one).claim([key()], 60)
        one.begin([directive()])
        store = open_store("", other)
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", refuse(errno.EIO))
            with pytest.raises(StoreDown):
                other.left_over()
        assert await store.claim([key()], 60) == [RUNNING]

    def test_a_lock_file_that_cannot_be_removed_is_let_go_of(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock = owners.OwnerLock(tmp_path, "one")
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", refuse(errno.EROFS))
            lock.release()
        assert not owners.is_alive(tmp_path, "one")

    def test_a_connection_that_met_an_error_of_the_disk_is_made_anew(self, journal: Journal) -> None:
        """After a volume was mounted again, what was open on it stays broken for ever."""
        broken = journal.file.connection

        def fail(_: object) -> None:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
            raise error

        with pytest.raises(StoreDown):
            journal.write(fail)
        finished(journal, 1)
        assert journal.file.connection is not broken
        assert left_in(journal) == {}


class TestOtherUsers:
    def test_a_file_of_anothers_is_left_alone_and_named(
        self, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = opened()
        finished(journal, 1)
        journal.close()
        real_open, real_access = os.open, os.access

        def is_it(path: object) -> bool:
            return str(path) == str(tmp_path / "journal.db")

        def forbidding(path: Any, *args: Any, **named: Any) -> int:
            if is_it(path) and not args[0] & os.O_EXCL:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real_open(path, *args, **named)

        with monkeypatch.context() as patched:  # root may do anything, so a test can't just take the right away
            patched.setattr(os, "open", forbidding)
            patched.setattr(os, "access", lambda path, mode: not is_it(path) and real_access(path, mode))
            with pytest.raises(StoreDown, match=rf"journal\.db.*user {os.getuid()}"):
                opened()
        assert list(tmp_path.glob("*damaged*")) == []
        assert left_in(opened()) == {"job-1": RESULT}

    @pytest.mark.parametrize("mode", [0o600, 0o644])
    def test_where_modes_cannot_be_set_it_is_used_all_the_same(
        self, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
    ) -> None:
        (tmp_path / "journal.db").touch()
        (tmp_path / "journal.db").chmod(mode)
        monkeypatch.setattr(os, "chmod", refuse(errno.EPERM))
        with capture_logs() as logs:
            finished(opened(), 1)
        assert list(tmp_path.glob("*damaged*")) == []
        assert [log["log_level"] for log in logs] == (["warning"] if mode == 0o644 else [])


def test_a_result_goes_into_the_file_that_others_read(opened: Opener, tmp_path: Path) -> None:
    """Where a sibling has set the old one aside."""
    journal = opened()
    journal.begin([directive(number=1)])
    for path in tmp_path.glob("journal.db*"):
        path.rename(path.with_name(f"aside-{path.name}"))
    other = opened()
    journal.finish(directive(number=1), RESULT)
    journal.close()
    assert left_in(other) == {"job-1": RESULT}
