import errno
import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lucius.contract import RefRules
from lucius.worker import FailureClass, NonRetryable, Service, StepContext, StepFailure, StepResult, Workspace
from lucius.worker.testing import Outcome, run_step
from lucius.worker.workspace import Files, Places
from tests.integration.worker.support import directive


def workspace(tmp_path: Path, places: Places | None = None, **changes: Any) -> Workspace:
    work = directive(workspace_ref=f"file://{tmp_path}/workspace/lucius/acme/job-1", **changes)
    return Workspace(Files(work, places or Places(blob_root=tmp_path / "blobs", file_roots=(tmp_path,))))


async def test_artifact_is_stored_under_step_and_attempt_and_can_be_read(tmp_path: Path) -> None:
    space = workspace(tmp_path, attempt_no=3)
    ref = await space.write("output.txt", b"hello")
    assert ref == f"file://{tmp_path}/workspace/lucius/acme/job-1/ocr/3/output.txt"
    assert await space.read(ref) == b"hello"


async def test_failed_write_leaves_the_former_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
async def test_umask_decides_the_mode_of_written_files(tmp_path: Path, umask: int, mode: int) -> None:
    space, before = workspace(tmp_path), os.umask(umask)
    try:
        await space.write("a", b"a")
        await space.write_output(b"a", ref=f"file://{tmp_path}/out")
    finally:
        os.umask(before)
    written = (tmp_path / "workspace/lucius/acme/job-1/ocr/1/a", tmp_path / "out")
    assert [path.stat().st_mode & 0o777 for path in written] == [mode, mode]


def watched_fsync(monkeypatch: pytest.MonkeyPatch, refused: int | None = None) -> list[str]:
    """Return the names of synced files, in order; fsync of folders can be made to fail."""
    synced: list[str] = []

    def fsync(handle: int) -> None:
        name = os.readlink(f"/proc/self/fd/{handle}")
        if refused and os.path.isdir(name):
            raise OSError(refused, os.strerror(refused))
        synced.append(name)

    monkeypatch.setattr(os, "fsync", fsync)
    return synced


async def test_written_files_and_new_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = watched_fsync(monkeypatch)
    await workspace(tmp_path).write("deep/a", b"a")
    root = tmp_path / "workspace/lucius/acme/job-1"
    folders = {tmp_path, *(root.parents[number] for number in range(3)), root, root / "ocr", root / "ocr/1"}
    assert {name for name in synced if not name.endswith(".tmp")} == {*map(str, folders), f"{root}/ocr/1/deep"}
    synced.clear()
    await workspace(tmp_path).write("deep/b", b"b")
    assert [name for name in synced if not name.endswith(".tmp")] == [f"{root}/ocr/1/deep"]


@pytest.mark.parametrize(("refused", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
async def test_unsupported_folder_sync_is_ignored_and_an_io_error_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int, fails: bool
) -> None:
    watched_fsync(monkeypatch, refused)
    with pytest.raises(StepFailure, match="STORAGE_ERROR") if fails else nullcontext():
        await workspace(tmp_path).write("a", b"a")


async def test_file_missing_from_the_manifest_is_read_unverified(tmp_path: Path) -> None:
    """A library may have written it. Files in the manifest are verified."""
    files = Files(directive(workspace_ref=f"file://{tmp_path}"), Places())
    named = files.write("named", b"a")
    files.write_manifest()
    folder = tmp_path / "ocr/1"
    (folder / "other").write_bytes(b"b")
    assert files.read(f"file://{folder}/other") == b"b"
    (folder / "named").write_bytes(b"c")
    with pytest.raises(NonRetryable, match="CHECKSUM_MISMATCH"):
        files.read(named)


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "", "..", "a\\b", "a\0b", ".", "./", "./."])
async def test_artifact_name_cannot_leave_the_attempt_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        await workspace(tmp_path).write(name, b"x")


async def test_step_id_cannot_leave_the_workspace(tmp_path: Path) -> None:
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        workspace(tmp_path, stepId="../../other")


