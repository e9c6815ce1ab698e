"""Settings of a service process, read once from environment variables."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from lucius.contract.refs import list_key_files
from lucius.worker.https_input import DEFAULT_IDLE_SECONDS, DEFAULT_TOTAL_SECONDS, HttpsRules
from lucius.worker.transport import origin
from lucius.worker.workspace import Places

DEFAULT_URL = "http://127.0.0.1:8080"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    orchestrator_url: str = DEFAULT_URL
    api_key: str = ""
    bus_url: str = "local:"
    topic_layout: str = "shared"
    """Must equal the orchestrator's: a bus with topics uses other topics for `isolated`."""
    idempotency_url: str = ""
    """Empty: SQLite in the data folder, or memory without one."""
    data_dir: Path | None = None
    """Folder of undelivered results and finished attempts; None: in memory only."""
    journal_sync: bool = False
    """Wait for the disk with every commit, so that the journal survives a power cut."""
    blob_root: Path | None = None
    file_roots: tuple[Path, ...] | None = None
    """Folders for clients' `file:` refs. None: the job's workspace and the blob folder only."""
    protected: tuple[Path, ...] = ()
    """Files of Lucius that the environment names: configuration, protocols, keys."""
    https_allow_private: bool = False
    """Read `https:` inputs from addresses that are not public, too."""
    https_seconds: float = DEFAULT_TOTAL_SECONDS
    https_idle_seconds: float = DEFAULT_IDLE_SECONDS
    lanes: tuple[int, ...] | None = None
    concurrency: int = 16
    grace_seconds: float = 20.0
    delay_seconds: float = 0.0
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    """Address of the health port. Probes from outside the host need 0.0.0.0."""
    handle_signals: bool = True

    @property
    def places(self) -> Places:
        blob_root = self.blob_root or (self.data_dir / "blobs" if self.data_dir else None)
        https = HttpsRules(
            allow_private=self.https_allow_private,
            total_seconds=self.https_seconds,
            idle_seconds=self.https_idle_seconds,
        )
        own = (self.data_dir,) if self.data_dir else ()
        return Places(blob_root=blob_root, file_roots=self.file_roots, protected=(*own, *self.protected), https=https)


class BadSetting(ValueError):
    """An invalid environment variable, named in the message."""


_FILE_SETTING = re.compile(r"LUCIUS_\w+_FILE")
NUMBERS = {
    "concurrency": ("LUCIUS_CONCURRENCY", int, 1, 10_000),
    "grace_seconds": ("LUCIUS_GRACE", float, 0, 86_400),
    "delay_seconds": ("LUCIUS_SERVICE_DELAY", float, 0, 86_400),
    "https_seconds": ("LUCIUS_HTTPS_TIMEOUT", float, 1, 86_400),
    "https_idle_seconds": ("LUCIUS_HTTPS_IDLE_TIMEOUT", float, 1, 3_600),
    "health_port": ("LUCIUS_HEALTH_PORT", int, 0, 65_535),
}
SWITCHES = {"journal_sync": "LUCIUS_JOURNAL_SYNC", "https_allow_private": "LUCIUS_HTTPS_ALLOW_PRIVATE"}
TEXTS = {
    "orchestrator_url": "LUCIUS_ORCHESTRATOR_URL",
    "api_key": "LUCIUS_API_KEY",
    "bus_url": "LUCIUS_BUS_URL",
    "idempotency_url": "LUCIUS_IDEMPOTENCY_URL",
    "health_host": "LUCIUS_HEALTH_HOST",
}


def settings_from(environ: Mapping[str, str] | None = None) -> WorkerSettings:
    """Read the settings from environment variables, by default `os.environ`. Raises BadSetting."""
    environ = os.environ if environ is None else environ
    found: dict[str, object] = {}
    for field, name in TEXTS.items():
        if environ.get(name, "").strip():
            found[field] = environ[name].strip()
    for field, (name, kind, least, most) in NUMBERS.items():
        if environ.get(name):
            found[field] = _number(name, environ[name], kind, least, most)
    for field, name in (("data_dir", "LUCIUS_DATA_DIR"), ("blob_root", "LUCIUS_BLOB_ROOT")):
        if environ.get(name):
            found[field] = Path(environ[name])
    for field, name in SWITCHES.items():
        if environ.get(name):
            found[field] = bool(_number(name, environ[name], int, 0, 1))
    roots = environ.get("LUCIUS_FILE_ROOTS")
    if roots:
        found["file_roots"] = tuple(Path(root) for root in roots.split(os.pathsep) if root)
    if protected := _protected_paths(environ):
        found["protected"] = protected
    if environ.get("LUCIUS_TOPIC_LAYOUT"):
        found["topic_layout"] = _layout(environ["LUCIUS_TOPIC_LAYOUT"].strip())
    if environ.get("LUCIUS_LANES"):
        lanes = environ["LUCIUS_LANES"].split(",")
        found["lanes"] = tuple(int(_number("LUCIUS_LANES", lane.strip(), int, 0, 15)) for lane in lanes)
    settings = WorkerSettings(**found)  # type: ignore[arg-type]
    if origin(settings.orchestrator_url) is None:
        raise BadSetting(f"LUCIUS_ORCHESTRATOR_URL must be an http:// or https:// address, not {_shown(settings)}")
    return settings


def _protected_paths(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the files and folders of Lucius itself that the environment names."""
    named = ("LUCIUS_CONFIG", "LUCIUS_PROTOCOLS_DIR")
    paths = [path for name, path in environ.items() if name in named or _FILE_SETTING.fullmatch(name)]
    for name in ("LUCIUS_LEDGER_URL", "LUCIUS_BUS_URL", "LUCIUS_IDEMPOTENCY_URL", "LUCIUS_GATE_URL"):
        paths += list_key_files(environ.get(name, ""))
    for name in ("LUCIUS_LEDGER_URL", "LUCIUS_IDEMPOTENCY_URL"):
        scheme, _, rest = environ.get(name, "").strip().partition(":")
        if scheme == "sqlite" and rest:  # sqlite:///relative.db, sqlite:////absolute.db
            paths += [rest.removeprefix("///") + ending for ending in ("", "-wal", "-shm", "-journal", ".lock")]
    return tuple(Path(path.strip()).absolute() for path in paths if path.strip())


def _layout(text: str) -> str:
    if text not in ("shared", "isolated"):
        raise BadSetting(f"LUCIUS_TOPIC_LAYOUT must be shared or isolated, not {text!r}")
    return text


def _shown(settings: WorkerSettings) -> str:
    return repr(settings.orchestrator_url.rpartition("@")[2])  # without a password


def _number(name: str, text: str, kind: type[int] | type[float], least: float, most: float) -> float:
    try:
        number = kind(text)
    except ValueError:
        number = None
    if number is None or not least <= number <= most:
        what = "a whole number" if kind is int else "a number"
        raise BadSetting(f"{name} must be {what} from {least} to {most}, not {text!r}")
    return number
