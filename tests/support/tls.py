"""TLS for tests: a CA that issues server and client certificates, and a TLS proxy in front of a plain server."""

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

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

SERVER_NAME = "server.test"
LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


class Authority:
    """Issues a server certificate and a client certificate."""

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
        cert = self._signed(subject, key.public_key(), names=[x509.DNSName(name), LOOPBACK])
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
        known_as = x509.SubjectAlternativeName(names or [LOOPBACK])
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


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            seen += data
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def tls_in_front_of(
    port: int, authority: Authority, seen: bytearray | None = None, *, protocols: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Run a proxy that requires a client certificate of the same CA. `seen` collects the data received."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca))
    context.load_cert_chain(authority.server, authority.server_key)
    context.verify_mode = ssl.CERT_REQUIRED
    if protocols:
        context.set_alpn_protocols(protocols)
    under_way: set[asyncio.Task[None]] = set()

    async def passed_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
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
