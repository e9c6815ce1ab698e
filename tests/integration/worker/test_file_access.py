"""Attacks by refs: a client names files that are not its own, and the SDK must refuse each."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lucius.contract.reserved_names import DATA_FILES, find_name_fault
from lucius.worker import FailureClass, StepFailure, reach
from lucius.worker.settings import settings_from
from lucius.worker.workspace import Files
from tests.integration.worker.support import directive

CONFIG = "api_keys: []\n"


class Machine:
    """A data directory as `lucius dev` makes it, with a configuration and documents beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / ".lucius"
        self.config = folder / "settings.yaml"
        self.protocols = folder / "flows"
        for path, text in {
            self.data / "token.secret": "token secret",
            self.data / "webhook.secret": "webhook secret",
            self.data / "ledger.db": "ledger",
            self.data / "workspace/lucius/acme/job-1/ocr/1/text.txt": "ours",
            self.data / "workspace/lucius/acme/job-2/ocr/1/text.txt": "another job's",
            self.data / "workspace/lucius/globex/job-3/ocr/1/text.txt": "another tenant's",
            self.data / "blobs/in/a.txt": "a blob",
            self.config: CONFIG,
            self.protocols / "ocr.yaml": "protocol",
            folder / "docs/a.txt": "a document",
            folder / "docs/server.pem": "private key",
            folder / "docs/lucius.yaml": CONFIG,
        }.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def service(self, *roots: Path, environ: Mapping[str, str] | None = None, **changes: Any) -> Files:
        """Return the files of job-1's first attempt in a service with these file roots."""
        env = {
            "LUCIUS_DATA_DIR": str(self.data),
            "LUCIUS_CONFIG": str(self.config),
            "LUCIUS_PROTOCOLS_DIR": str(self.protocols),
            "LUCIUS_FILE_ROOTS": os.pathsep.join(map(str, roots)),
        }
        sent = directive(workspace_ref=(self.data / "workspace/lucius/acme/job-1").as_uri(), **changes)
        return Files(sent, settings_from(env if environ is None else environ).places)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def assert_refused(files: Files, path: Path) -> None:
    """Assert that neither a read nor a write reaches the path, and that its content is unchanged."""
    before = path.read_bytes() if path.is_file() else None
    for act in (lambda: files.read(path.as_uri()), lambda: files.write_output(b"mine", ref=path.as_uri())):
        with pytest.raises(StepFailure) as refused:
            act()
        assert (refused.value.code, refused.value.failure_class) == ("FORBIDDEN_REF", FailureClass.NON_RETRYABLE)
    assert (path.read_bytes() if path.is_file() else None) == before


OF_LUCIUS = [
    ".lucius/token.secret",
    ".lucius/webhook.secret",
    ".lucius/ledger.db",
    ".lucius/new.file",
    ".lucius/workspace/lucius/acme/job-2/ocr/1/text.txt",
    ".lucius/workspace/lucius/globex/job-3/ocr/1/text.txt",
    "settings.yaml",
    "flows/ocr.yaml",
    "flows/new.yaml",
    "docs/lucius.yaml",
    "docs/server.pem",
]


@pytest.mark.parametrize("name", ["docs/a.txt", *OF_LUCIUS])
def test_paths_outside_workspace_and_blob_folder_are_unreachable_without_roots(machine: Machine, name: str) -> None:
    assert_refused(machine.service(), machine.folder / name)


def test_system_file_is_unreachable_without_roots(machine: Machine) -> None:
    for files in (machine.service(), machine.service(environ={})):
        with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
            files.read("file:///etc/passwd")


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc/self/root/{data}/token.secret", "/dev/stdin"])
def test_processes_and_devices_are_unreachable_below_a_root_of_the_whole_disk(machine: Machine, path: str) -> None:
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        machine.service(Path("/")).read(f"file://{path.format(data=machine.data)}")


def test_own_workspace_and_blob_folder_are_reachable(machine: Machine) -> None:
    files = machine.service()
    assert files.read((machine.data / "workspace/lucius/acme/job-1/ocr/1/text.txt").as_uri()) == b"ours"
    assert files.read((machine.data / "blobs/in/a.txt").as_uri()) == b"a blob"
    assert files.read("blob://in/a.txt") == b"a blob"
    files.write_output(b"out", ref="blob://out/a.txt")
    assert (machine.data / "blobs/out/a.txt").read_bytes() == b"out"


