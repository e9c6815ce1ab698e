"""Archive files: complete or absent, and never one in place of another."""

import errno
import os
from pathlib import Path

import pytest

from lucius.adapters.archive.folder import ArchiveFolder
from lucius.ports.errors import ArchiveError


@pytest.fixture
def folder(tmp_path: Path) -> ArchiveFolder:
    return ArchiveFolder(tmp_path / "lucius" / "_archive")


def modes_below(root: Path) -> dict[str, str]:
    return {path.relative_to(root).as_posix(): oct(path.stat().st_mode & 0o777) for path in root.rglob("*")}


async def test_stored_file_is_listed_and_can_be_read_and_removed(folder: ArchiveFolder) -> None:
    assert await folder.names() == []
    await folder.put("b/2.jsonl", b"two")
    await folder.put("a/1.jsonl", b"one")
    assert await folder.get("a/1.jsonl") == b"one"
    assert await folder.names() == ["a/1.jsonl", "b/2.jsonl"]
    assert await folder.names("b/") == ["b/2.jsonl"]
    await folder.remove("b/2.jsonl")
    assert await folder.names() == ["a/1.jsonl"]


async def test_archive_is_private_and_parent_folders_keep_their_mode(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with ArchiveFolder.for_writing(tmp_path / "lucius" / "_archive") as folder:
            root = Path(folder.place)
            (root / ".draft").touch(0o644)  # left by an earlier version
            await folder.put("2026/1.jsonl", b"one")
    finally:
        os.umask(before)
    assert modes_below(tmp_path) == {
        "lucius": "0o755",
        "lucius/_archive": "0o700",
        "lucius/_archive/.lock": "0o600",
        "lucius/_archive/2026": "0o700",
        "lucius/_archive/2026/1.jsonl": "0o600",
    }


async def test_open_file_stays_readable_after_its_replacement(folder: ArchiveFolder) -> None:
    await folder.put("a/x", b"old")
    handle = os.open(Path(folder.place) / "a/x", os.O_RDONLY)
    await folder.put("a/x", b"new and longer")
    assert os.read(handle, 100) == b"old"
    os.close(handle)
    assert await folder.get("a/x") == b"new and longer"


async def test_full_disk_leaves_the_old_file(folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    await folder.put("a/x", b"old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArchiveError, match=r"can't write .*a/x: No space left on device"):
        await folder.put("a/x", b"new")
    assert await folder.get("a/x") == b"old"
    assert await folder.names() == ["a/x"]


async def test_move_does_not_overwrite_an_existing_file(folder: ArchiveFolder) -> None:
    await folder.put("pending/x", b"mine")
    await folder.put("a/x", b"theirs")
    with pytest.raises(ArchiveError, match="there is such a file already"):
        await folder.move("pending/x", "a/x")
    await folder.move("pending/x", "b/x")
    assert [await folder.get(name) for name in await folder.names()] == [b"theirs", b"mine"]


async def test_missing_file_raises_archive_error(folder: ArchiveFolder) -> None:
    for act in (folder.get("a/x"), folder.remove("a/x"), folder.move("a/x", "b/x")):
        with pytest.raises(ArchiveError, match=r"a/x.*: No such file or directory"):
            await act


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="says which file a handle is of")
async def test_new_file_and_its_new_folders_are_synced_to_disk(
    folder: ArchiveFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    await folder.put("a/x", b"data")
    root = str(tmp_path)
    folders = {root, f"{root}/lucius", f"{root}/lucius/_archive", f"{root}/lucius/_archive/a"}
    assert set(synced) == {*folders, f"{root}/lucius/_archive/.draft"}
    assert synced.index(f"{root}/lucius/_archive/.draft") < len(synced) - 1, "its name is synced after its content"
