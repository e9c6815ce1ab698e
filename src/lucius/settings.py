"""Settings: read once from the environment, frozen, and passed on. The names are part of the contract."""

import base64
import os
import re
from collections.abc import Mapping
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from msgspec import Struct, field

from lucius.core.decision import Defaults
from lucius.drain import DRAIN_SECONDS
from lucius.ports.errors import LuciusError

ONE_PROCESS_LEDGERS = ("sqlite", "memory")


class SettingsError(LuciusError):
    """An environment variable has a value that can't be used."""


class Settings(Struct, frozen=True, kw_only=True):
    data_dir: Path = Path(".lucius")
    ledger_url: str = ""
    bus_url: str = "local:"
    gate_url: str = ""
    engine: Literal["embedded", "temporal"] = "embedded"
    temporal_address: str = "127.0.0.1:7233"
    temporal_namespace: str = "default"
    temporal_task_queue: str = "lucius"
    temporal_api_key: str = ""
    temporal_tls: bool = False
    temporal_ca_file: Path | None = None
    temporal_cert_file: Path | None = None
    temporal_key_file: Path | None = None
    temporal_server_name: str = ""
    temporal_keys: dict[str, bytes] = field(default_factory=dict)
    temporal_search_attributes: bool = True
    temporal_down: Literal["accept", "refuse"] = "accept"
    temporal_new_jobs: bool = True
    temporal_workflow_slots: int = 100
    temporal_activity_slots: int = 100
    temporal_cached_workflows: int = 2_000
    temporal_pollers: int = 100
    temporal_metrics: str = ""
    temporal_ui_url: str = ""
    api_engine: bool = True
    drain_delay: float = 0.0
    drain_seconds: float = DRAIN_SECONDS
    orchestrator_url: str = "http://127.0.0.1:8080"
    workspace_root: str = ""
    workspace_given: bool = False
    """Whether somebody said where the workspace is, and did not leave it to the data folder."""
    protocols_dir: Path | None = None
    config_path: Path | None = None
    dev_api_key: str = ""
    token_secrets: tuple[str, ...] = ()
    secrets: dict[str, str] = field(default_factory=dict)
    webhook_secrets: dict[str, str] = field(default_factory=dict)
    defaults: Defaults = Defaults()
    tenant_inflight: int = 10_000
    global_inflight: int = 100_000
    max_unacked: int = 1_000
    outbox_retry_interval: float = 5.0
    publish_timeout: float = 10.0
    sweep_interval: float = 0.0  # the ledger decides
    repair_interval: float = 30.0
    reload_interval: float = 1.0
    late_window_ms: int = 86_400_000
    max_body_bytes: int = 1_048_576
    max_batch_bytes: int = 16_777_216
    ledger_max_pages: int | None = None
    ledger_connections: int = 8
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"

    @property
    def ledger_scheme(self) -> str:
        return self.ledger_url.partition(":")[0]

    @property
    def ledger_shown(self) -> str:
        """Where it is, without the password of whoever may go there."""
        if not self.shares_ledger:
            return self.ledger_url
        place = urlsplit(self.ledger_url)
        return f"{place.scheme}://{place.netloc.rpartition('@')[2]}{place.path}"

    @property
    def shares_ledger(self) -> bool:
        """Whether several processes may have this ledger open."""
        return self.ledger_scheme not in ONE_PROCESS_LEDGERS

    @property
    def new_jobs_engine(self) -> str:
        """What drives the jobs that are accepted from now on; empty for the embedded engine."""
        return "temporal" if self.engine == "temporal" and self.temporal_new_jobs else ""

    @property
    def temporal_workflows_url(self) -> str:
        """Where people see workflows; empty if nobody has said where Temporal's UI is."""
        return self.temporal_ui_url and f"{self.temporal_ui_url}/namespaces/{self.temporal_namespace}/workflows"

    @property
    def webhook_secret_file(self) -> Path | None:
        """Where we keep the secret that signs what names no other; None if the environment or the ledger gave it."""
        return None if "DEFAULT" in self.webhook_secrets else self.data_dir / "webhook.secret"


