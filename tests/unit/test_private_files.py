"""Data directories that other users of the host can't read."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from lucius.private_files import make_data_folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_new_data_folder_is_private(tmp_path: Path, open_umask: None) -> None:
    make_data_folder(tmp_path / "a" / "data")
    assert mode(tmp_path / "a" / "data") == 0o700


def test_world_readable_data_folder_and_its_files_are_made_private(tmp_path: Path, open_umask: None) -> None:
    folder = tmp_path / "data"
    folder.mkdir(0o755)
    for name in ("ledger.db", "ledger.db-wal", "token.secret", "dev.key", "notes.txt"):
        (folder / name).touch(0o644)
    (folder / "other.secret").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").touch(0o644)
    make_data_folder(folder)
    assert mode(folder) == 0o700
    assert {path.name for path in folder.iterdir() if mode(path) == 0o600} == {
        "ledger.db",
        "ledger.db-wal",
        "token.secret",
        "dev.key",
    }
    assert mode(tmp_path / "elsewhere") == 0o644


@pytest.mark.parametrize("what", ["working directory", "home", "sticky"])
def test_shared_folder_keeps_its_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    folder = tmp_path / "shared"
    (folder / "project").mkdir(parents=True)
    folder.chmod(0o1777 if what == "sticky" else 0o755)
    if what == "working directory":
        monkeypatch.chdir(folder / "project")
    if what == "home":
        monkeypatch.setenv("HOME", str(folder))
    before = mode(folder)
    make_data_folder(folder)
    assert mode(folder) == before
