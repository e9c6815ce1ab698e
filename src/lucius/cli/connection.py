"""Which control plane to speak to, and with which key: as told, else the `lucius dev` that runs from here."""

import os
import secrets
from pathlib import Path

import msgspec
import typer
from msgspec import Struct

from lucius.cli.errors import Misused

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_DATA_DIR = ".lucius"


class Connection(Struct, frozen=True):
    url: str
    api_key: str


class Options(Struct, frozen=True):
    """What was said before the subcommand."""

    url: str | None = None
    api_key: str | None = None
    data_dir: Path = Path(DEFAULT_DATA_DIR)


class DevServer(Struct):
    """`<data-dir>/dev.json`: where the last `lucius dev` of this folder listens."""

    url: str
    pid: int


def connection(ctx: typer.Context, url: str | None = None, api_key: str | None = None) -> Connection:
    """Raises Misused if there is no key to be found."""
    options = ctx.ensure_object(Options)
    url, api_key = url or options.url, api_key or options.api_key
    dev = read_dev_server(options.data_dir)
    chosen = url or (dev.url if dev else DEFAULT_URL)
    if not api_key:
        api_key = os.environ.get("LUCIUS_DEV_API_KEY", "").strip()
    if not api_key and dev is not None and chosen == dev.url:  # the dev key is for the dev server alone
        api_key = read_dev_key(options.data_dir)
    if not api_key:
        raise Misused(f"no API key for {chosen}: give --api-key or set LUCIUS_API_KEY, or start `lucius dev` here")
    return Connection(chosen.rstrip("/"), api_key)


def read_dev_server(data_dir: Path) -> DevServer | None:
    try:
        return msgspec.json.decode((data_dir / "dev.json").read_bytes(), type=DevServer)
    except (OSError, msgspec.DecodeError):
        return None


def remember_dev_server(data_dir: Path, url: str) -> None:
    (data_dir / "dev.json").write_bytes(msgspec.json.encode(DevServer(url, os.getpid())) + b"\n")


def read_dev_key(data_dir: Path) -> str:
    try:
        return (data_dir / "dev.key").read_text().strip()
    except OSError:
        return ""


def dev_key(data_dir: Path) -> str:
    """LUCIUS_DEV_API_KEY, else the one made at the first start in this folder."""
    given = os.environ.get("LUCIUS_DEV_API_KEY", "").strip() or read_dev_key(data_dir)
    if given:
        return given
    key = f"dev-{secrets.token_urlsafe(24)}"
    with open(os.open(data_dir / "dev.key", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"{key}\n")
    return key