def load_settings(env: Mapping[str, str] = os.environ, **overrides: object) -> Settings:
    """Settings from LUCIUS_* variables; `overrides` win. Raises SettingsError naming the variable."""
    read = _Reader(env)
    data_dir = Path(str(overrides.pop("data_dir", None) or read.text("LUCIUS_DATA_DIR", ".lucius"))).resolve()
    values: dict[str, object] = {
        "data_dir": data_dir,
        "ledger_url": read.text("LUCIUS_LEDGER_URL", f"sqlite:///{data_dir / 'ledger.db'}"),
        "bus_url": read.text("LUCIUS_BUS_URL", "local:"),
        "gate_url": read.text("LUCIUS_GATE_URL", ""),
        "engine": read.choice("LUCIUS_ENGINE", "embedded", ("embedded", "temporal")),
        "temporal_address": read.host_and_port("LUCIUS_TEMPORAL_ADDRESS", "127.0.0.1:7233"),
        "temporal_namespace": read.text("LUCIUS_TEMPORAL_NAMESPACE", "default"),
        "temporal_task_queue": read.text("LUCIUS_TEMPORAL_TASK_QUEUE", "lucius"),
        "temporal_api_key": read.text("LUCIUS_TEMPORAL_API_KEY", ""),
        "temporal_tls": read.choice("LUCIUS_TEMPORAL_TLS", "off", ("on", "off")) == "on",
        "temporal_ca_file": read.file("LUCIUS_TEMPORAL_CA_FILE"),
        "temporal_cert_file": read.file("LUCIUS_TEMPORAL_CERT_FILE"),
        "temporal_key_file": read.file("LUCIUS_TEMPORAL_KEY_FILE"),
        "temporal_server_name": read.text("LUCIUS_TEMPORAL_SERVER_NAME", ""),
        "temporal_keys": read.keys("LUCIUS_TEMPORAL_KEYS"),
        "temporal_search_attributes": read.choice("LUCIUS_TEMPORAL_SEARCH_ATTRIBUTES", "on", ("on", "off")) == "on",
        "temporal_new_jobs": read.choice("LUCIUS_TEMPORAL_NEW_JOBS", "on", ("on", "off")) == "on",
        "temporal_down": read.choice("LUCIUS_TEMPORAL_DOWN", "accept", ("accept", "refuse")),
        "temporal_workflow_slots": read.whole("LUCIUS_TEMPORAL_WORKFLOW_SLOTS", 100, 2),
        "temporal_activity_slots": read.whole("LUCIUS_TEMPORAL_ACTIVITY_SLOTS", 100, 1),
        "temporal_cached_workflows": read.whole("LUCIUS_TEMPORAL_CACHED_WORKFLOWS", 2_000, 0),
        "temporal_pollers": read.whole("LUCIUS_TEMPORAL_POLLERS", 100, 2),
        "temporal_metrics": read.address("LUCIUS_TEMPORAL_METRICS"),
        "temporal_ui_url": read.text("LUCIUS_TEMPORAL_UI_URL", "").rstrip("/"),
        "api_engine": read.choice("LUCIUS_API_ENGINE", "on", ("on", "off")) == "on",
        "drain_delay": read.number("LUCIUS_DRAIN_DELAY", 0.0, 0.0),
        "drain_seconds": read.number("LUCIUS_DRAIN_SECONDS", DRAIN_SECONDS, 0.0),
        "orchestrator_url": read.text("LUCIUS_ORCHESTRATOR_URL", "http://127.0.0.1:8080"),
        "workspace_root": read.text("LUCIUS_WORKSPACE_ROOT", (data_dir / "workspace").as_uri()),
        "workspace_given": bool(read.text("LUCIUS_WORKSPACE_ROOT", "")),
        "protocols_dir": read.path("LUCIUS_PROTOCOLS_DIR"),
        "config_path": read.path("LUCIUS_CONFIG"),
        "dev_api_key": read.text("LUCIUS_DEV_API_KEY", ""),
        "token_secrets": tuple(s for s in read.text("LUCIUS_TOKEN_SECRET", "").split(",") if s),
        "secrets": read.named("LUCIUS_SECRET_"),
        "webhook_secrets": read.named("LUCIUS_WEBHOOK_SECRET_"),
        "defaults": _defaults(read),
        "tenant_inflight": read.whole("LUCIUS_TENANT_INFLIGHT", 10_000, 0),
        "global_inflight": read.whole("LUCIUS_GLOBAL_INFLIGHT", 100_000, 0),
        "max_unacked": read.whole("LUCIUS_MAX_UNACKED", 1_000, 1),
        "outbox_retry_interval": read.number("LUCIUS_OUTBOX_RETRY_INTERVAL", 5.0, 0.01),
        "publish_timeout": read.number("LUCIUS_PUBLISH_TIMEOUT", 10.0, 0.01),
        "sweep_interval": read.number("LUCIUS_SWEEP_INTERVAL", 0.0, 0.01),
        "repair_interval": read.number("LUCIUS_REPAIR_INTERVAL", 30.0, 0.1),
        "reload_interval": read.number("LUCIUS_RELOAD_INTERVAL", 1.0, 0.05),
        "late_window_ms": read.millis("LUCIUS_LATE_WINDOW", 86_400.0),
        "max_body_bytes": read.whole("LUCIUS_MAX_BODY_BYTES", 1_048_576, 1_024),
        "max_batch_bytes": read.whole("LUCIUS_MAX_BATCH_BYTES", 16_777_216, 1_024),
        "ledger_max_pages": read.whole("LUCIUS_LEDGER_MAX_PAGES", 0, 0) or None,
        "ledger_connections": read.whole("LUCIUS_LEDGER_CONNECTIONS", 8, 2),
        "log_level": read.choice("LUCIUS_LOG_LEVEL", "info", ("debug", "info", "warning", "error")),
        "log_format": read.choice("LUCIUS_LOG_FORMAT", "json", ("json", "console")),
    }
    values.update(overrides)
    return Settings(**values)  # type: ignore[arg-type]


