"""What a service process is told by its environment, read once."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from lucius.worker.transport import origin
from lucius.worker.workspace import Places

DEFAULT_URL = "http://127.0.0.1:8080"


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    orchestrator_url: str = DEFAULT_URL
    api_key: str = ""
    bus_url: str = "local:"
    topic_layout: str = "shared"
    """As the orchestrator has it: a bus with topics has others for `isolated`."""
    idempotency_url: str = ""
    """Empty: SQLite in the data folder, or memory without one."""
    data_dir: Path | None = None
    """Where results wait to be delivered and finished attempts are remembered; None: in memory only."""
    journal_sync: bool = False
    """Wait for the disk with every commit: what is written down survives a power cut, too."""
    blob_root: Path | None = None
    file_roots: tuple[Path, ...] | None = None
    lanes: tuple[int, ...] | None = None
    concurrency: int = 16
    grace_seconds: float = 20.0
    delay_seconds: float = 0.0
    health_port: int | None = None
    handle_signals: bool = True

    @property
    def places(self) -> Places:
        blob_root = self.blob_root or (self.data_dir / "blobs" if self.data_dir else None)
        return Places(blob_root=blob_root, file_roots=self.file_roots)


class BadSetting(ValueError):
    """An environment variable that can't be understood, by name."""


_NUMBERS = {
    "concurrency": ("LUCIUS_CONCURRENCY", int, 1, 10_000),
    "grace_seconds": ("LUCIUS_GRACE", float, 0, 86_400),
    "delay_seconds": ("LUCIUS_SERVICE_DELAY", float, 0, 86_400),
    "health_port": ("LUCIUS_HEALTH_PORT", int, 0, 65_535),
}
_TEXTS = {
    "orchestrator_url": "LUCIUS_ORCHESTRATOR_URL",
    "api_key": "LUCIUS_API_KEY",
    "bus_url": "LUCIUS_BUS_URL",
    "idempotency_url": "LUCIUS_IDEMPOTENCY_URL",
}


def settings_from(environ: Mapping[str, str] | None = None) -> WorkerSettings:
    """Raises BadSetting."""
    environ = os.environ if environ is None else environ
    found: dict[str, object] = {}
    for field, name in _TEXTS.items():
        if environ.get(name, "").strip():
            found[field] = environ[name].strip()
    for field, (name, kind, least, most) in _NUMBERS.items():
        if environ.get(name):
            found[field] = _number(name, environ[name], kind, least, most)
    for field, name in (("data_dir", "LUCIUS_DATA_DIR"), ("blob_root", "LUCIUS_BLOB_ROOT")):
        if environ.get(name):
            found[field] = Path(environ[name])
    if environ.get("LUCIUS_JOURNAL_SYNC"):
        found["journal_sync"] = bool(_number("LUCIUS_JOURNAL_SYNC", environ["LUCIUS_JOURNAL_SYNC"], int, 0, 1))
    roots = environ.get("LUCIUS_FILE_ROOTS")
    if roots:
        found["file_roots"] = tuple(Path(root) for root in roots.split(os.pathsep) if root)
    if environ.get("LUCIUS_TOPIC_LAYOUT"):
        found["topic_layout"] = _layout(environ["LUCIUS_TOPIC_LAYOUT"].strip())
    if environ.get("LUCIUS_LANES"):
        lanes = environ["LUCIUS_LANES"].split(",")
        found["lanes"] = tuple(int(_number("LUCIUS_LANES", lane.strip(), int, 0, 15)) for lane in lanes)
    settings = WorkerSettings(**found)  # type: ignore[arg-type]
    if origin(settings.orchestrator_url) is None:
        raise BadSetting(f"LUCIUS_ORCHESTRATOR_URL must be an http:// or https:// address, not {_shown(settings)}")
    return settings


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
