"""`lucius jobs output`: the reported output from its location, or a clear reason for failing."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lucius.cli.errors import Misused, Unsuccessful
from lucius.cli.outputs import fetch_output
from lucius.contract import JobView
from tests.integration.cli.support import Stub, at, job
from tests.integration.cli.test_control_characters import CONTROL, HOSTILE
from tests.integration.worker.test_https_input import responds, serving
from tests.support.tls import Authority


def _reporting(stub: Stub, **fields: Any) -> None:
    stub.routes["GET /v1/jobs/j-1"] = (200, job(**fields))


def test_file_is_copied_unchanged(stub: Stub, tmp_path: Path) -> None:
    made = tmp_path / "a b.json"
    made.write_bytes(b'{"a": "\x1b[2J"}\xff')
    _reporting(stub, output_ref=tmp_path.as_uri(), reported_output_ref=made.as_uri())
    assert at(stub, "jobs", "output", "j-1").stdout_bytes == made.read_bytes()
    result = at(stub, "jobs", "output", "j-1", "-o", str(tmp_path / "copy"))
    assert (result.exit_code, result.stdout) == (0, "")
    assert (tmp_path / "copy").read_bytes() == made.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def test_dash_stands_for_stdout(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = tmp_path / "a.txt"
    made.write_bytes(b"text")
    _reporting(stub, output_ref=tmp_path.as_uri(), reported_output_ref=made.as_uri())
    result = at(stub, "jobs", "output", "j-1", "-o", "-")
    assert (result.stdout_bytes, result.stderr) == (b"text", "")
    assert not (tmp_path / "-").exists()


def test_blob_is_read_from_the_folder_of_dev(stub: Stub, tmp_path: Path) -> None:
    made = tmp_path / ".lucius" / "blobs" / "out" / "a.txt"
    made.parent.mkdir(parents=True)
    made.write_text("made")
    _reporting(stub, output_ref="blob://out/a.txt", reported_output_ref="blob://out/a.txt")
    assert at(stub, "jobs", "output", "j-1").stdout == "made"
    said = at(stub, "jobs", "output", "j-1", "--blob-root", str(tmp_path)).stderr
    assert f"searched in {tmp_path}; --blob-root or LUCIUS_BLOB_ROOT names another blob folder" in said
    made.unlink()
    (tmp_path / "secret").write_text("secret")
    made.symlink_to(tmp_path / "secret")
    assert "leads out of the blob folder" in at(stub, "jobs", "output", "j-1").stderr


def test_result_is_printed_if_no_output_was_reported(stub: Stub) -> None:
    _reporting(stub, output={"pages": 3})
    assert json.loads(at(stub, "jobs", "output", "j-1").stdout) == {"pages": 3}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "reported neither an output nor a result"),
        ({"status": "IN_PROGRESS"}, "job j-1 is IN_PROGRESS and has no output"),
        ({"output_ref": "file:///nowhere/a", "reported_output_ref": "file:///nowhere/a"}, "No such file or directory"),
        ({"reported_output_ref": "s3://bucket/a"}, "s3: refs can't be read from here"),
        ({"output_ref": "https://h.test/a", "reported_output_ref": "https://h.test/a"}, "can't be read from here"),
    ],
)
def test_unavailable_output_is_explained(stub: Stub, tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    _reporting(stub, **fields)
    result = at(stub, "jobs", "output", "j-1", "-o", str(tmp_path / "copy"))
    assert result.exit_code == 1
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def test_terminal_gets_text_without_control_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, terminal = tmp_path / "a.txt", _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    shown = msgspec.convert(job(output_ref=made.as_uri(), reported_output_ref=made.as_uri()), JobView)
    made.write_text("answer" + HOSTILE.replace("\x00", ""))
    await fetch_output(shown, tmp_path, None)
    assert terminal.getvalue().startswith("answer[2J")
    assert CONTROL.findall(terminal.getvalue()) == []
    made.write_bytes(b"%PDF\xff\x00")
    with pytest.raises(Misused, match="-o FILE"):
        await fetch_output(shown, tmp_path, None)


def test_file_option_writes_through_a_link(stub: Stub, tmp_path: Path) -> None:
    _reporting(stub, output={"pages": 3})
    (tmp_path / "there").mkdir()
    real, link = tmp_path / "there" / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    assert at(stub, "jobs", "output", "j-1", "-o", str(link)).exit_code == 0
    assert link.is_symlink()
    assert json.loads(real.read_text()) == {"pages": 3}


def test_file_option_writes_into_a_fifo(stub: Stub, tmp_path: Path) -> None:
    _reporting(stub, output={"pages": 3})
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert at(stub, "jobs", "output", "j-1", "-o", str(fifo)).exit_code == 0
        assert fifo.is_fifo()
        assert json.loads(os.read(reader, 1000)) == {"pages": 3}
    finally:
        os.close(reader)


@pytest.mark.parametrize("asked", ["blob://out/a", "file:///other/", "{there}/out"])
def test_file_outside_of_the_output_ref_is_not_read(stub: Stub, tmp_path: Path, asked: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "secret").write_text("secret")
    told = f"{tmp_path.as_uri()}/out/../secret"
    _reporting(stub, output_ref=asked.format(there=tmp_path.as_uri()), reported_output_ref=told)
    result = at(stub, "jobs", "output", "j-1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "not at or below the job's output_ref" in result.stderr


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        *(("blob://out/acme/", f"blob://out/{name}") for name in ("globex/a", "acme2/a", "acme/../globex/a")),
        ("blob://out/acme/", "blob://out/acme/%2e%2e/globex/a"),
        ("blob://out/acme/", "blob://out/acme/link/a"),
        ("file:///nowhere/out", "blob://out/globex/a"),
        ("blob://out/acme/", "https://h.test/a"),
        *(
            ("https://h.test/out", f"https://{rest}")
            for rest in (
                *("other.test/out/a", "h.test:8443/out/a", "h.test/out2", "h.test/out/../in/a", "h.test/out%2F..%2Fin"),
                *("h.test/out%2Fa", "ada:pw@h.test/out/a", "h.test/out?id=2", "169.254.169.254/latest/meta-data"),
            )
        ),
        ("https://h.test/out?id=1", "https://h.test/out?id=2"),
        ("https://h.test/out", "https://[h.test/out/a"),
        ("file:///nowhere/", "file:///nowhere/a%00b"),
    ],
)
def test_output_that_is_not_at_or_below_the_output_ref_is_not_read(
    stub: Stub, tmp_path: Path, asked: str, told: str
) -> None:
    blobs = tmp_path / "blobs"
    for folder in ("acme", "acme2", "globex"):
        (blobs / "out" / folder).mkdir(parents=True)
        (blobs / "out" / folder / "a").write_text("secret")
    (blobs / "out/acme/link").symlink_to(blobs / "out/globex")
    _reporting(stub, output_ref=asked, reported_output_ref=told)
    result = at(stub, "jobs", "output", "j-1", "--blob-root", str(blobs))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "not at or below the job's output_ref" in " ".join(result.stderr.split())


@pytest.mark.parametrize("told", ["blob://out/acme/j-1-output", "{w}/step/1/a%20b", "blob://artifacts/step/1/a%20b"])
def test_output_below_the_output_ref_or_in_the_own_workspace_is_read(stub: Stub, tmp_path: Path, told: str) -> None:
    workspace = tmp_path / "artifacts"
    for path in (tmp_path / "out/acme/j-1-output", workspace / "step/1/a b"):
        path.parent.mkdir(parents=True)
        path.write_text("made")
    told = told.format(w=workspace.as_uri())
    _reporting(stub, output_ref="blob://out/acme/", workspace_ref=workspace.as_uri(), reported_output_ref=told)
    assert at(stub, "jobs", "output", "j-1", "--blob-root", str(tmp_path)).stdout == "made"


# https


@pytest.fixture
def authority(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Authority:
    ours = Authority(tmp_path_factory.mktemp("tls") / "ours")
    monkeypatch.setenv("SSL_CERT_FILE", str(ours.ca))
    return ours


async def test_https_output_is_read_without_credentials_and_proxies_of_the_environment(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login ada password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    async with serving(authority, responds("200 OK", b"made")) as server:
        shown = msgspec.convert(job(output_ref=server.ref, reported_output_ref=server.ref), JobView)
        await fetch_output(shown, tmp_path, tmp_path / "copy", allow_private=True)
    assert (tmp_path / "copy").read_bytes() == b"made"
    assert b"authorization" not in server.requests[0].lower()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "[::1]"])
async def test_https_output_on_a_private_address_is_refused(tmp_path: Path, authority: Authority, host: str) -> None:
    async with serving(authority, responds("200 OK", b"secret")) as server:
        ref = f"https://{host}:{server.port}/a"
        shown = msgspec.convert(job(output_ref=ref, reported_output_ref=ref), JobView)
        with pytest.raises(Unsuccessful, match="address that is not public; --allow-private"):
            await fetch_output(shown, tmp_path, tmp_path / "copy")
    assert server.requests == []
    assert not (tmp_path / "copy").exists()
