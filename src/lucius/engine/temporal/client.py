"""Connects to Temporal: address, TLS, conversion and encryption of payloads."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509 import Certificate, load_pem_x509_certificates
from msgspec import Struct
from temporalio.client import Client, GrpcCompression
from temporalio.converter import DataConverter, DefaultFailureConverter, DefaultFailureConverterWithEncodedAttributes
from temporalio.runtime import Runtime
from temporalio.service import KeepAliveConfig, TLSConfig

from lucius.engine.temporal.codec import PLAIN, EncryptionCodec
from lucius.engine.temporal.converter import RecordConverter
from lucius.ports.errors import SettingsError

CONNECT_TIMEOUT = timedelta(seconds=5)
ANSWER_TIMEOUT_SECONDS = 10.0
"""Limit for `connect`: a server that accepts the connection and does not respond counts as unreachable, too."""
CA_FILE, CERT_FILE, KEY_FILE = (f"LUCIUS_TEMPORAL_{name}_FILE" for name in ("CA", "CERT", "KEY"))


class TemporalAddress(Struct, frozen=True, kw_only=True):
    """Address of Temporal and the credentials for it. With `keys`, all payloads are encrypted."""

    target: str
    namespace: str = "default"
    task_queue: str = "lucius"
    api_key: str = ""
    tls: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str = ""
    keys: dict[str, bytes] = {}
    """By name. The first encrypts, all decrypt."""


async def connect(address: TemporalAddress, runtime: Runtime | None = None) -> Client:
    """Connect and return the client.

    Raises RuntimeError or OSError if Temporal can't be reached, SettingsError for files that can't be used.
    """
    async with asyncio.timeout(ANSWER_TIMEOUT_SECONDS):
        return await Client.connect(
            address.target,
            namespace=address.namespace,
            data_converter=data_converter(address.keys),
            api_key=address.api_key or None,
            tls=tls_of(address),
            keep_alive_config=KeepAliveConfig(interval_millis=10_000, timeout_millis=5_000),
            connect_timeout=CONNECT_TIMEOUT,
            grpc_compression=GrpcCompression.NONE,  # large payloads are compressed already
            runtime=runtime,
        )


def data_converter(keys: Mapping[str, bytes]) -> DataConverter:
    """Make the data converter, which encrypts if there are keys. Raises SettingsError."""
    if keys.get(PLAIN):
        raise SettingsError(f"LUCIUS_TEMPORAL_KEYS: `{PLAIN}` stands for no encryption, and is no name for a key")
    encrypts = any(name != PLAIN for name in keys)
    return DataConverter(
        payload_converter_class=RecordConverter,
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes if encrypts else DefaultFailureConverter,
        payload_codec=EncryptionCodec(keys) if encrypts else None,
    )


def tls_of(address: TemporalAddress) -> TLSConfig | bool:
    """Make the TLS settings. An API key implies TLS, so that it is never sent in the clear. Raises SettingsError."""
    if not (address.ca_file or address.cert_file or address.key_file or address.server_name):
        return address.tls or bool(address.api_key)
    ca, cert, key = (
        _read(address.ca_file, CA_FILE),
        _read(address.cert_file, CERT_FILE),
        _read(address.key_file, KEY_FILE),
    )
    if ca is not None:
        _check_certificate(ca, CA_FILE)
    if cert is not None or key is not None:
        _check_pair(cert, key)
    return TLSConfig(
        server_root_ca_cert=ca, client_cert=cert, client_private_key=key, domain=address.server_name or None
    )


def _read(path: Path | None, variable: str) -> bytes | None:
    try:
        return path.read_bytes() if path is not None else None
    except OSError as error:
        raise SettingsError(f"{variable}: {path} can't be read: {error.strerror}") from None


def _check_certificate(pem: bytes, variable: str) -> bytes:
    try:
        return _public(load_pem_x509_certificates(pem)[0])
    except ValueError:
        raise SettingsError(f"{variable}: the file has no certificate in PEM format") from None


def _check_pair(cert: bytes | None, key: bytes | None) -> None:
    if cert is None or key is None:
        missing, given = (CERT_FILE, KEY_FILE) if cert is None else (KEY_FILE, CERT_FILE)
        raise SettingsError(f"{missing} is missing: {given} alone proves nothing")
    certified = _check_certificate(cert, CERT_FILE)
    try:
        private = load_pem_private_key(key, password=None)
    except TypeError:
        raise SettingsError(f"{KEY_FILE}: the key is encrypted; give one without a password") from None
    except ValueError:
        raise SettingsError(f"{KEY_FILE}: the file has no private key in PEM format") from None
    if _public(private) != certified:
        raise SettingsError(f"{KEY_FILE}: the key is not that of the certificate in {CERT_FILE}")


def _public(of: Certificate | PrivateKeyTypes) -> bytes:
    return of.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
