"""Options of a connection to Temporal: unusable files are named in the error, and an API key implies TLS."""

import datetime
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import TLSConfig

from lucius.engine.temporal.client import TemporalAddress, connect, tls_of
from lucius.ports.errors import SettingsError
from tests.support.tls import Authority


@pytest.fixture(scope="module")
def own_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("own_authority"))


def refused(**files: Path) -> str:
    with pytest.raises(SettingsError) as said:
        tls_of(TemporalAddress(target="here:7233", **files))  # type: ignore[arg-type]
    return str(said.value)


def test_missing_or_unusable_file_is_named_by_its_variable(own_authority: Authority, tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("-----BEGIN CERTIFICATE-----\nrubbish\n")
    assert refused(ca_file=tmp_path / "gone").startswith("LUCIUS_TEMPORAL_CA_FILE: ")
    assert "No such file" in refused(ca_file=tmp_path / "gone")
    assert refused(ca_file=rubbish) == "LUCIUS_TEMPORAL_CA_FILE: the file has no certificate in PEM format"
    assert refused(ca_file=own_authority.key) == "LUCIUS_TEMPORAL_CA_FILE: the file has no certificate in PEM format"
    assert refused(cert_file=rubbish, key_file=own_authority.key).startswith("LUCIUS_TEMPORAL_CERT_FILE: ")
    assert refused(cert_file=own_authority.cert, key_file=rubbish).startswith("LUCIUS_TEMPORAL_KEY_FILE: ")


def test_certificate_without_its_readable_key_is_refused(own_authority: Authority) -> None:
    assert refused(cert_file=own_authority.cert).startswith("LUCIUS_TEMPORAL_KEY_FILE is missing")
    assert refused(key_file=own_authority.key).startswith("LUCIUS_TEMPORAL_CERT_FILE is missing")
    assert "is not that of the certificate" in refused(cert_file=own_authority.cert, key_file=own_authority.server_key)
    assert "password" in refused(cert_file=own_authority.cert, key_file=own_authority.folder / "client.locked")


def test_tls_is_off_by_default_and_always_on_with_an_api_key() -> None:
    assert tls_of(TemporalAddress(target="here:7233")) is False
    assert tls_of(TemporalAddress(target="here:7233", tls=True)) is True
    assert tls_of(TemporalAddress(target="here:7233", api_key="secret")) is True
    named = tls_of(TemporalAddress(target="here:7233", server_name="temporal.test"))
    assert named == TLSConfig(domain="temporal.test")


async def test_api_key_is_sent_and_the_connection_attempt_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, object] = {}

    async def connected(target: str, **options: object) -> None:
        asked.update(options, target=target)

    monkeypatch.setattr(Client, "connect", connected)
    await connect(TemporalAddress(target="acme.tmprl.cloud:7233", namespace="acme.prod", api_key="secret"))
    assert asked["target"] == "acme.tmprl.cloud:7233"
    assert asked["namespace"] == "acme.prod"
    assert asked["api_key"] == "secret"
    assert asked["tls"] is True
    assert asked["connect_timeout"] == datetime.timedelta(seconds=5)
