"""A volume that goes and returns, or a file of another user: no living process is taken for dead, nothing is lost."""

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from lucius.worker import process_locks, state_file
from lucius.worker.connect import open_store
from lucius.worker.idempotency import RUNNING, StoreDown
from lucius.worker.journal import Journal
from tests.integration.worker.journals import RESULT, Opener, adopt_results, finished, key
from tests.integration.worker.support import directive


def take_away(folder: Path) -> Callable[[], None]:
    """Make the folder unusable, like an unmounted volume; return a function that restores it."""
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
    def test_returning_volume_is_used_again(self, folder: Path) -> None:
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
        assert adopt_results(Journal(folder)) == {"job-1": RESULT, "job-2": None}

    def test_absent_volume_makes_no_process_seem_dead(self, folder: Path) -> None:
        journal = Journal(folder)
        journal.begin([directive(number=1)])
        bring_back = take_away(folder)
        with pytest.raises(StoreDown):
            journal.begin([directive(number=2)])
        bring_back()
        assert adopt_results(Journal(folder)) == {}
        journal.finish(directive(number=1), RESULT)
        assert adopt_results(Journal(folder)) == {}

    def test_rows_in_a_copied_file_keep_their_owner(self, open_journal: Opener, tmp_path: Path) -> None:
        """As with a backup, or a file system whose inode numbers change."""
        journal = open_journal()
        journal.begin([directive(number=1)])
        journal.file.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(tmp_path / "journal.db", tmp_path / "copy")
        (tmp_path / "copy").replace(tmp_path / "journal.db")
        journal.begin([directive(number=2)])
        assert adopt_results(journal) == {}
        assert adopt_results(open_journal()) == {}
        journal.close()
        assert adopt_results(open_journal()) == {"job-1": None, "job-2": None}

    def test_journal_in_a_moved_folder_keeps_its_owner(self, folder: Path) -> None:
        journal = Journal(folder)
        folder.rename(folder.with_name("moved"))
        journal.begin([directive(number=1)])
        assert adopt_results(Journal(folder)) == {}
        journal.close()
        assert adopt_results(Journal(folder)) == {"job-1": None}

    def test_damage_that_cannot_be_set_aside_is_set_aside_later(
        self, open_journal: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = open_journal()
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
        assert adopt_results(open_journal()) == {"job-3": RESULT}


def refuse(number: int) -> Callable[..., Any]:
    def act(*args: Any, **_: Any) -> Any:
        raise OSError(number, os.strerror(number), str(args[0]))

    return act


class TestDiskErrors:
    """Every error of the operating system reaches callers as StoreDown."""

    @pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOTDIR])
    def test_file_that_cannot_be_examined_raises_store_down(
        self, journal: Journal, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(os, "stat", refuse(number))
            with pytest.raises(StoreDown):
                journal.begin([directive()])
            with pytest.raises(StoreDown):
                journal.finish(directive(), RESULT)
        finished(journal, 1)

    async def test_owner_whose_lock_cannot_be_examined_counts_as_alive(
        self, open_journal: Opener, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = open_journal(), open_journal()
        await open_store("", one).claim([key()], 60)
        one.begin([directive()])
        store = open_store("", other)
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", refuse(errno.EIO))
            with pytest.raises(StoreDown):
                other.adopt_orphans()
        assert await store.claim([key()], 60) == [RUNNING]

    def test_lock_file_that_cannot_be_removed_is_released(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lock = process_locks.ProcessLock(tmp_path, "one")
        with monkeypatch.context() as patched:
            patched.setattr(Path, "unlink", refuse(errno.EROFS))
            lock.release()
        assert not process_locks.is_alive(tmp_path, "one")

    def test_connection_with_an_io_error_is_replaced(self, journal: Journal) -> None:
        """After a volume was mounted again, connections opened before stay broken."""
        broken = journal.file.connection

        def fail(_: object) -> None:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
            raise error

        with pytest.raises(StoreDown):
            journal.write(fail)
        finished(journal, 1)
        assert journal.file.connection is not broken
        assert adopt_results(journal) == {}


class TestOtherUsers:
    def test_file_of_another_user_is_left_alone_and_named(
        self, open_journal: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal = open_journal()
        finished(journal, 1)
        journal.close()
        real_open, real_access = os.open, os.access

        def is_it(path: object) -> bool:
            return str(path) == str(tmp_path / "journal.db")

        def forbidding(path: Any, *args: Any, **named: Any) -> int:
            if is_it(path) and not args[0] & os.O_EXCL:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real_open(path, *args, **named)

        with monkeypatch.context() as patched:  # root bypasses permissions, so removing them would have no effect
            patched.setattr(os, "open", forbidding)
            patched.setattr(os, "access", lambda path, mode: not is_it(path) and real_access(path, mode))
            with pytest.raises(StoreDown, match=rf"journal\.db.*user {os.getuid()}"):
                open_journal()
        assert list(tmp_path.glob("*damaged*")) == []
        assert adopt_results(open_journal()) == {"job-1": RESULT}

    @pytest.mark.parametrize("mode", [0o600, 0o644])
    def test_file_is_used_where_modes_cannot_be_set(
        self, open_journal: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
    ) -> None:
        (tmp_path / "journal.db").touch()
        (tmp_path / "journal.db").chmod(mode)
        monkeypatch.setattr(os, "chmod", refuse(errno.EPERM))
        with capture_logs() as logs:
            finished(open_journal(), 1)
        assert list(tmp_path.glob("*damaged*")) == []
        assert [log["log_level"] for log in logs] == (["warning"] if mode == 0o644 else [])


def test_result_goes_into_the_file_that_other_processes_use(open_journal: Opener, tmp_path: Path) -> None:
    """As when another process has set the old file aside."""
    journal = open_journal()
    journal.begin([directive(number=1)])
    for path in tmp_path.glob("journal.db*"):
        path.rename(path.with_name(f"aside-{path.name}"))
    other = open_journal()
    journal.finish(directive(number=1), RESULT)
    journal.close()
    assert adopt_results(other) == {"job-1": RESULT}
