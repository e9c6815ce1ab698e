"""Ledger files and data directories that other users of the host can't read."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from lucius.adapters.ledger.sqlite.store import open_sqlite
from tests.support.api import serving, settings_for


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


async def test_ledger_folder_and_files_are_private(tmp_path: Path, open_umask: None) -> None:
    path = tmp_path / "deep" / "ledger.db"
    store = open_sqlite(path)
    assert mode(path.parent) == 0o700
    files = ("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.lock")
    assert {found.name: oct(mode(found)) for found in path.parent.iterdir()} == dict.fromkeys(files, "0o600")
    await store.close()
    path.chmod(0o644)
    await open_sqlite(path).close()
    assert mode(path) == 0o600


async def test_control_plane_makes_its_data_directory_private(tmp_path: Path, open_umask: None) -> None:
    folder = tmp_path / "data"
    folder.mkdir(0o755)
    settings = settings_for(folder, ledger_url=f"sqlite:///{folder / 'ledger.db'}", token_secrets=())
    async with serving(settings):
        assert mode(folder) == 0o700
        assert {path.name: oct(mode(path)) for path in folder.iterdir() if path.is_file()} == {
            path.name: "0o600" for path in folder.iterdir() if path.is_file()
        }
        assert (folder / "token.secret").exists()