@pytest.mark.parametrize(
    "name",
    [
        *("server.key", "TLS.KEY", "id_rsa", "id_ed25519", "id_ecdsa", "id_dsa", "a.p12", "a.pfx", "a.jks"),
        *("kubeconfig", "vault.kdbx", "Ledger.db"),
        *(".env.local", ".netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass"),
        *(
            ".lucius/ledger.db",
            ".docker/config.json",
            ".ssh/config",
            ".aws/credentials",
            ".azure/a/b.json",
            ".kube/config",
            ".gnupg/private",
            "a/.SSH/known",
        ),
    ],
)
def test_keys_and_credentials_are_unreachable_below_a_root(machine: Machine, name: str) -> None:
    path = machine.folder / "docs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("secret")
    assert_refused(machine.service(machine.folder / "docs"), path)


HIDDEN = [".bashrc", ".git/hooks/pre-commit", ".vault-token", ".config/gcloud/a.json", "a/.cache/b/c.txt", "..a/b"]


@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_files_are_not_reachable_below_a_root(machine: Machine, name: str) -> None:
    docs = machine.folder / "docs"
    files = machine.service(docs)
    hidden = next(part for part in Path(name).parts if part.startswith("."))
    with pytest.raises(StepFailure, match=rf"hidden name {hidden}: below a file root") as refused:
        files.write_output(b"mine", ref=f"{docs.as_uri()}/{name}")
    assert refused.value.code == "FORBIDDEN_REF"
    assert not (docs / Path(name).parts[0]).exists()
    (docs / name).parent.mkdir(parents=True, exist_ok=True)
    (docs / name).write_text("secret")
    assert_refused(files, docs / name)


def test_hidden_names_are_reachable_in_the_blob_folder_and_the_own_workspace(machine: Machine) -> None:
    files = machine.service(machine.folder)
    files.write_output(b"ours", ref="blob://in/.parts/a")
    assert files.read((machine.data / "blobs/in/.parts/a").as_uri()) == b"ours"
    assert files.read(files.write(".notes", b"ours")) == b"ours"


def test_root_below_a_hidden_folder_permits_what_its_own_root_does_not(machine: Machine) -> None:
    path = machine.folder / "docs/.cache/shared/a.txt"
    path.parent.mkdir(parents=True)
    path.write_text("a document")
    assert machine.service(machine.folder / "docs", path.parent).read(path.as_uri()) == b"a document"
    (path.parent / ".netrc").write_text("secret")
    assert_refused(machine.service(machine.folder / "docs", path.parent), path.parent / ".netrc")


def test_hidden_link_below_a_root_is_not_followed(machine: Machine) -> None:
    docs = machine.folder / "docs"
    (docs / "dotfiles").mkdir()
    (docs / "dotfiles/bashrc").write_text("alias")
    (docs / ".bashrc").symlink_to("dotfiles/bashrc")
    (docs / "tls.pem").symlink_to("dotfiles/bashrc")
    (docs / ".hooks").symlink_to("dotfiles")
    (machine.folder / "other").symlink_to(docs)
    for root in (docs, machine.folder / "other"):
        for name in (".bashrc", ".hooks/bashrc", ".hooks/new", "tls.pem"):
            assert_refused(machine.service(root), docs / name)
            assert_refused(machine.service(root), machine.folder / "other" / name)
    assert machine.service(docs).read((docs / "dotfiles/bashrc").as_uri()) == b"alias"


def test_visible_link_to_a_hidden_file_is_not_followed(machine: Machine) -> None:
    (machine.folder / "docs/.git").mkdir()
    (machine.folder / "docs/.git/config").write_text("secret")
    (machine.folder / "docs/link").symlink_to(".git/config")
    assert_refused(machine.service(machine.folder / "docs"), machine.folder / "docs/link")