async def test_symlink_cannot_lead_a_write_out_of_the_workspace(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    attempt = tmp_path / "workspace/lucius/acme/job-1/ocr/1"
    attempt.mkdir(parents=True)
    (attempt / "link").symlink_to(outside)
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        await workspace(tmp_path).write("link/x", b"x")
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("ref", ["blob://in/../../secret", "blob://../secret", "blob://in/%2e%2e/%2e%2e/secret"])
async def test_blob_ref_cannot_leave_the_blob_root(tmp_path: Path, ref: str) -> None:
    (tmp_path / "secret").write_text("s")
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        await workspace(tmp_path).read(ref)


async def test_blob_ref_is_a_file_under_the_blob_root(tmp_path: Path) -> None:
    space = workspace(tmp_path)
    assert await space.write_output(b"x", ref="blob://out/a%20b.txt") == "blob://out/a%20b.txt"
    assert (tmp_path / "blobs/out/a b.txt").read_bytes() == b"x"
    assert await space.read("blob://out/a%20b.txt") == b"x"


@pytest.mark.parametrize("rules", [RefRules(prefixes=["in/acme", "out/acme"]), RefRules(prefixes=["blob://in/acme"])])
async def test_symlink_in_the_blob_folder_cannot_reach_another_prefix(tmp_path: Path, rules: RefRules) -> None:
    blobs = tmp_path / "blobs"
    for tenant in ("acme", "beta"):
        (blobs / "in" / tenant).mkdir(parents=True)
        (blobs / "in" / tenant / "a").write_text(tenant)
    (blobs / "in/acme/l").symlink_to("../beta")
    (blobs / "in/acme/own").symlink_to("a")
    (blobs / "in/acme/job-1-output").symlink_to("../beta/new")
    space = workspace(tmp_path, ref_rules=[rules])
    assert await space.read("blob://in/acme/own") == b"acme"
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        await space.read("blob://in/acme/l/a")
    for ref in ("blob://in/acme/l/new", "blob://in/acme/l", "blob://in/acme/l/", "blob://in/acme/", "blob://in/acme"):
        with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
            await space.write_output(b"x", ref=ref)
    assert [file.name for file in (blobs / "in/beta").iterdir()] == ["a"]


async def test_symlink_in_the_blob_folder_cannot_reach_another_container(tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    for container in ("in", "other"):
        (blobs / container).mkdir(parents=True)
        (blobs / container / "a").write_text(container)
    (blobs / "in/l").symlink_to("../other")
    space = workspace(tmp_path, ref_rules=[RefRules(containers=["in"])])
    assert await space.read("blob://in/a") == b"in"
    with pytest.raises(StepFailure, match="the container other is not allowed"):
        await space.read("blob://in/l/a")
    with pytest.raises(StepFailure, match="the container other is not allowed"):
        await space.write_output(b"x", ref="blob://in/l/new")


async def test_file_roots_confine_client_refs_but_not_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    space = workspace(tmp_path, Places(file_roots=(tmp_path / "in",)))
    assert await space.read(f"file://{tmp_path}/in/a.txt") == b"a"
    assert await space.read(f"FILE://LocalHost{tmp_path}/in/a.txt") == b"a"
    assert await space.read(await space.write("x", b"x")) == b"x"
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        await space.read(f"file://{tmp_path}/b.txt")
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        await space.write_output(b"x", ref=f"file://{tmp_path}/out.txt")


@pytest.mark.parametrize(
    ("ref", "code"),
    [
        ("file:///does/not/exist", "FORBIDDEN_REF"),
        ("file:///", "FORBIDDEN_REF"),
        ("blob://in/none", "INPUT_NOT_FOUND"),
        ("blob://in/" + "a" * 300, "INPUT_NOT_FOUND"),
        ("file://host/x", "UNSUPPORTED_REF"),
        ("file:relative", "UNSUPPORTED_REF"),
        ("http://example.com/x", "UNSUPPORTED_REF"),
        ("blob://in/x?sig=secret", "UNSUPPORTED_REF"),
        ("blob://in", "UNSUPPORTED_REF"),
        ("blob://me:pw@in/x", "UNSUPPORTED_REF"),
        ("http://[", "UNSUPPORTED_REF"),
        ("", "UNSUPPORTED_REF"),
    ],
)
async def test_unreadable_ref_is_not_retried(tmp_path: Path, ref: str, code: str) -> None:
    (tmp_path / "blobs/in").mkdir(parents=True)
    with pytest.raises(StepFailure) as failed:
        await workspace(tmp_path).read(ref)
    assert (failed.value.code, failed.value.failure_class) == (code, FailureClass.NON_RETRYABLE)


async def test_blob_ref_without_a_blob_folder_names_the_missing_settings(tmp_path: Path) -> None:
    with pytest.raises(StepFailure, match="neither LUCIUS_BLOB_ROOT nor LUCIUS_DATA_DIR is set") as failed:
        await workspace(tmp_path, Places(file_roots=(tmp_path,))).read("blob://in/a.pdf")
    assert (failed.value.code, failed.value.failure_class) == ("UNSUPPORTED_REF", FailureClass.NON_RETRYABLE)


@pytest.mark.parametrize("exists", [True, False])
async def test_output_ref_of_a_folder_gets_a_file_inside(tmp_path: Path, exists: bool) -> None:
    folder = tmp_path / "out"
    ref = f"file://{folder}/"
    if exists:
        folder.mkdir()
        ref = f"file://{folder}"
    written = await workspace(tmp_path).write_output(b"x", "result.json", ref=ref)
    assert written == f"file://{folder}/job-1-result.json"
    assert (folder / "job-1-result.json").read_bytes() == b"x"


async def test_output_ref_without_a_path_does_not_block_its_container(tmp_path: Path) -> None:
    space = workspace(tmp_path)
    with pytest.raises(NonRetryable, match="needs a path after its container"):
        await space.write_output(b"x", ref="blob://out")
    assert await space.write_output(b"x", ref="blob://out/") == "blob://out/job-1-output"


async def test_inputs_and_outputs_are_limited_in_size(tmp_path: Path) -> None:
    space = workspace(tmp_path, Places(max_bytes=4, file_roots=(tmp_path,)))
    (tmp_path / "big").write_bytes(b"12345")
    with pytest.raises(StepFailure, match="INPUT_TOO_LARGE"):
        await space.read(f"file://{tmp_path}/big")
    with pytest.raises(StepFailure, match="OUTPUT_TOO_LARGE"):
        await space.write("x", b"12345")


@pytest.mark.parametrize(("grown", "read"), [(b"34", b"1234"), (b"345", None)])
async def test_file_that_grows_while_it_is_read_stays_within_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grown: bytes, read: bytes | None
) -> None:
    space = workspace(tmp_path, Places(max_bytes=4, file_roots=(tmp_path,)))
    (tmp_path / "growing").write_bytes(b"12")
    open_file = Path.open

    def grow_and_open(path: Path, *args: Any, **kwargs: Any) -> Any:
        with open(path, "ab") as file:
            file.write(grown)
        return open_file(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", grow_and_open)
    with pytest.raises(StepFailure, match="INPUT_TOO_LARGE") if read is None else nullcontext():
        assert await space.read(f"file://{tmp_path}/growing") == read


async def test_output_name_too_long_for_a_file_is_not_retried(tmp_path: Path) -> None:
    with pytest.raises(NonRetryable, match="OUTPUT_FORBIDDEN"):
        await workspace(tmp_path).write_output(b"x", ref="blob://out/" + "a" * 300)


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (lambda files: files.write_output(b"x", ref="blob://out/taken/a"), "blob://out/taken/a"),
        (lambda files: files.write_output(b"x", ref="blob://out/" + "a" * 300), "blob://out/aaa"),
        (lambda files: files.write("taken/a.txt", b"x"), "taken/a.txt"),
    ],
)
async def test_failure_to_write_names_the_ref_and_no_path_of_the_service(
    tmp_path: Path, write: Callable[[Files], object], named: str
) -> None:
    for taken in ("blobs/out/taken", "workspace/ocr/1/taken"):
        (tmp_path / taken).parent.mkdir(parents=True)
        (tmp_path / taken).write_text("a file in place of a folder")
    places = Places(blob_root=tmp_path / "blobs")
    files = Files(directive(workspace_ref=f"file://{tmp_path}/workspace"), places)
    with pytest.raises(NonRetryable, match="OUTPUT_FORBIDDEN") as failed:
        write(files)
    assert named in failed.value.message
    assert str(tmp_path) not in failed.value.message


