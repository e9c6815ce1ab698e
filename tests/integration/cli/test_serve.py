"""Output of long-running commands: help, startup messages, and references to each other."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from lucius.bootstrap.drain import Drain
from lucius.bootstrap.settings import Settings, load_settings
from lucius.cli.control_plane import base_url, listen, serving
from lucius.cli.errors import Misused
from lucius.cli.serve import file_roots, print_ready, put_sample, try_it, without_secrets
from lucius.cli.services import load_service
from lucius.contract import CommandEnvelope
from lucius.observability.logs import configure_logging
from tests.integration.cli.support import lucius
from tests.support.ports import free_port

REPO = Path(__file__).parents[3]

ON_SQLITE = Settings(data_dir=Path("/data"), ledger_url="sqlite:////data/ledger.db")
WORKSPACE_WARNING = "the workspace is a local folder"


def test_curl_example_is_a_complete_command() -> None:
    words = shlex.split(try_it("http://127.0.0.1:8080", "dev-key").replace("\\\n", " "))
    assert words[:3] == ["curl", "-sS", "http://127.0.0.1:8080/v1/commands"]
    assert "Authorization: Bearer dev-key" in words
    assert "Content-Type: application/json" in words
    msgspec.convert(json.loads(words[words.index("-d") + 1]), CommandEnvelope)


def test_curl_example_names_the_sample_document_which_is_not_overwritten(tmp_path: Path) -> None:
    put_sample(tmp_path)
    words = shlex.split(try_it("http://127.0.0.1:8080", "dev-key").replace("\\\n", " "))
    ref = json.loads(words[words.index("-d") + 1])["input_ref"]
    path = tmp_path / ref.removeprefix("blob://")
    assert path.read_bytes().startswith(b"%PDF-")
    path.write_bytes(b"changed")
    put_sample(tmp_path)
    assert path.read_bytes() == b"changed"


def test_unwritable_sample_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a file where the folder should be")
    with pytest.raises(Misused, match="can't write the sample document"):
        put_sample(tmp_path)


def test_dev_permits_files_below_its_start_folder_by_real_and_logical_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    monkeypatch.chdir(link)
    both = f"{folder}{os.pathsep}{link}"
    assert file_roots({"PWD": str(link)}) == {"LUCIUS_FILE_ROOTS": str(folder), "LUCIUS_DEV_FILE_ROOTS": both}
    for env in ({}, {"PWD": "/"}, {"LUCIUS_FILE_ROOTS": ""}):
        assert file_roots(env) == dict.fromkeys(("LUCIUS_FILE_ROOTS", "LUCIUS_DEV_FILE_ROOTS"), str(folder))
    given = {"LUCIUS_FILE_ROOTS": "/srv", "PWD": str(link)}
    assert file_roots(given) == {"LUCIUS_FILE_ROOTS": "/srv", "LUCIUS_DEV_FILE_ROOTS": "/srv"}
    assert load_settings(file_roots(given)).dev_file_roots == ("/srv",)


def test_dev_prints_where_webhook_secrets_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_ready("http://127.0.0.1:8080", "dev-key", ON_SQLITE, with_services=False)
    said = "signed with each tenant's own secret: GET http://127.0.0.1:8080/v1/tenants/acme/webhook-secrets\n"
    assert said in capsys.readouterr().out


def test_next_steps_name_a_non_default_data_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    print_ready("http://127.0.0.1:8080", "dev-key", Settings(data_dir=tmp_path / "a b"), with_services=True)
    said = capsys.readouterr().out
    assert f"`lucius --data-dir '{tmp_path}/a b' jobs list`" in said
    assert "Try it; paste it again" in said
    print_ready("http://127.0.0.1:8080", "dev-key", Settings(), with_services=False)
    said = capsys.readouterr().out
    assert "`lucius jobs list`" in said
    assert "Submit a command; it waits until services ocr, embedding and sis pull:" in said


def test_next_steps_name_the_program_as_the_shell_finds_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "lucius"
    program.parent.mkdir()
    program.touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bin/lucius", "dev"])
    monkeypatch.setenv("PATH", "/usr/bin")
    print_ready("http://127.0.0.1:8080", "dev-key", Settings(), with_services=False)
    said = capsys.readouterr().out
    assert "`bin/lucius jobs list`" in said
    assert "`bin/lucius service ocr`" in said
    for found in (str(program.parent), "bin"):
        monkeypatch.setenv("PATH", found)
        print_ready("http://127.0.0.1:8080", "dev-key", Settings(), with_services=False)
        assert "`lucius jobs list`" in capsys.readouterr().out


def test_dev_prints_the_addresses_of_temporal_and_its_ui(capsys: pytest.CaptureFixture[str]) -> None:
    print_ready("http://127.0.0.1:8080", "dev-key", Settings(), with_services=False)
    assert "Temporal" not in capsys.readouterr().out
    given = Settings(engine="temporal", temporal_address="t:7233", temporal_ui_url="http://t:8233")
    print_ready("http://127.0.0.1:8080", "dev-key", given, with_services=False)
    said = capsys.readouterr().out
    assert "Temporal t:7233, namespace default\n" in said
    assert "its UI   http://t:8233/namespaces/default/workflows\n" in said


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:s3cret@db:5432/lucius?schema=a&password=s3cret", "postgresql://db:5432/lucius\n"),
        ("postgresql:///lucius?user=ada&password=s3cret", "postgresql:///lucius\n"),
        ("sqlite:////data/what@else/ledger.db", "sqlite:////data/what@else/ledger.db\n"),
    ],
)
def test_dev_prints_the_ledger_without_its_password(url: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_ready("http://127.0.0.1:8080", "dev-key", Settings(ledger_url=url), with_services=False)
    said = capsys.readouterr().out
    assert f"ledger   {shown}" in said
    assert "s3cret" not in said


def test_services_get_no_secrets_of_ledger_cache_and_temporal() -> None:
    env = {
        "LUCIUS_LEDGER_URL": "postgresql://ada:s3cret@db/lucius",
        "LUCIUS_GATE_URL": "redis://:s3cret@gates/0",
        "LUCIUS_TOKEN_SECRET": "s3cret",
        "LUCIUS_TEMPORAL_API_KEY": "s3cret",
        "LUCIUS_TEMPORAL_KEYS": "2026:s3cret",
        "LUCIUS_BUS_URL": "redis://bus/0",
    }
    assert without_secrets(env) == {"LUCIUS_BUS_URL": "redis://bus/0"}


def test_custom_service_is_named_by_module_and_attribute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text('from lucius.worker import Service\nservice = Service("mine")\nother = 1\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert load_service("mine:service").name == "mine"
    assert load_service("ocr").step_types == ["OCR"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("scan", "unknown service 'scan'; built in: ocr, embedding, sis"),
        ("nowhere:service", "can't import service 'nowhere:service': No module named 'nowhere'"),
        ("json:service", "has no attribute 'service'"),
        ("json:loads", "json:loads is a function, not a lucius.worker.Service"),
    ],
)
def test_invalid_service_name_is_refused(name: str, said: str) -> None:
    with pytest.raises(Misused, match=re.escape(said)):
        load_service(name)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    name = "lucius.observability.logs.configure_logging"
    monkeypatch.setattr(name, lambda level, form: configure_logging(level, form, stream))
    return stream


@pytest.mark.parametrize("command", [("api", "--port", "0"), ("reconciler",)])
def test_replicas_warn_once_of_a_workspace_on_their_host_only(
    command: tuple[str, ...], tmp_path: Path, logged: io.StringIO
) -> None:
    env = {"LUCIUS_DATA_DIR": str(tmp_path), "LUCIUS_LEDGER_URL": f"postgresql://127.0.0.1:{free_port()}/lucius"}
    given = {**env, "LUCIUS_WORKSPACE_ROOT": (tmp_path / "workspace").as_uri()}
    assert "can't be reached" in lucius(*command, env=given).stderr
    assert WORKSPACE_WARNING not in logged.getvalue()
    assert "can't be reached" in lucius(*command, env=env).stderr
    assert logged.getvalue().count(WORKSPACE_WARNING) == 1


def test_single_process_ledger_gives_no_workspace_warning(tmp_path: Path, logged: io.StringIO) -> None:
    path = tmp_path / "ledger.db"
    path.write_text("a shopping list, and no ledger")  # so that startup fails
    result = lucius("api", "--port", "0", env={"LUCIUS_DATA_DIR": str(tmp_path)})
    assert "not a SQLite file" in result.stderr
    assert WORKSPACE_WARNING not in logged.getvalue()


@pytest.mark.parametrize("command", ["reconciler", "temporal-worker"])
@pytest.mark.parametrize("spelling", ["--health-port", "--port"])
def test_health_port_option_has_two_spellings(command: str, spelling: str) -> None:
    result = lucius(command, spelling, "70000")
    assert result.exit_code == 2
    assert "Invalid value for '--health-port' / '--port'" in result.stderr


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("api", ("LUCIUS_LEDGER_URL", "LUCIUS_BUS_URL", "docs/how-to/replicas.md")),
        ("reconciler", ("LUCIUS_LEDGER_URL", "LUCIUS_BUS_URL", "docs/how-to/replicas.md")),
        ("service", ("LUCIUS_API_KEY", "LUCIUS_BUS_URL")),
    ],
)
def test_help_names_the_required_settings(command: str, names: tuple[str, ...]) -> None:
    said = lucius(command, "--help").stdout
    assert [name for name in names if name not in said] == []


@pytest.mark.parametrize("command", ["reconciler", "temporal-worker", "service"])
def test_health_ports_listen_on_loopback_by_default(command: str) -> None:
    said = " ".join(lucius(command, "--help", env={"COLUMNS": "200", "TERM": "dumb"}).stdout.split())
    assert "--health-host" in said
    assert "LUCIUS_HEALTH_HOST" in said
    assert "default: 127.0.0.1]" in said.split("--health-host")[1]


async def test_api_logs_one_line_at_start(tmp_path: Path) -> None:
    written = io.StringIO()
    configure_logging("info", "json", written)
    env = {"LUCIUS_BUS_URL": "local:", "LUCIUS_DEV_API_KEY": "a-key-of-more-than-20-characters"}
    settings = load_settings(env, data_dir=tmp_path)
    with listen("127.0.0.1", 0) as listener:
        async with serving(settings, listener, Drain(), announce=True):
            lines = [json.loads(line) for line in written.getvalue().splitlines()]
            (told,) = [line for line in lines if line["event"] == "control plane started"]
            expected = {"address": base_url(listener), "bus": "local:", "engine": "embedded", "keys": 1}
            assert told.items() >= (expected | {"ledger": settings.ledger_shown}).items()


def test_credentials_of_ledger_and_bus_are_not_shown() -> None:
    urls = {"LUCIUS_LEDGER_URL": "postgresql://me:secret@db/lucius", "LUCIUS_BUS_URL": "redis://me:secret@bus:6379/0"}
    settings = load_settings(urls)
    assert (settings.ledger_shown, settings.bus_shown) == ("postgresql://db/lucius", "redis://bus:6379/0")


def test_make_dev_passes_the_port() -> None:
    made = subprocess.run(["make", "-n", "dev", "PORT=9123"], cwd=REPO, capture_output=True, text=True, check=True)
    assert "lucius dev --port 9123" in made.stdout