@pytest.mark.parametrize("name", ["keys.txt", "monkey", "id_rsa.pub", "env.local", "ssh/a.txt", "aws"])
def test_documents_with_similar_names_are_reachable_below_a_root(machine: Machine, name: str) -> None:
    path = machine.folder / "docs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a document")
    assert machine.service(machine.folder / "docs").read(path.as_uri()) == b"a document"


def test_root_below_a_folder_of_credentials_is_reachable(machine: Machine) -> None:
    path = machine.folder / ".azure/docs/a.txt"
    path.parent.mkdir(parents=True)
    path.write_text("a document")
    assert machine.service(path.parent).read(path.as_uri()) == b"a document"


@pytest.mark.parametrize("setting", ["LUCIUS_LEDGER_URL", "LUCIUS_IDEMPOTENCY_URL"])
@pytest.mark.parametrize("url", ["sqlite:///docs/state.db", "sqlite:///{docs}/state.db"])
def test_databases_named_in_the_environment_are_unreachable(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, setting: str, url: str
) -> None:
    monkeypatch.chdir(machine.folder)
    docs = machine.folder / "docs"
    environ = {"LUCIUS_FILE_ROOTS": str(docs), setting: url.format(docs=docs)}
    files = machine.service(environ=environ)
    monkeypatch.chdir(docs)
    for ending in ("", "-wal", "-shm", "-journal", ".lock"):
        path = docs / f"state.db{ending}"
        path.write_text("state")
        assert_refused(files, path)


@pytest.mark.parametrize(
    ("setting", "url"),
    [
        ("LUCIUS_LEDGER_URL", "postgresql://db/x?sslmode=verify-full&sslkey={}"),
        ("LUCIUS_BUS_URL", "rediss://bus?ssl_ca_certs=/etc/ca.pem&ssl_keyfile={}"),
        ("LUCIUS_IDEMPOTENCY_URL", "rediss://bus?ssl_certfile={}"),
    ],
)
def test_key_files_of_a_connection_are_unreachable(machine: Machine, setting: str, url: str) -> None:
    path = machine.folder / "docs/client tls"
    path.write_text("private key")
    environ = {"LUCIUS_FILE_ROOTS": str(machine.folder / "docs"), setting: url.format(quote(str(path)))}
    assert_refused(machine.service(environ=environ), path)


@pytest.mark.parametrize("name", OF_LUCIUS)
def test_lucius_files_are_unreachable_below_a_root(machine: Machine, name: str) -> None:
    files = machine.service(machine.folder)
    assert files.read((machine.folder / "docs/a.txt").as_uri()) == b"a document"
    assert_refused(files, machine.folder / name)


@pytest.mark.parametrize("name", OF_LUCIUS)
def test_symlink_to_a_lucius_file_is_refused(machine: Machine, name: str) -> None:
    (machine.folder / "docs/link").symlink_to(machine.folder / name)
    (machine.folder / "docs/folder").symlink_to((machine.folder / name).parent)
    files = machine.service(machine.folder)
    assert_refused(files, machine.folder / "docs/link")
    assert_refused(files, machine.folder / "docs/folder" / Path(name).name)


@pytest.mark.parametrize("name", [".lucius/token.secret", "settings.yaml", "flows/ocr.yaml"])
def test_hard_link_to_a_lucius_file_is_not_read(machine: Machine, name: str) -> None:
    other = machine.folder / "docs/innocent.txt"
    other.hardlink_to(machine.folder / name)
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        machine.service(machine.folder).read(other.as_uri())


@pytest.mark.parametrize(
    "name",
    [
        ".lucius/workspace/lucius/acme/job-2/ocr/1/text.txt",
        ".lucius/workspace/lucius/globex/job-3/ocr/1/text.txt",
        "flows/shared/common/base.yaml",
    ],
)
def test_hard_link_to_a_nested_lucius_file_is_not_read(machine: Machine, name: str) -> None:
    target = machine.folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("theirs")
    (machine.folder / "flows/dangling").symlink_to("nowhere")
    for other, ref in (("docs/h.txt", None), (".lucius/blobs/in/h.txt", "blob://in/h.txt")):
        (machine.folder / other).hardlink_to(target)
        with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
            machine.service(machine.folder).read(ref or (machine.folder / other).as_uri())


