"""What `lucius dev` prints, and the service that takes its time."""

import json
import re
import shlex
from pathlib import Path

import msgspec
import pytest

from lucius.cli.errors import Misused
from lucius.cli.serve import _say_ready, _without_secrets, try_it
from lucius.cli.services import _service
from lucius.contract import CommandEnvelope
from lucius.settings import Settings


def test_the_curl_to_try_is_a_whole_command() -> None:
    words = shlex.split(try_it("http://127.0.0.1:8080", "dev-key").replace("\\\n", " "))
    assert words[:3] == ["curl", "-sS", "http://127.0.0.1:8080/v1/commands"]
    assert "Authorization: Bearer dev-key" in words
    assert "Content-Type: application/json" in words
    msgspec.convert(json.loads(words[words.index("-d") + 1]), CommandEnvelope)


def test_it_says_where_the_secret_of_webhooks_is(capsys: pytest.CaptureFixture[str]) -> None:
    _say_ready("http://127.0.0.1:8080", "dev-key", Settings(data_dir=Path("/data")), with_services=False)
    assert "signed with /data/webhook.secret" in capsys.readouterr().out
    given = Settings(webhook_secrets={"DEFAULT": "whsec_x"})
    _say_ready("http://127.0.0.1:8080", "dev-key", given, with_services=False)
    assert "signed with LUCIUS_WEBHOOK_SECRET_DEFAULT" in capsys.readouterr().out


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
