"""Choice of server and key."""

import os
import stat
from pathlib import Path

import pytest

from lucius.cli.connection import Connection, dev_key, places_beside_dev, read_dev_server, remember_dev_server
from tests.integration.cli.support import Answer, Stub, lucius

NO_JOBS: Answer = (200, {"jobs": [], "next_cursor": None})


def test_dev_server_of_the_folder_is_found_with_its_key(stub: Stub, tmp_path: Path) -> None:
    stub.routes["GET /v1/jobs"] = NO_JOBS
    folder = tmp_path / ".lucius"
    folder.mkdir()
    remember_dev_server(folder, stub.url)
    key = dev_key(folder)
    assert lucius("jobs", "list").exit_code == 0
    assert stub.asked[0].headers["authorization"] == f"Bearer {key}"


def test_dev_key_is_sent_to_no_other_server(stub: Stub, tmp_path: Path) -> None:
    folder = tmp_path / ".lucius"
    folder.mkdir()
    remember_dev_server(folder, "http://127.0.0.1:1")
    dev_key(folder)
    assert lucius("--url", stub.url, "jobs", "list").exit_code == 2
    assert stub.asked == []


def test_missing_key_is_refused_with_the_ways_to_give_one(stub: Stub) -> None:
    said = lucius("--url", stub.url, "jobs", "list").stderr
    assert f"no API key for {stub.url}: give --api-key or LUCIUS_API_KEY" in said
    assert "`lucius --data-dir DIR …`" in said


def test_options_override_the_environment(stub: Stub) -> None:
    stub.routes["GET /v1/jobs"] = NO_JOBS
    env = {"LUCIUS_URL": "http://127.0.0.1:1", "LUCIUS_API_KEY": "from-env"}
    assert lucius("jobs", "list", "--url", stub.url, "--api-key", "said", env=env).exit_code == 0
    assert lucius("--url", stub.url, "--api-key", "said", "jobs", "list", env=env).exit_code == 0
    assert lucius("jobs", "list", env={"LUCIUS_URL": stub.url, "LUCIUS_API_KEY": "from-env"}).exit_code == 0
    assert [asked.headers["authorization"] for asked in stub.asked] == [
        "Bearer said",
        "Bearer said",
        "Bearer from-env",
    ]


def test_dev_key_is_created_once_and_private(tmp_path: Path) -> None:
    key = dev_key(tmp_path)
    assert dev_key(tmp_path) == key
    assert stat.S_IMODE((tmp_path / "dev.key").stat().st_mode) == 0o600


def test_dev_key_of_the_environment_is_used_and_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUCIUS_DEV_API_KEY", "given")
    assert dev_key(tmp_path) == "given"
    assert not (tmp_path / "dev.key").exists()


@pytest.mark.parametrize("has_old_key", [False, True])
def test_dev_key_of_the_environment_is_required_by_its_name(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_old_key: bool
) -> None:
    folder = tmp_path / ".lucius"
    folder.mkdir()
    if has_old_key:
        dev_key(folder)
    monkeypatch.setenv("LUCIUS_DEV_API_KEY", "given")
    remember_dev_server(folder, stub.url)
    stub.routes["GET /v1/jobs"] = NO_JOBS
    assert lucius("jobs", "list").exit_code == 0
    monkeypatch.delenv("LUCIUS_DEV_API_KEY")
    result = lucius("jobs", "list")
    assert result.exit_code == 2
    assert "this dev server was started with LUCIUS_DEV_API_KEY: set it here too" in result.stderr
    assert len(stub.asked) == 1


def test_service_beside_a_dev_server_gets_its_folders_unless_the_environment_names_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remember_dev_server(tmp_path, "http://127.0.0.1:8391", tmp_path / "in", f"/srv{os.pathsep}/mnt")
    to = Connection("http://127.0.0.1:8391", dev_key(tmp_path))
    own, blobs, files = (
        {"data_dir": tmp_path},
        {"blob_root": tmp_path / "in"},
        {"file_roots": (Path("/srv"), Path("/mnt"))},
    )
    assert places_beside_dev(tmp_path, to) == {**own, **blobs, **files}
    monkeypatch.setenv("LUCIUS_BLOB_ROOT", "/elsewhere")
    assert places_beside_dev(tmp_path, to) == {**own, **files}
    monkeypatch.setenv("LUCIUS_FILE_ROOTS", "/elsewhere")
    assert places_beside_dev(tmp_path, to) == own


def test_service_of_another_control_plane_gets_no_folders_of_a_dev_server(tmp_path: Path) -> None:
    key = dev_key(tmp_path)
    assert places_beside_dev(tmp_path, Connection("http://127.0.0.1:8391", key)) == {}
    remember_dev_server(tmp_path, "http://127.0.0.1:8391", tmp_path / "in", "/srv")
    for to in (Connection("http://127.0.0.1:8080", key), Connection("http://127.0.0.1:8391", "another-key")):
        assert places_beside_dev(tmp_path, to) == {}


def test_damaged_dev_json_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text("{")
    assert read_dev_server(tmp_path) is None
