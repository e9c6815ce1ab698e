"""What the commands that run until stopped say: as help, at the start, and about each other."""

import io
import json
import re
import shlex
from pathlib import Path

import msgspec
import pytest

from lucius.cli import serve
from lucius.cli.errors import Misused
from lucius.cli.serve import _say_ready, _without_secrets, try_it
from lucius.cli.services import _service
from lucius.contract import CommandEnvelope
from lucius.observability.logs import configure_logging
from lucius.settings import Settings
from tests.support.ports import free_port
from tests.unit.cli.support import lucius

ON_SQLITE = Settings(data_dir=Path("/data"), ledger_url="sqlite:////data/ledger.db")
WORKSPACE_WARNING = "the workspace is a folder of this host"


def test_the_curl_to_try_is_a_whole_command() -> None:
    words = shlex.split(try_it("http://127.0.0.1:8080", "dev-key").replace("\\\n", " "))
    assert words[:3] == ["curl", "-sS", "http://127.0.0.1:8080/v1/commands"]
    assert "Authorization: Bearer dev-key" in words
    assert "Content-Type: application/json" in words
    msgspec.convert(json.loads(words[words.index("-d") + 1]), CommandEnvelope)


def test_it_says_where_the_secret_of_webhooks_is(capsys: pytest.CaptureFixture[str]) -> None:
    _say_ready("http://127.0.0.1:8080", "dev-key", ON_SQLITE, with_services=False)
    assert "signed with /data/webhook.secret" in capsys.readouterr().out
    given = Settings(webhook_secrets={"DEFAULT": "whsec_x"})
    _say_ready("http://127.0.0.1:8080", "dev-key", given, with_services=False)
    assert "signed with LUCIUS_WEBHOOK_SECRET_DEFAULT" in capsys.readouterr().out


def test_on_a_ledger_that_is_shared_the_secret_of_webhooks_is_in_there(capsys: pytest.CaptureFixture[str]) -> None:
    shared = Settings(data_dir=Path("/data"), ledger_url="postgresql://db/lucius")
    _say_ready("http://127.0.0.1:8080", "dev-key", shared, with_services=False)
    said = capsys.readouterr().out
    assert "signed with the secret 'webhook' in the ledger's table secrets, unless LUCIUS_WEBHOOK_SECRET_D" in said
    assert "webhook.secret" not in said
    given = Settings(ledger_url="postgresql://db/lucius", webhook_secrets={"DEFAULT": "whsec_x"})
    _say_ready("http://127.0.0.1:8080", "dev-key", given, with_services=False)
    assert "signed with LUCIUS_WEBHOOK_SECRET_DEFAULT\n" in capsys.readouterr().out


def test_it_says_where_temporal_and_its_ui_are(capsys: pytest.CaptureFixture[str]) -> None:
    _say_ready("http://127.0.0.1:8080", "dev-key", Settings(), with_services=False)
    assert "Temporal" not in capsys.readouterr().out
    given = Settings(engine="temporal", temporal_address="t:7233", temporal_ui_url="http://t:8233")
    _say_ready("http://127.0.0.1:8080", "dev-key", given, with_services=False)
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
def test_it_says_where_the_ledger_is_and_no_password(url: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    _say_ready("http://127.0.0.1:8080", "dev-key", Settings(ledger_url=url), with_services=False)
    said = capsys.readouterr().out
    assert f"ledger   {shown}" in said
    assert "s3cret" not in said


def test_services_are_not_told_what_opens_the_ledger_the_gate_or_temporal() -> None:
    env = {
        "LUCIUS_LEDGER_URL": "postgresql://ada:s3cret@db/lucius",
        "LUCIUS_GATE_URL": "redis://:s3cret@gates/0",
        "LUCIUS_TOKEN_SECRET": "s3cret",
        "LUCIUS_TEMPORAL_API_KEY": "s3cret",
        "LUCIUS_TEMPORAL_KEYS": "2026:s3cret",
        "LUCIUS_BUS_URL": "redis://bus/0",
    }
    assert _without_secrets(env) == {"LUCIUS_BUS_URL": "redis://bus/0"}


def test_a_service_of_ones_own_is_named_by_module_and_attribute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text('from lucius.worker import Service\nservice = Service("mine")\nother = 1\n')
    monkeypatch.syspath_prepend(tmp_path)
    assert _service("mine:service").name == "mine"
    assert _service("ocr").step_types == ["OCR"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("scan", "there is no service 'scan'; shipped: ocr, embedding, sis"),
        ("nowhere:service", "can't find service 'nowhere:service': No module named 'nowhere'"),
        ("json:service", "has no attribute 'service'"),
        ("json:loads", "json:loads is a function, not a lucius.worker.Service"),
    ],
)
def test_a_service_that_is_none_is_refused_by_name(name: str, said: str) -> None:
    with pytest.raises(Misused, match=re.escape(said)):
        _service(name)


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    stream = io.StringIO()
    monkeypatch.setattr(serve, "configure_logging", lambda level, form: configure_logging(level, form, stream))
    return stream


@pytest.mark.parametrize("command", [("api", "--port", "0"), ("reconciler",)])
def test_replicas_are_warned_once_of_a_workspace_that_only_their_host_has(
    command: tuple[str, ...], tmp_path: Path, logged: io.StringIO
) -> None:
    env = {"LUCIUS_DATA_DIR": str(tmp_path), "LUCIUS_LEDGER_URL": f"postgresql://127.0.0.1:{free_port()}/lucius"}
    given = {**env, "LUCIUS_WORKSPACE_ROOT": (tmp_path / "workspace").as_uri()}
    assert "can't be reached" in lucius(*command, env=given).stderr
    assert WORKSPACE_WARNING not in logged.getvalue()
    assert "can't be reached" in lucius(*command, env=env).stderr
    assert logged.getvalue().count(WORKSPACE_WARNING) == 1


def test_a_ledger_of_one_process_has_a_workspace_of_its_own_without_a_warning(
    tmp_path: Path, logged: io.StringIO
) -> None:
    path = tmp_path / "ledger.db"
    path.write_text("a shopping list, and no ledger")  # so that the start ends
    result = lucius("api", "--port", "0", env={"LUCIUS_DATA_DIR": str(tmp_path)})
    assert "not a SQLite file" in result.stderr
    assert WORKSPACE_WARNING not in logged.getvalue()


@pytest.mark.parametrize("command", ["reconciler", "temporal-worker"])
@pytest.mark.parametrize("spelling", ["--health-port", "--port"])
def test_the_port_for_health_has_both_names(command: str, spelling: str) -> None:
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
def test_help_names_what_must_be_set(command: str, names: tuple[str, ...]) -> None:
    said = lucius(command, "--help").stdout
    assert [name for name in names if name not in said] == []