def _defaults(read: "_Reader") -> Defaults:
    return Defaults(
        ack_timeout_ms=read.millis("LUCIUS_ACK_TIMEOUT", 30.0),
        lease_ms=read.millis("LUCIUS_LEASE", 900.0),
        max_attempts=read.whole("LUCIUS_MAX_ATTEMPTS", 3, 1),
        backoff_scale=read.number("LUCIUS_BACKOFF_SCALE", 1.0, 0.0),
        topic_layout=read.choice("LUCIUS_TOPIC_LAYOUT", "shared", ("shared", "isolated")),
    )


class _Reader:
    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def text(self, name: str, default: str) -> str:
        return self._env.get(name, "").strip() or default

    def named(self, prefix: str) -> dict[str, str]:
        """Every variable that begins like this, by the rest of its name."""
        found = {name.removeprefix(prefix): self.text(name, "") for name in self._env if name.startswith(prefix)}
        return {name: value for name, value in found.items() if name and value}

    def keys(self, name: str) -> dict[str, bytes]:
        """`name:base64,…`; the first writes, the others only read. `plain` stands for no encryption."""
        found: dict[str, bytes] = {}
        for entry in filter(None, (part.strip() for part in self.text(name, "").split(","))):
            label, _, value = (part.strip() for part in entry.partition(":"))
            if not label or label in found or (label == "plain" and value):
                raise SettingsError(f"{name}: each key needs a name of its own, and one is called {label!r}")
            try:
                found[label] = base64.b64decode(value, validate=True)
            except ValueError:
                raise SettingsError(f"{name}: key {label!r} is not base64") from None
            if entry != "plain" and len(found[label]) != 32:
                raise SettingsError(f"{name}: key {label!r} needs 32 bytes; `openssl rand -base64 32` makes one")
        return found

    def path(self, name: str) -> Path | None:
        value = self.text(name, "")
        return Path(value).resolve() if value else None

    def file(self, name: str) -> Path | None:
        """One that is there already."""
        path = self.path(name)
        if path is not None and not path.is_file():
            raise SettingsError(f"{name}: there is no file {path}")
        return path

    def address(self, name: str) -> str:
        """`host:port`, the host a number, as those want it who listen there."""
        value = self.text(name, "")
        host, _, port = value.rpartition(":")
        try:
            if value:
                ip_address(host.strip("[]"))
                if not 0 < int(port) < 65_536:
                    raise ValueError
        except ValueError:
            raise SettingsError(
                f"{name} must be an IP address and a port, like 0.0.0.0:9091, and is {value!r}"
            ) from None
        return value

    def host_and_port(self, name: str, default: str) -> str:
        """`host:port`, the host a name or a number, as those want it who connect there."""
        value = self.text(name, default)
        host, _, port = value.rpartition(":")
        if not (_is_host(host) and port.isdecimal() and port.isascii() and 0 < int(port) < 65_536):
            raise SettingsError(f"{name} must be a host and a port, like {default}, and is {value!r}")
        return value

    def number(self, name: str, default: float, least: float) -> float:
        value = self.text(name, "")
        if not value:
            return default
        try:
            number = float(value)
        except ValueError:
            raise SettingsError(f"{name} must be a number, and is {value!r}") from None
        if not least <= number < float("inf"):
            raise SettingsError(f"{name} must be at least {least}, and is {value}")
        return number

    def whole(self, name: str, default: int, least: int) -> int:
        number = self.number(name, default, least)
        if number != int(number):
            raise SettingsError(f"{name} must be a whole number, and is {number}")
        return int(number)

    def millis(self, name: str, default_seconds: float) -> int:
        return round(self.number(name, default_seconds, 0.001) * 1000)

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name, default)
        if value not in allowed:
            raise SettingsError(f"{name} must be one of {', '.join(allowed)}, and is {value!r}")
        return value


def _is_host(text: str) -> bool:
    """A name, an IPv4 address, or an IPv6 address in brackets: neither a URL nor half an address."""
    if text.startswith("["):
        try:
            return text.endswith("]") and bool(IPv6Address(text[1:-1]))
        except ValueError:
            return False
    return re.fullmatch(r"[\w.-]+", text) is not None