# Manifests


def attempt(tmp_path: Path, **changes: Any) -> Files:
    return Files(directive(workspace_ref=f"file://{tmp_path}/workspace", **changes), Places(file_roots=(tmp_path,)))


async def run_ocr(service: Service, tmp_path: Path, **changes: Any) -> Outcome:
    return await run_step(service, "OCR", folder=tmp_path, **changes)


def writing(write: Callable[[Files], object]) -> Service:
    """Return a service with one step, which performs `write` in a thread."""
    service = Service("ocr")

    @service.step("OCR")
    def execute(ctx: StepContext) -> StepResult:
        write(ctx.files)
        return StepResult()

    return service


async def test_manifest_lists_written_files_with_sizes_and_checksums(tmp_path: Path) -> None:
    def write(files: Files) -> None:
        files.write("a.txt", b"draft")
        files.write("a.txt", b"final")
        files.write("pages/1/text.txt", b"one")
        files.write("./pages//2.txt", b"two")

    assert (await run_ocr(writing(write), tmp_path, attempt_no=3)).succeeded
    manifest = json.loads((tmp_path / "workspace/ocr/3/manifest.json").read_text())
    assert {name: manifest[name] for name in ("jobId", "stepId", "attempt_no", "lease_id")} == {
        "jobId": "job-1",
        "stepId": "ocr",
        "attempt_no": 3,
        "lease_id": "lease-1",
    }
    assert {name: entry["size"] for name, entry in manifest["artifacts"].items()} == {
        "a.txt": 5,
        "pages/1/text.txt": 3,
        "pages/2.txt": 3,
    }
    assert manifest["artifacts"]["a.txt"]["sha256"] == hashlib.sha256(b"final").hexdigest()


