"""How Temporal is reached: files that can't be used are named; over TLS each side wants to know the other."""

import asyncio
import datetime
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, TLSConfig

from lucius.engine.temporal import client as temporal_client
from lucius.engine.temporal.client import Address, connect, tls_of
from lucius.settings import SettingsError
from tests.support.temporal import TemporalServer
from tests.support.tls import SERVER_NAME, Authority, tls_in_front_of

HTTP_2 = ("h2",)
API_KEY = "XZZXXZ"
ON_THE_WIRE = int("1011101001010001110110000101101100010100", 2).to_bytes(5) + bytes(
    {"X": 0xFC, "Z": 0xFD}[letter] for letter in API_KEY
)
"""`Bearer ` and the key in the code of HTTP/2 headers, where these letters happen to be whole bytes."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs"))


# Files


def refused(**files: Path) -> str:
    with pytest.raises(SettingsError) as said:
        tls_of(Address(target="here:7233", **files))  # type: ignore[arg-type]
    return str(said.value)


def test_a_file_that_is_gone_or_holds_something_else_is_named_by_its_variable(ours: Authority, tmp_path: Path) -> None:
    rubbish = tmp_path / "rubbish"
    rubbish.write_text("-----BEGIN CERTIFICATE-----\nrubbish\n")
    assert refused(ca_file=tmp_path / "gone").startswith("LUCIUS_TEMPORAL_CA_FILE: ")
    assert "No such file" in refused(ca_file=tmp_path / "gone")
    assert refused(ca_file=rubbish) == "LUCIUS_TEMPORAL_CA_FILE: the file has no certificate in PEM format"
    assert refused(ca_file=ours.key) == "LUCIUS_TEMPORAL_CA_FILE: the file has no certificate in PEM format"
    assert refused(cert_file=rubbish, key_file=ours.key).startswith("LUCIUS_TEMPORAL_CERT_FILE: ")
    assert refused(cert_file=ours.cert, key_file=rubbish).startswith("LUCIUS_TEMPORAL_KEY_FILE: ")


def test_a_certificate_and_a_key_come_together_and_belong_together(ours: Authority) -> None:
    assert refused(cert_file=ours.cert).startswith("LUCIUS_TEMPORAL_KEY_FILE is missing")
    assert refused(key_file=ours.key).startswith("LUCIUS_TEMPORAL_CERT_FILE is missing")
    assert "is not that of the certificate" in refused(cert_file=ours.cert, key_file=ours.server_key)
    assert "password" in refused(cert_file=ours.cert, key_file=ours.folder / "client.locked")


def test_tls_is_off_unless_asked_for_and_always_on_for_an_api_key() -> None:
    assert tls_of(Address(target="here:7233")) is False
    assert tls_of(Address(target="here:7233", tls=True)) is True
    assert tls_of(Address(target="here:7233", api_key="secret")) is True
    named = tls_of(Address(target="here:7233", server_name="temporal.test"))
    assert named == TLSConfig(domain="temporal.test")


async def test_an_api_key_is_sent_and_a_connection_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, object] = {}

    async def connected(target: str, **options: object) -> None:
        asked.update(options, target=target)

    monkeypatch.setattr(Client, "connect", connected)
    await connect(Address(target="acme.tmprl.cloud:7233", namespace="acme.prod", api_key="secret"))
    assert asked["target"] == "acme.tmprl.cloud:7233"
    assert asked["namespace"] == "acme.prod"
    assert asked["api_key"] == "secret"
    assert asked["tls"] is True
    assert asked["connect_timeout"] == datetime.timedelta(seconds=5)


# A real server, behind TLS


async def test_over_tls_with_a_certificate_of_our_own(temporal_server: TemporalServer, ours: Authority) -> None:
    async with tls_in_front_of(temporal_server.port, ours, protocols=HTTP_2) as target:
        address = Address(
            target=target, ca_file=ours.ca, cert_file=ours.cert, key_file=ours.key, server_name=SERVER_NAME
        )
        client = await connect(address)
        assert (await client.count_workflows("WorkflowId='nobody'")).count == 0
        with pytest.raises((RPCError, RuntimeError)):
            await (await connect(Address(target=target))).count_workflows("WorkflowId='nobody'")


async def test_an_api_key_is_shown_with_each_request(temporal_server: TemporalServer, ours: Authority) -> None:
    seen = bytearray()
    async with tls_in_front_of(temporal_server.port, ours, seen, protocols=HTTP_2) as target:
        address = Address(
            target=target,
            ca_file=ours.ca,
            cert_file=ours.cert,
            key_file=ours.key,
            server_name=SERVER_NAME,
            api_key=API_KEY,
        )
        await connect(address)
        assert ON_THE_WIRE in seen


@pytest.mark.parametrize("wrong", ["server's authority", "server's name", "certificate", "no certificate"])
async def test_who_is_not_who_he_should_be_is_not_spoken_to(
    temporal_server: TemporalServer, ours: Authority, theirs: Authority, wrong: str
) -> None:
    of = theirs if wrong == "certificate" else ours
    shown = (None, None) if wrong == "no certificate" else (of.cert, of.key)
    async with tls_in_front_of(temporal_server.port, ours, protocols=HTTP_2) as target:
        address = Address(
            target=target,
            ca_file=theirs.ca if wrong == "server's authority" else ours.ca,
            cert_file=shown[0],
            key_file=shown[1],
            server_name="another.test" if wrong == "server's name" else SERVER_NAME,
        )
        with pytest.raises((RuntimeError, OSError)):
            await connect(address)


async def test_a_server_that_says_nothing_is_one_that_can_not_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporal_client, "ANSWER_SECONDS", 0.3)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    try:
        with pytest.raises(TimeoutError):
            await connect(Address(target=f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"))
    finally:
        listening.close()
