"""How to reach Temporal, and in which words to speak to it."""

from pathlib import Path

from msgspec import Struct
from temporalio.client import Client
from temporalio.converter import DataConverter, DefaultFailureConverter, DefaultFailureConverterWithEncodedAttributes
from temporalio.runtime import Runtime
from temporalio.service import KeepAliveConfig, TLSConfig

from lucius.engine.temporal.codec import EncryptionCodec
from lucius.engine.temporal.converter import RecordConverter


class Address(Struct, frozen=True, kw_only=True):
    """Where Temporal is, and what it wants to see of us. With `keys`, all that we tell it is encrypted."""

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
    """By name, the first to encrypt with; the others only read."""


async def connect(address: Address, runtime: Runtime | None = None) -> Client:
    """Raises RuntimeError if it can't be reached, OSError or ValueError for files and keys that can't be used."""
    return await Client.connect(
        address.target,
        namespace=address.namespace,
        data_converter=data_converter(address.keys),
        api_key=address.api_key or None,
        tls=_tls(address),
        keep_alive_config=KeepAliveConfig(interval_millis=10_000, timeout_millis=5_000),
        runtime=runtime,
    )


def data_converter(keys: dict[str, bytes]) -> DataConverter:
    return DataConverter(
        payload_converter_class=RecordConverter,
        failure_converter_class=DefaultFailureConverterWithEncodedAttributes if keys else DefaultFailureConverter,
        payload_codec=EncryptionCodec(keys) if keys else None,
    )


def _tls(address: Address) -> TLSConfig | bool:
    given = (address.ca_file, address.cert_file, address.key_file)
    if not any(given) and not address.server_name:
        return address.tls or bool(address.api_key)
    ca, cert, key = (path.read_bytes() if path is not None else None for path in given)
    return TLSConfig(
        server_root_ca_cert=ca, client_cert=cert, client_private_key=key, domain=address.server_name or None
    )