async def test_artifact_is_its_ref_and_has_its_checksum(tmp_path: Path) -> None:
    written = attempt(tmp_path).write("a b.txt", b"x")
    assert written == f"file://{tmp_path}/workspace/ocr/1/a%20b.txt"
    assert (written.sha256, written.size) == (hashlib.sha256(b"x").hexdigest(), 1)


async def test_failed_step_leaves_no_manifest(tmp_path: Path) -> None:
    def write(files: Files) -> None:
        files.write("a.txt", b"a")
        raise NonRetryable("BAD")

    assert (await run_ocr(writing(write), tmp_path)).code == "BAD"
    assert [file.name for file in (tmp_path / "workspace/ocr/1").iterdir()] == ["a.txt"]


async def test_step_with_an_invalid_result_leaves_no_manifest(tmp_path: Path) -> None:
    service = Service("ocr")

    @service.step("OCR")
    async def execute(ctx: StepContext) -> StepResult:
        await ctx.workspace.write("a.txt", b"a")
        return StepResult(object())

    assert (await run_ocr(service, tmp_path)).code == "INVALID_OUTPUT"
    assert not (tmp_path / "workspace/ocr/1/manifest.json").exists()


async def test_step_that_writes_nothing_needs_no_workspace_and_leaves_no_manifest(tmp_path: Path) -> None:
    outcome = await run_ocr(writing(lambda _: None), tmp_path, workspace_ref="file:///proc/none")
    assert outcome.succeeded
    assert not (tmp_path / "workspace").exists()


async def test_unwritable_manifest_fails_the_attempt(tmp_path: Path) -> None:
    def write(files: Files) -> None:
        files.write("a.txt", b"a")
        (tmp_path / "workspace/ocr/1/manifest.json").mkdir()

    assert (await run_ocr(writing(write), tmp_path)).code == "OUTPUT_FORBIDDEN"


@pytest.mark.parametrize("name", ["manifest.json", "./manifest.json", ".//manifest.json"])
async def test_manifest_cannot_be_written_by_a_step(tmp_path: Path, name: str) -> None:
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        attempt(tmp_path).write(name, b"{}")
    attempt(tmp_path).write("mine/manifest.json", b"{}")


async def test_artifact_changed_after_its_manifest_is_refused(tmp_path: Path) -> None:
    written: list[str] = []
    await run_ocr(writing(lambda files: written.append(files.write("pages/1.txt", b"one"))), tmp_path)
    reader = attempt(tmp_path, stepId="sis")
    assert reader.read(written[0]) == b"one"
    (tmp_path / "workspace/ocr/1/pages/1.txt").write_bytes(b"two")
    with pytest.raises(StepFailure) as failed:
        reader.read(written[0])
    assert (failed.value.code, failed.value.failure_class) == ("CHECKSUM_MISMATCH", FailureClass.NON_RETRYABLE)


async def test_unreadable_manifest_is_an_error(tmp_path: Path) -> None:
    written: list[str] = []
    await run_ocr(writing(lambda files: written.append(files.write("a.txt", b"a"))), tmp_path)
    (tmp_path / "workspace/ocr/1/manifest.json").write_text("{")
    with pytest.raises(StepFailure, match="STORAGE_ERROR"):
        attempt(tmp_path, stepId="sis").read(written[0])


async def test_files_without_a_manifest_are_read_unverified(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/notes.txt").write_text("n")
    (tmp_path / "client.txt").write_text("c")
    files = attempt(tmp_path)
    assert files.read(f"file://{tmp_path}/workspace/notes.txt") == b"n"
    assert files.read(f"file://{tmp_path}/client.txt") == b"c"
    assert files.read(files.write("own.txt", b"o")) == b"o"


async def test_files_can_be_written_from_many_threads(tmp_path: Path) -> None:
    def write(files: Files) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: files.write(f"{n}.txt", str(n).encode()), range(50)))

    assert (await run_ocr(writing(write), tmp_path)).succeeded
    manifest = json.loads((tmp_path / "workspace/ocr/1/manifest.json").read_text())
    assert len(manifest["artifacts"]) == 50
