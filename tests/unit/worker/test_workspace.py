import os
from pathlib import Path
from typing import Any

import pytest

from lucius.worker import FailureClass, StepFailure, Workspace
from lucius.worker.workspace import Files, Places
from tests.unit.worker.support import directive


def workspace(tmp_path: Path, places: Places | None = None, **changes: Any) -> Workspace:
    work = directive(workspace_ref=f"file://{tmp_path}/workspace/lucius/acme/job-1", **changes)
    return Workspace(Files(work, places or Places(blob_root=tmp_path / "blobs")))


async def test_an_artifact_lies_under_step_and_attempt_and_can_be_read_back(tmp_path: Path) -> None:
    space = workspace(tmp_path, attempt_no=3)
    ref = await space.write("output.txt", b"hello")
    assert ref == f"file://{tmp_path}/workspace/lucius/acme/job-1/ocr/3/output.txt"
    assert await space.read(ref) == b"hello"


async def test_a_write_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = workspace(tmp_path)
    await space.write("output.txt", b"first")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(StepFailure, match="No space left") as failed:
        await space.write("output.txt", b"second")
    assert failed.value.failure_class is FailureClass.RETRYABLE
    folder = tmp_path / "workspace/lucius/acme/job-1/ocr/1"
    assert [file.name for file in folder.iterdir()] == ["output.txt"]
    assert (folder / "output.txt").read_bytes() == b"first"


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "", "..", "a\\b", "a\0b"])
async def test_no_artifact_name_leads_out_of_the_attempts_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        await workspace(tmp_path).write(name, b"x")


async def test_no_step_id_leads_out_of_the_workspace(tmp_path: Path) -> None:
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        workspace(tmp_path, stepId="../../other")


async def test_a_link_does_not_lead_out_either(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    attempt = tmp_path / "workspace/lucius/acme/job-1/ocr/1"
    attempt.mkdir(parents=True)
    (attempt / "link").symlink_to(outside)
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        await workspace(tmp_path).write("link/x", b"x")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("ref", ["blob://in/../../secret", "blob://../secret", "blob://in/%2e%2e/%2e%2e/secret"])
async def test_no_blob_ref_leads_out_of_the_blob_root(tmp_path: Path, ref: str) -> None:
    (tmp_path / "secret").write_text("s")
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        await workspace(tmp_path).read(ref)


async def test_a_blob_is_a_file_under_the_blob_root(tmp_path: Path) -> None:
    space = workspace(tmp_path)
    assert await space.write_output(b"x", ref="blob://out/a%20b.txt") == "blob://out/a%20b.txt"
    assert (tmp_path / "blobs/out/a b.txt").read_bytes() == b"x"
    assert await space.read("blob://out/a%20b.txt") == b"x"


async def test_file_roots_confine_client_refs_but_not_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    space = workspace(tmp_path, Places(file_roots=(tmp_path / "in",)))
    assert await space.read(f"file://{tmp_path}/in/a.txt") == b"a"
    assert await space.read(await space.write("x", b"x")) == b"x"
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        await space.read(f"file://{tmp_path}/b.txt")
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        await space.write_output(b"x", ref=f"file://{tmp_path}/out.txt")


@pytest.mark.parametrize(
    ("ref", "code"),
    [
        ("file:///does/not/exist", "INPUT_NOT_FOUND"),
        ("file:///", "UNSUPPORTED_INPUT"),
        ("file://host/x", "UNSUPPORTED_REF"),
        ("file:relative", "UNSUPPORTED_REF"),
        ("https://example.com/x", "UNSUPPORTED_REF"),
        ("blob://in/x?sig=secret", "UNSUPPORTED_REF"),
        ("blob://me:pw@in/x", "UNSUPPORTED_REF"),
        ("http://[", "UNSUPPORTED_REF"),
        ("", "UNSUPPORTED_REF"),
    ],
)
async def test_a_ref_that_can_not_be_read_fails_for_good(tmp_path: Path, ref: str, code: str) -> None:
    with pytest.raises(StepFailure) as failed:
        await workspace(tmp_path).read(ref)
    assert (failed.value.code, failed.value.failure_class) == (code, FailureClass.NON_RETRYABLE)


@pytest.mark.parametrize("exists", [True, False])
async def test_an_output_ref_to_a_folder_gets_a_file_inside(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "out"
    ref = f"file://{folder}/"
    if exists:
        folder.mkdir()
        ref = f"file://{folder}"
    written = await workspace(tmp_path).write_output(b"x", "result.json", ref=ref)
    assert written == f"file://{folder}/job-1-result.json"
    assert (folder / "job-1-result.json").read_bytes() == b"x"


async def test_sizes_are_bounded_both_ways(tmp_path: Path) -> None:
    space = workspace(tmp_path, Places(max_bytes=4))
    (tmp_path / "big").write_bytes(b"12345")
    with pytest.raises(StepFailure, match="INPUT_TOO_LARGE"):
        await space.read(f"file://{tmp_path}/big")
    with pytest.raises(StepFailure, match="OUTPUT_TOO_LARGE"):
        await space.write("x", b"12345")
