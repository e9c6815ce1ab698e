"""How Temporal is reached: files that can't be used are named; over TLS each side wants to know the other."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID
from temporalio.client import Client
from temporalio.service import RPCError, TLSConfig

from lucius.engine.temporal import client as temporal_client
from lucius.engine.temporal.client import Address, connect, tls_of
from lucius.settings import SettingsError
from tests.support.temporal import TemporalServer

SERVER_NAME = "temporal.test"
API_KEY = "XZZXXZ"
ON_THE_WIRE = int("1011101001010001110110000101101100010100", 2).to_bytes(5) + bytes(
    {"X": 0xFC, "Z": 0xFD}[letter] for letter in API_KEY
)
"""`Bearer ` and the key in the code of HTTP/2 headers, where these letters happen to be whole bytes."""


class Authority:
    """Signs for a server and for a client."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority {folder.name}")])
        self.ca = self._write("ca", self._signed(self._name, self._key.public_key(), is_ca=True))
        self.server, self.server_key = self.issue("server", SERVER_NAME)
        self.cert, self.key = self.issue("client", "lucius")

    def issue(self, file: str, name: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        cert = self._signed(subject, key.public_key(), names=[x509.DNSName(name)])
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (self.folder / f"{file}.key").write_bytes(pem)
        locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"word"))
        (self.folder / f"{file}.locked").write_bytes(locked)
        return self._write(file, cert), self.folder / f"{file}.key"

    def _signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        names: list[x509.GeneralName] | None = None,
        *,
        is_ca: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        known_as = x509.SubjectAlternativeName(names or [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(known_as, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _write(self, file: str, cert: x509.Certificate) -> Path:
        path = self.folder / f"{file}.pem"
        path.write_bytes(cert.public_bytes(Encoding.PEM))
        return path


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


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            seen += data
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def tls_in_front_of(
    server: TemporalServer, authority: Authority, seen: bytearray | None = None
) -> AsyncIterator[str]:
    """Whoever calls must show a certificate of the same authority. `seen` gets what was said."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca))
    context.load_cert_chain(authority.server, authority.server_key)
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols(["h2"])
    under_way: set[asyncio.Task[None]] = set()

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", server.port)
        said = bytearray() if seen is None else seen
        under_way.add(asyncio.create_task(_copy(reader, back, said)))
        under_way.add(asyncio.create_task(_copy(there, writer, bytearray())))

    listening = await asyncio.start_server(passed_on, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    finally:
        listening.close()
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def test_over_tls_with_a_certificate_of_our_own(temporal_server: TemporalServer, ours: Authority) -> None:
    async with tls_in_front_of(temporal_server, ours) as target:
        address = Address(
            target=target, ca_file=ours.ca, cert_file=ours.cert, key_file=ours.key, server_name=SERVER_NAME
        )
        client = await connect(address)
        assert (await client.count_workflows("WorkflowId='nobody'")).count == 0
        with pytest.raises((RPCError, RuntimeError)):
            await (await connect(Address(target=target))).count_workflows("WorkflowId='nobody'")


async def test_an_api_key_is_shown_with_each_request(temporal_server: TemporalServer, ours: Authority) -> None:
    seen = bytearray()
    async with tls_in_front_of(temporal_server, ours, seen) as target:
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
    async with tls_in_front_of(temporal_server, ours) as target:
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
