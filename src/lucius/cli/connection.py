"""Chooses the control plane and the key: as given, else the `lucius dev` of this folder."""

import os
import secrets
from pathlib import Path
from typing import Any

import msgspec
import typer
from msgspec import Struct

from lucius.cli.errors import Misused

DEFAULT_URL = "http://127.0.0.1:8080"
DEFAULT_DATA_DIR = ".lucius"


class Connection(Struct, frozen=True):
    url: str
    api_key: str


class GlobalOptions(Struct, frozen=True):
    """Options given before the subcommand."""

    url: str | None = None
    api_key: str | None = None
    data_dir: Path = Path(DEFAULT_DATA_DIR)


class DevServer(Struct):
    """Content of `<data-dir>/dev.json`: where the last `lucius dev` of this folder listens."""

    url: str
    pid: int
    has_given_key: bool = False
    """Its key came from LUCIUS_DEV_API_KEY, and is in no file."""
    blob_root: str = ""
    file_roots: str = ""
    """As in LUCIUS_FILE_ROOTS."""


def connection(ctx: typer.Context, url: str | None = None, api_key: str | None = None) -> Connection:
    """Return the control plane and key to use. Raises Misused if no key can be found."""
    options = ctx.ensure_object(GlobalOptions)
    url, api_key = url or options.url, api_key or options.api_key
    dev = read_dev_server(options.data_dir)
    chosen = url or (dev.url if dev else DEFAULT_URL)
    if not api_key:
        api_key = _given_dev_key()
    if not api_key and dev is not None and chosen == dev.url:  # the dev key is for the dev server alone
        api_key = "" if dev.has_given_key else read_dev_key(options.data_dir)
    if not api_key and dev is not None and chosen == dev.url:
        raise Misused(
            f"no API key for {chosen}: this dev server was started with LUCIUS_DEV_API_KEY: set it here too, or give "
            "--api-key"
        )
    if not api_key:
        raise Misused(
            f"no API key for {chosen}: give --api-key or LUCIUS_API_KEY; or, for a `lucius dev`, run in its folder or "
            "name its data directory: `lucius --data-dir DIR …`"
        )
    return Connection(chosen.rstrip("/"), api_key)


def read_dev_server(data_dir: Path) -> DevServer | None:
    try:
        return msgspec.json.decode((data_dir / "dev.json").read_bytes(), type=DevServer)
    except (OSError, msgspec.DecodeError):
        return None


def places_beside_dev(data_dir: Path, to: Connection) -> dict[str, Any]:
    """Return the places that a service needs to reach the documents of a `lucius dev`; none for another control plane.

    What the environment names stays as it is.
    """
    dev = read_dev_server(data_dir)
    if dev is None or to.url != dev.url or to.api_key not in (_given_dev_key(), read_dev_key(data_dir)):
        return {}
    places: dict[str, Any] = {"data_dir": data_dir.resolve()}
    if dev.blob_root and not os.environ.get("LUCIUS_BLOB_ROOT"):
        places["blob_root"] = Path(dev.blob_root)
    if dev.file_roots and not os.environ.get("LUCIUS_FILE_ROOTS"):
        places["file_roots"] = tuple(Path(root) for root in dev.file_roots.split(os.pathsep) if root)
    return places


def remember_dev_server(data_dir: Path, url: str, blob_root: Path | None = None, file_roots: str = "") -> None:
    from lucius.private_files import create_private_file  # noqa: PLC0415

    create_private_file(data_dir / "dev.json")
    dev = DevServer(
        url,
        os.getpid(),
        has_given_key=bool(_given_dev_key()),
        blob_root=str((blob_root or data_dir / "blobs").resolve()),
        file_roots=file_roots,
    )
    (data_dir / "dev.json").write_bytes(msgspec.json.encode(dev) + b"\n")


def _given_dev_key() -> str:
    return os.environ.get("LUCIUS_DEV_API_KEY", "").strip()


def read_dev_key(data_dir: Path) -> str:
    try:
        return (data_dir / "dev.key").read_text().strip()
    except OSError:
        return ""


def dev_key(data_dir: Path) -> str:
    """Return LUCIUS_DEV_API_KEY, else the key made at the first start in this folder."""
    given = _given_dev_key() or read_dev_key(data_dir)
    if given:
        return given
    key = f"dev-{secrets.token_urlsafe(24)}"
    with open(os.open(data_dir / "dev.key", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"{key}\n")
    return key
