"""Connections to a Temporal server behind TLS: both sides verify each other, and silence is not waited for."""

import asyncio

import pytest
from temporalio.service import RPCError

from lucius.engine.temporal import client as temporal_client
from lucius.engine.temporal.client import TemporalAddress, connect
from tests.support.temporal import TemporalServer
from tests.support.tls import SERVER_NAME, Authority, tls_in_front_of

HTTP_2 = ("h2",)
API_KEY = "XZZXXZ"
ON_THE_WIRE = int("1011101001010001110110000101101100010100", 2).to_bytes(5) + bytes(
    {"X": 0xFC, "Z": 0xFD}[letter] for letter in API_KEY
)
"""`Bearer ` and the key in the Huffman code of HTTP/2 headers, where these characters happen to be whole bytes."""


@pytest.fixture(scope="module")
def own_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("own_authority"))


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other_authority"))


async def test_connection_over_mutual_tls_succeeds(temporal_server: TemporalServer, own_authority: Authority) -> None:
    async with tls_in_front_of(temporal_server.port, own_authority, protocols=HTTP_2) as target:
        address = TemporalAddress(
            target=target,
            ca_file=own_authority.ca,
            cert_file=own_authority.cert,
            key_file=own_authority.key,
            server_name=SERVER_NAME,
        )
        client = await connect(address)
        assert (await client.count_workflows("WorkflowId='nobody'")).count == 0
        with pytest.raises((RPCError, RuntimeError)):
            await (await connect(TemporalAddress(target=target))).count_workflows("WorkflowId='nobody'")


async def test_api_key_is_sent_with_each_request(temporal_server: TemporalServer, own_authority: Authority) -> None:
    seen = bytearray()
    async with tls_in_front_of(temporal_server.port, own_authority, seen, protocols=HTTP_2) as target:
        address = TemporalAddress(
            target=target,
            ca_file=own_authority.ca,
            cert_file=own_authority.cert,
            key_file=own_authority.key,
            server_name=SERVER_NAME,
            api_key=API_KEY,
        )
        await connect(address)
        assert ON_THE_WIRE in seen


@pytest.mark.parametrize("wrong", ["server's authority", "server's name", "certificate", "no certificate"])
async def test_connection_with_an_unexpected_authority_name_or_certificate_is_refused(
    temporal_server: TemporalServer, own_authority: Authority, other_authority: Authority, wrong: str
) -> None:
    of = other_authority if wrong == "certificate" else own_authority
    shown = (None, None) if wrong == "no certificate" else (of.cert, of.key)
    async with tls_in_front_of(temporal_server.port, own_authority, protocols=HTTP_2) as target:
        address = TemporalAddress(
            target=target,
            ca_file=other_authority.ca if wrong == "server's authority" else own_authority.ca,
            cert_file=shown[0],
            key_file=shown[1],
            server_name="another.test" if wrong == "server's name" else SERVER_NAME,
        )
        with pytest.raises((RuntimeError, OSError)):
            await connect(address)


async def test_connection_to_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporal_client, "ANSWER_TIMEOUT_SECONDS", 0.3)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    try:
        with pytest.raises(TimeoutError):
            await connect(TemporalAddress(target=f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"))
    finally:
        listening.close()
