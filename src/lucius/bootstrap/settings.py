"""Settings: read once from the environment, frozen, and passed on. Variable names are a public contract."""

import base64
import math
import os
import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from msgspec import Struct, field

from lucius.bootstrap.drain import DRAIN_SECONDS
from lucius.contract.refs import WRITABLE_SCHEMES, is_plain_path
from lucius.core.model.decision import Defaults
from lucius.core.protocol.definition import MAX_DURATION_MS
from lucius.ports.errors import SettingsError

DEV_FILE_ROOTS = "LUCIUS_DEV_FILE_ROOTS"
"""Set by `lucius dev` for the other processes of the control plane."""
ONE_PROCESS_LEDGERS = ("sqlite", "memory")
DEFAULT_TENANT_SHARE = 0.4
DEFAULT_MAX_CONNECTIONS = 4_000
MAX_SECONDS = MAX_DURATION_MS / 1000
"""Longest duration of a setting or a protocol: later instants could not be stored or formatted."""
MAX_LATE_WINDOW_SECONDS = 366 * 24 * 3600.0
MAX_BACKOFF_SCALE = 1_000.0


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of one process; durations without a suffix are in seconds."""

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
    temporal_fastpath: bool = True
    """Whether API and activities take the shortcuts of the Temporal engine; workflow code never reads it."""
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
    """True if the workspace was set explicitly, not derived from the data directory."""
    dev_file_roots: tuple[str, ...] = ()
    """Folders in which `lucius dev` permits `file:` refs; empty outside `lucius dev`."""
    protocols_dir: Path | None = None
    config_path: Path | None = None
    dev: bool = False
    """True in `lucius dev`, where short and well-known API keys are accepted."""
    dev_api_key: str = ""
    token_secrets: tuple[str, ...] = ()
    secrets: dict[str, str] = field(default_factory=dict)
    webhook_secrets: dict[str, str] = field(default_factory=dict)
    webhook_master: str = ""
    """Master for secrets of tenants without one in the config file; if empty, one is generated."""
    defaults: Defaults = Defaults()
    job_timeout_ms: int | None = None
    """Default for protocols without a timeout; pinned on a job when it is accepted."""
    tenant_inflight: int = 10_000
    global_inflight: int = 100_000
    tenant_share: float = DEFAULT_TENANT_SHARE
    max_unacked: int = 1_000
    outbox_retry_interval: float = 5.0
    publish_timeout: float = 10.0
    sweep_interval: float = 0.0  # 0: depends on whether the ledger is shared
    repair_interval: float = 30.0
    reload_interval: float = 1.0
    late_window_ms: int = 86_400_000
    max_body_bytes: int = 1_048_576
    max_batch_bytes: int = 16_777_216
    max_connections: int = DEFAULT_MAX_CONNECTIONS
    max_connections_per_address: int = 1_000
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    header_timeout: float = 10.0
    body_timeout: float = 60.0
    idle_timeout: float = 75.0
    max_header_bytes: int = 32_768
    max_streams: int = 500
    max_streams_per_key: int = 100
    max_streams_per_tenant: int = 200
    max_long_polls_per_key: int = 1_000
    max_long_polls_per_tenant: int = 1_000
    max_waiting_pulls_per_key: int = 2_000
    max_waiting_pulls_per_tenant: int = 1_000
    ledger_max_pages: int | None = None
    ledger_connections: int = 8
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"

    @property
    def ledger_scheme(self) -> str:
        return self.ledger_url.partition(":")[0]

    @property
    def ledger_shown(self) -> str:
        """Ledger URL without credentials."""
        if not self.shares_ledger:
            return self.ledger_url
        return _without_credentials(self.ledger_url)

    @property
    def bus_shown(self) -> str:
        """Bus URL without credentials."""
        return _without_credentials(self.bus_url) if "//" in self.bus_url else self.bus_url

    @property
    def shares_ledger(self) -> bool:
        """True if several processes may open this ledger."""
        return self.ledger_scheme not in ONE_PROCESS_LEDGERS

    @property
    def new_jobs_engine(self) -> str:
        """Engine of jobs accepted from now on; empty for the embedded engine."""
        return "temporal" if self.engine == "temporal" and self.temporal_new_jobs else ""

    @property
    def temporal_workflows_url(self) -> str:
        """URL of the workflow list in Temporal's UI; empty if the UI's address is not configured."""
        return self.temporal_ui_url and f"{self.temporal_ui_url}/namespaces/{self.temporal_namespace}/workflows"

    @property
    def webhook_secret_file(self) -> Path | None:
        """File of the generated default webhook secret; None if the environment or the ledger provides it."""
        return None if "DEFAULT" in self.webhook_secrets else self.data_dir / "webhook.secret"


def _without_credentials(url: str) -> str:
    place = urlsplit(url)
    return f"{place.scheme}://{place.netloc.rpartition('@')[2]}{place.path}"


def load_settings(env: Mapping[str, str] = os.environ, **overrides: object) -> Settings:
    """Read the settings from LUCIUS_* variables; `overrides` win. Raises SettingsError naming the variable."""
    read = EnvironmentReader(env)
    data_dir = Path(str(overrides.pop("data_dir", None) or read.text("LUCIUS_DATA_DIR", ".lucius"))).resolve()
    return Settings(**(read_values(read, data_dir) | overrides))  # type: ignore[arg-type]


def read_values(read: "EnvironmentReader", data_dir: Path) -> dict[str, object]:
    """Read the value of every field of Settings. Raises SettingsError naming the variable."""
    max_connections = read.whole("LUCIUS_MAX_CONNECTIONS", DEFAULT_MAX_CONNECTIONS, 0)
    shared = max_connections or DEFAULT_MAX_CONNECTIONS
    quarter, half = max(1, shared // 4), max(1, shared // 2)
    return {
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
        "temporal_fastpath": read.choice("LUCIUS_TEMPORAL_FASTPATH", "on", ("on", "off")) == "on",
        "temporal_down": read.choice("LUCIUS_TEMPORAL_DOWN", "accept", ("accept", "refuse")),
        "temporal_workflow_slots": read.whole("LUCIUS_TEMPORAL_WORKFLOW_SLOTS", 100, 2),
        "temporal_activity_slots": read.whole("LUCIUS_TEMPORAL_ACTIVITY_SLOTS", 100, 1),
        "temporal_cached_workflows": read.whole("LUCIUS_TEMPORAL_CACHED_WORKFLOWS", 2_000, 0),
        "temporal_pollers": read.whole("LUCIUS_TEMPORAL_POLLERS", 100, 2),
        "temporal_metrics": read.address("LUCIUS_TEMPORAL_METRICS"),
        "temporal_ui_url": read.text("LUCIUS_TEMPORAL_UI_URL", "").rstrip("/"),
        "api_engine": read.choice("LUCIUS_API_ENGINE", "on", ("on", "off")) == "on",
        "drain_delay": read.seconds("LUCIUS_DRAIN_DELAY", 0.0, 0.0),
        "drain_seconds": read.seconds("LUCIUS_DRAIN_SECONDS", DRAIN_SECONDS, 0.0),
        "orchestrator_url": read.text("LUCIUS_ORCHESTRATOR_URL", "http://127.0.0.1:8080"),
        "workspace_root": read.text("LUCIUS_WORKSPACE_ROOT", (data_dir / "workspace").as_uri()),
        "workspace_given": bool(read.text("LUCIUS_WORKSPACE_ROOT", "")),
        "dev_file_roots": tuple(filter(None, read.text(DEV_FILE_ROOTS, "").split(os.pathsep))),
        "protocols_dir": read.path("LUCIUS_PROTOCOLS_DIR"),
        "config_path": read.path("LUCIUS_CONFIG"),
        "dev_api_key": read.text("LUCIUS_DEV_API_KEY", ""),
        "token_secrets": tuple(s for s in read.text("LUCIUS_TOKEN_SECRET", "").split(",") if s),
        "secrets": read.named("LUCIUS_SECRET_"),
        "webhook_secrets": read.named("LUCIUS_WEBHOOK_SECRET_"),
        "webhook_master": read.text("LUCIUS_WEBHOOK_MASTER_SECRET", ""),
        "defaults": _defaults(read),
        "job_timeout_ms": read.millis("LUCIUS_JOB_TIMEOUT", 0.0) or None,
        "tenant_inflight": read.whole("LUCIUS_TENANT_INFLIGHT", 10_000, 0),
        "global_inflight": read.whole("LUCIUS_GLOBAL_INFLIGHT", 100_000, 0),
        "tenant_share": read.share("LUCIUS_TENANT_SHARE", DEFAULT_TENANT_SHARE),
        "max_unacked": read.whole("LUCIUS_MAX_UNACKED", 1_000, 1),
        "outbox_retry_interval": read.seconds("LUCIUS_OUTBOX_RETRY_INTERVAL", 5.0, 0.01),
        "publish_timeout": read.seconds("LUCIUS_PUBLISH_TIMEOUT", 10.0, 0.01),
        "sweep_interval": read.seconds("LUCIUS_SWEEP_INTERVAL", 0.0, 0.01),
        "repair_interval": read.seconds("LUCIUS_REPAIR_INTERVAL", 30.0, 0.1),
        "reload_interval": read.seconds("LUCIUS_RELOAD_INTERVAL", 1.0, 0.05),
        "late_window_ms": read.millis("LUCIUS_LATE_WINDOW", 86_400.0, MAX_LATE_WINDOW_SECONDS),
        "max_body_bytes": read.whole("LUCIUS_MAX_BODY_BYTES", 1_048_576, 1_024),
        "max_batch_bytes": read.whole("LUCIUS_MAX_BATCH_BYTES", 16_777_216, 1_024),
        "max_connections": max_connections,
        "max_connections_per_address": read.whole("LUCIUS_MAX_CONNECTIONS_PER_ADDRESS", 1_000, 0),
        "trusted_proxies": read.networks("LUCIUS_TRUSTED_PROXIES", "127.0.0.0/8,::1"),
        "header_timeout": read.seconds("LUCIUS_HEADER_TIMEOUT", 10.0, 0.1),
        "body_timeout": read.seconds("LUCIUS_BODY_TIMEOUT", 60.0, 0.1),
        "idle_timeout": read.seconds("LUCIUS_IDLE_TIMEOUT", 75.0, 0.1),
        "max_header_bytes": read.whole("LUCIUS_MAX_HEADER_BYTES", 32_768, 1_024),
        "max_streams": read.whole("LUCIUS_MAX_STREAMS", 500, 0),
        "max_streams_per_key": read.whole("LUCIUS_MAX_STREAMS_PER_KEY", 100, 0),
        "max_streams_per_tenant": read.whole("LUCIUS_MAX_STREAMS_PER_TENANT", 200, 0),
        "max_long_polls_per_key": read.whole("LUCIUS_MAX_LONG_POLLS_PER_KEY", quarter, 0),
        "max_long_polls_per_tenant": read.whole("LUCIUS_MAX_LONG_POLLS_PER_TENANT", quarter, 0),
        "max_waiting_pulls_per_key": read.whole("LUCIUS_MAX_WAITING_PULLS_PER_KEY", half, 0),
        "max_waiting_pulls_per_tenant": read.whole("LUCIUS_MAX_WAITING_PULLS_PER_TENANT", quarter, 0),
        "ledger_max_pages": read.whole("LUCIUS_LEDGER_MAX_PAGES", 0, 0) or None,
        "ledger_connections": read.whole("LUCIUS_LEDGER_CONNECTIONS", 8, 2),
        "log_level": read.choice("LUCIUS_LOG_LEVEL", "info", ("debug", "info", "warning", "error")),
        "log_format": read.choice("LUCIUS_LOG_FORMAT", "json", ("json", "console")),
    }


def check_workspace_root(settings: Settings) -> None:
    """Raise SettingsError for a workspace root to which no service could write: every step would fail."""
    name, value = "LUCIUS_WORKSPACE_ROOT", settings.workspace_root
    if not value:
        return
    root = urlsplit(value)
    if root.scheme not in WRITABLE_SCHEMES:
        known = " or ".join(f"{scheme}:" for scheme in WRITABLE_SCHEMES)
        raise SettingsError(f"{name}: services can't write artifacts to {value!r}; it must be a {known} URI")
    if root.scheme == "file" and (root.netloc not in ("", "localhost") or not root.path.startswith("/")):
        raise SettingsError(f"{name} must be file:///absolute/path, and is {value!r}")
    if not is_plain_path(unquote(root.path)):
        raise SettingsError(f"{name} must be a path without '..', backslashes and NUL, and is {value!r}")
    if root.query or root.fragment:
        raise SettingsError(f"{name} must have neither a query nor a fragment")


def _defaults(read: "EnvironmentReader") -> Defaults:
    return Defaults(
        ack_timeout_ms=read.millis("LUCIUS_ACK_TIMEOUT", 30.0),
        lease_ms=read.millis("LUCIUS_LEASE", 900.0),
        max_attempts=read.whole("LUCIUS_MAX_ATTEMPTS", 3, 1),
        backoff_scale=read.number("LUCIUS_BACKOFF_SCALE", 1.0, 0.0, MAX_BACKOFF_SCALE),
        topic_layout=read.choice("LUCIUS_TOPIC_LAYOUT", "shared", ("shared", "isolated")),
    )


class EnvironmentReader:
    """Reads environment variables as values; each method raises SettingsError that names the variable."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def text(self, name: str, default: str) -> str:
        return self._env.get(name, "").strip() or default

    def named(self, prefix: str) -> dict[str, str]:
        """Return all variables with this prefix, keyed by the rest of their names."""
        found = {name.removeprefix(prefix): self.text(name, "") for name in self._env if name.startswith(prefix)}
        return {name: value for name, value in found.items() if name and value}

    def keys(self, name: str) -> dict[str, bytes]:
        """Read `name:base64,…`: the first key encrypts, the others only decrypt. `plain` means no encryption."""
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
        """Read a path; symbolic links in it stay, because they may lead elsewhere later."""
        value = self.text(name, "")
        return Path(value).absolute() if value else None

    def file(self, name: str) -> Path | None:
        """Read the path of an existing file."""
        path = self.path(name)
        if path is not None and not path.is_file():
            raise SettingsError(f"{name}: there is no file {path}")
        return path

    def address(self, name: str) -> str:
        """Read `host:port` for a listener: the host must be an IP address."""
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
        """Read `host:port` for a connection: the host may be a name or an IP address."""
        value = self.text(name, default)
        host, _, port = value.rpartition(":")
        if not (_is_host(host) and port.isdecimal() and port.isascii() and 0 < int(port) < 65_536):
            raise SettingsError(f"{name} must be a host and a port, like {default}, and is {value!r}")
        return value

    def networks(self, name: str, default: str) -> tuple[IPv4Network | IPv6Network, ...]:
        """Read comma-separated addresses and networks; `none` for none."""
        value = self.text(name, default)
        entries = [] if value == "none" else [part.strip() for part in value.split(",") if part.strip()]
        try:
            return tuple(ip_network(entry, strict=False) for entry in entries)
        except ValueError:
            raise SettingsError(
                f"{name} must be IP addresses or networks, like 10.0.0.0/8,127.0.0.1, and is {value!r}"
            ) from None

    def number(self, name: str, default: float, minimum: float, maximum: float = math.inf) -> float:
        value = self.text(name, "")
        if not value:
            return default
        try:
            number = float(value)
        except ValueError:
            raise SettingsError(f"{name} must be a number, and is {value!r}") from None
        if not math.isfinite(number):
            raise SettingsError(f"{name} must be a finite number, and is {value!r}")
        if not minimum <= number <= maximum:
            bound = f"at least {minimum:g}" if number < minimum else f"at most {maximum:.15g}"
            raise SettingsError(f"{name} must be {bound}, and is {value}")
        return number

    def seconds(self, name: str, default: float, minimum: float, maximum: float = MAX_SECONDS) -> float:
        """Read a duration in seconds, by default of 31 days at most."""
        number = self.number(name, default, minimum)
        if number > maximum:
            raise SettingsError(
                f"{name} must be at most {maximum:.0f} seconds ({maximum / 86_400:.0f} days), "
                f"and is {self.text(name, '')}"
            )
        return number

    def share(self, name: str, default: float) -> float:
        """Read a number above 0 and at most 1."""
        number = self.number(name, default, 0.0)
        if not 0 < number <= 1:
            raise SettingsError(f"{name} must be more than 0 and at most 1, and is {number}")
        return number

    def whole(self, name: str, default: int, minimum: int) -> int:
        number = self.number(name, default, minimum)
        if number != int(number):
            raise SettingsError(f"{name} must be a whole number, and is {number}")
        return int(number)

    def millis(self, name: str, default_seconds: float, max_seconds: float = MAX_SECONDS) -> int:
        return round(self.seconds(name, default_seconds, 0.001, max_seconds) * 1000)

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name, default)
        if value not in allowed:
            raise SettingsError(f"{name} must be one of {', '.join(allowed)}, and is {value!r}")
        return value


def _is_host(text: str) -> bool:
    """Return True for a name, an IPv4 address, or an IPv6 address in brackets; False for a URL or a partial address."""
    if text.startswith("["):
        try:
            return text.endswith("]") and bool(IPv6Address(text[1:-1]))
        except ValueError:
            return False
    return re.fullmatch(r"[\w.-]+", text) is not None
