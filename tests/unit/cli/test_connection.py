"""Which server, which key."""

import stat
from pathlib import Path

import pytest

from lucius.cli.connection import dev_key, read_dev_server, remember_dev_server
from tests.unit.cli.support import Answer, Stub, lucius

NO_JOBS: Answer = (200, {"jobs": [], "next_cursor": None})


def test_the_dev_server_of_this_folder_is_found_with_its_key(stub: Stub, tmp_path: Path) -> None:
    stub.routes["GET /v1/jobs"] = NO_JOBS
    folder = tmp_path / ".lucius"
    folder.mkdir()
    remember_dev_server(folder, stub.url)
    key = dev_key(folder)
    assert lucius("jobs", "list").exit_code == 0
    assert stub.asked[0].headers["authorization"] == f"Bearer {key}"


def test_the_dev_key_goes_to_no_other_server(stub: Stub, tmp_path: Path) -> None:
    folder = tmp_path / ".lucius"
    folder.mkdir()
    remember_dev_server(folder, "http://127.0.0.1:1")
    dev_key(folder)
    assert lucius("--url", stub.url, "jobs", "list").exit_code == 2
    assert stub.asked == []


def test_what_is_said_wins_over_the_environment(stub: Stub) -> None:
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


def test_the_dev_key_is_made_once_and_is_nobody_elses_to_read(tmp_path: Path) -> None:
    key = dev_key(tmp_path)
    assert dev_key(tmp_path) == key
    assert stat.S_IMODE((tmp_path / "dev.key").stat().st_mode) == 0o600


def test_a_given_dev_key_is_used_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUCIUS_DEV_API_KEY", "given")
    assert dev_key(tmp_path) == "given"
    assert not (tmp_path / "dev.key").exists()


def test_a_damaged_dev_json_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text("{")
    assert read_dev_server(tmp_path) is None