def test_hard_links_between_blobs_and_to_the_own_workspace_are_read(machine: Machine) -> None:
    blobs = machine.data / "blobs/in"
    (blobs / "b.txt").hardlink_to(blobs / "a.txt")
    (blobs / "ours.txt").hardlink_to(machine.data / "workspace/lucius/acme/job-1/ocr/1/text.txt")
    assert machine.service().read("blob://in/b.txt") == b"a blob"
    assert machine.service().read("blob://in/ours.txt") == b"ours"


def test_hard_link_is_refused_if_there_are_too_many_lucius_files_to_compare(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "MAX_COMPARED_FILES", 3)
    (machine.folder / "docs/b.txt").hardlink_to(machine.folder / "docs/a.txt")
    with pytest.raises(StepFailure, match="hard links: use a copy of it"):
        machine.service(machine.folder).read((machine.folder / "docs/b.txt").as_uri())


def test_document_with_two_hard_links_is_read(machine: Machine) -> None:
    (machine.folder / "docs/b.txt").hardlink_to(machine.folder / "docs/a.txt")
    assert machine.service(machine.folder).read((machine.folder / "docs/b.txt").as_uri()) == b"a document"


def test_symlink_out_of_the_blob_folder_is_refused(machine: Machine) -> None:
    (machine.data / "blobs/in/link").symlink_to(machine.data / "token.secret")
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        machine.service().read("blob://in/link")


def test_data_directory_inside_the_blob_folder_is_unreachable(machine: Machine) -> None:
    env = {"LUCIUS_DATA_DIR": str(machine.data), "LUCIUS_BLOB_ROOT": str(machine.folder)}
    files = machine.service(environ=env)
    assert files.read("blob://docs/a.txt") == b"a document"
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        files.read("blob://.lucius/token.secret")


@pytest.mark.parametrize(
    "name", ["token.secret", "ledger.db", "new.file", "workspace/lucius/globex/job-3/ocr/1/text.txt"]
)
def test_data_directory_is_unreachable_for_a_service_without_its_setting(machine: Machine, name: str) -> None:
    files = machine.service(environ={"LUCIUS_BLOB_ROOT": str(machine.folder)})
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        files.read(f"blob://.lucius/{name}")
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        files.write_output(b"mine", ref=f"blob://.lucius/{name}")
    assert files.read("blob://docs/a.txt") == b"a document"


def test_folder_beside_a_workspace_is_reachable_if_it_is_no_data_directory(tmp_path: Path) -> None:
    files = service_beside(tmp_path, "blob")
    (tmp_path / "shared/a.txt").write_text("a document")
    assert files.read("blob://shared/a.txt") == b"a document"


def service_beside(folder: Path, *kinds: str) -> Files:
    """Return the files of job-1 in a service that knows no data directory: its roots are `folder`."""
    settings = {"blob": "LUCIUS_BLOB_ROOT", "file": "LUCIUS_FILE_ROOTS"}
    workspace = folder / "shared/lucius/acme/job-1"
    workspace.mkdir(parents=True, exist_ok=True)
    places = settings_from({settings[kind]: str(folder) for kind in kinds}).places
    return Files(directive(workspace_ref=workspace.as_uri()), places)


def assert_blob_refused(files: Files, ref: str, reason: str) -> None:
    """Assert that a ref is neither read nor written, and that the refusal gives the reason."""
    for act in (lambda: files.read(ref), lambda: files.write_output(b"mine", ref=ref)):
        with pytest.raises(StepFailure, match=reason) as refused:
            act()
        assert (refused.value.code, refused.value.failure_class) == ("FORBIDDEN_REF", FailureClass.NON_RETRYABLE)


@pytest.mark.parametrize("kind", ["blob", "file"])
@pytest.mark.parametrize(
    "mark", ["token.secret", "webhook.secret", "webhook-master.secret", "dev.key", "ledger.db", "deep/token.secret"]
)
def test_data_directory_below_a_root_is_recognized_by_its_files(tmp_path: Path, kind: str, mark: str) -> None:
    data = (tmp_path / "data" / mark).parent
    (data / "journal").mkdir(parents=True)
    (tmp_path / "data" / mark).write_text("secret")
    (data / "journal/a.txt").write_text("a result")
    files = service_beside(tmp_path, kind)
    root = "blob:/" if kind == "blob" else tmp_path.as_uri()
    below = data.relative_to(tmp_path)
    for name in (Path(mark).name, "journal/a.txt", "new/file"):
        assert_blob_refused(files, f"{root}/{below}/{name}", f"data directory of Lucius: .* {Path(mark).name}")
    assert (tmp_path / "data" / mark).read_text() == "secret"
    assert not (data / "new").exists()


def test_blob_folder_that_is_a_data_directory_opens_nothing_of_it(tmp_path: Path) -> None:
    (tmp_path / "webhook-master.secret").write_text("secret")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("text")
    assert_blob_refused(service_beside(tmp_path, "blob"), "blob://in/a.txt", "data directory of Lucius")


def test_blob_folder_and_own_workspace_within_a_recognized_data_directory_are_reachable(tmp_path: Path) -> None:
    for name in ("token.secret", "blobs/in/a.txt", "workspace/lucius/acme/job-1/b.txt"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text("ours")
    workspace = tmp_path / "data/workspace/lucius/acme/job-1"
    env = {"LUCIUS_BLOB_ROOT": str(tmp_path / "data/blobs"), "LUCIUS_FILE_ROOTS": str(tmp_path)}
    files = Files(directive(workspace_ref=workspace.as_uri()), settings_from(env).places)
    assert files.read("blob://in/a.txt") == b"ours"
    assert files.read((tmp_path / "data/blobs/in/a.txt").as_uri()) == b"ours"
    assert files.read((workspace / "b.txt").as_uri()) == b"ours"


@pytest.mark.parametrize("name", ["tls.pem", "TOKEN.SECRET", "dev.key", "lucius.yaml", "Ledger.db", ".ssh/config"])
def test_names_of_key_and_configuration_files_are_no_blobs(tmp_path: Path, name: str) -> None:
    (tmp_path / "in/.ssh").mkdir(parents=True)
    assert_blob_refused(service_beside(tmp_path, "blob"), f"blob://in/{name}", "reserved")
    (tmp_path / "in" / name).write_text("secret")
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        service_beside(tmp_path, "blob").read(f"blob://in/{name}")


def test_names_of_the_files_of_a_data_directory_are_reserved() -> None:
    for is_blob in (False, True):
        assert [name for name in DATA_FILES if not find_name_fault([name], allow_hidden=True, is_blob=is_blob)] == []


def test_folder_named_like_a_file_of_a_data_directory_marks_none(tmp_path: Path) -> None:
    files = service_beside(tmp_path, "blob")
    files.write_output(b"mine", ref="blob://in/ledger.db/a.txt")
    files.write_output(b"mine", ref="blob://in/b.txt")
    assert files.read("blob://in/b.txt") == b"mine"


def test_files_of_other_jobs_are_unreachable_for_a_service_without_a_data_directory(machine: Machine) -> None:
    files = machine.service(environ={"LUCIUS_FILE_ROOTS": str(machine.folder)})
    assert_refused(files, machine.data / "workspace/lucius/globex/job-3/ocr/1/text.txt")
    assert_refused(files, machine.data / "workspace/lucius/acme/job-2/ocr/1/text.txt")


@pytest.mark.parametrize(
    "spelling", ["{docs}/%2e%2e/settings.yaml", "{docs}/../settings.yaml", "{docs}/..%2fsettings.yaml"]
)
def test_parent_segments_are_refused_in_every_encoding(machine: Machine, spelling: str) -> None:
    ref = f"file://{spelling.format(docs=machine.folder / 'docs')}"
    with pytest.raises(StepFailure, match="FORBIDDEN_REF"):
        machine.service(machine.folder).write_output(b"mine", ref=ref)
    assert machine.config.read_text() == CONFIG


def test_refusal_names_the_setting_that_would_permit_the_path(machine: Machine) -> None:
    with pytest.raises(StepFailure, match="LUCIUS_FILE_ROOTS"):
        machine.service().read((machine.folder / "docs/a.txt").as_uri())
