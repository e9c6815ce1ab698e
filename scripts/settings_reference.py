"""Write docs/reference/settings.md from the code that reads the settings; with --check, report whether it is stale."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from lucius.bootstrap.settings import EnvironmentReader, read_values
from lucius.reference_services.settings import settings_from as read_reference_services
from lucius.worker import settings as worker
from scripts.pages import keep

INTRODUCTION = """\
<!-- Written by scripts/settings_reference.py from the code that reads the settings. Run the script to change it. -->

# Settings

Every process reads its settings once, when it starts, from environment variables. A value that can't be used stops the
start with a message that names the variable. Durations are in seconds. The [config file](../../examples/lucius.yaml)
that `LUCIUS_CONFIG` names is read again when it changes; it holds tenants, modes, limits, ref policies and
[API keys](../how-to/keys.md).
"""

Texts = Mapping[str, str]

STORES: Texts = {
    "LUCIUS_DATA_DIR": "Folder of ledger, workspace and secrets, unless they are configured separately; set to mode "
    "0700 (files 0600) at every start.",
    "LUCIUS_LEDGER_URL": "`sqlite:///path`, `memory:`, or `postgresql://…` for [several "
    "replicas](../how-to/replicas.md).",
    "LUCIUS_BUS_URL": "`local:` (services pull), `redis://…` ([Redis bus](../operations.md#redis-bus)) or `memory:` "
    "(in one process, for tests).",
    "LUCIUS_GATE_URL": "`redis://…`: refuses commands over a limit without a commit ([admission "
    "cache](../operations.md#admission-cache)).",
    "LUCIUS_TOPIC_LAYOUT": "`isolated` uses separate topics for BURST. The same for all processes.",
    "LUCIUS_WORKSPACE_ROOT": "Folder for intermediate artifacts of services. Its scheme must be one that the SDK can "
    "write (`file:`), else the start fails; on several hosts a [shared folder](../how-to/replicas.md).",
    "LUCIUS_PROTOCOLS_DIR": "Folder of protocols in addition to the shipped ones.",
    "LUCIUS_CONFIG": "The [config file](../../examples/lucius.yaml).",
    "LUCIUS_LEDGER_CONNECTIONS": "Connections of this process to PostgreSQL.",
    "LUCIUS_LEDGER_MAX_PAGES": "Maximum size of the SQLite file in pages; 0 for no limit. When it is full, requests "
    "get 507 and no data is lost.",
}

ENGINE: Texts = {
    "LUCIUS_ENGINE": "The engine: `embedded`, or [`temporal`](../how-to/temporal.md).",
    "LUCIUS_API_ENGINE": "`off`: this process serves the API only, and `lucius reconciler` runs the engine.",
    "LUCIUS_OUTBOX_RETRY_INTERVAL": "Time between queries of the outbox when nothing wakes the relay.",
    "LUCIUS_PUBLISH_TIMEOUT": "Time after which the outcome of a publish counts as unknown.",
    "LUCIUS_SWEEP_INTERVAL": "Time between checks of deadlines. Unset: 0.2 on SQLite, about 2 on PostgreSQL.",
    "LUCIUS_REPAIR_INTERVAL": "Time between searches for drift.",
    "LUCIUS_RELOAD_INTERVAL": "Time between checks of config and protocol files for changes.",
    "LUCIUS_DRAIN_DELAY": "On SIGTERM: time until new requests are refused.",
    "LUCIUS_DRAIN_SECONDS": "After that delay: time that running work gets.",
}

JOBS: Texts = {
    "LUCIUS_ACK_TIMEOUT": "Time for the ACK after hand-over; a protocol's step can set its own.",
    "LUCIUS_LEASE": "Lease from the ACK on, extended by heartbeats; a protocol's step can set its own.",
    "LUCIUS_JOB_TIMEOUT": "Time from acceptance after which jobs end FAILED_FINAL with `JOB_TIMEOUT`, if their "
    "protocol sets no `policies.timeout_ms`. Unset: none. Stored on the job when it is accepted; later runs use the "
    "same value.",
    "LUCIUS_MAX_ATTEMPTS": "Attempts per step.",
    "LUCIUS_BACKOFF_SCALE": "Factor for every backoff.",
    "LUCIUS_LATE_WINDOW": "Time that a callback token outlives its lease.",
    "LUCIUS_MAX_UNACKED": "Maximum of directives handed over to a service and not yet acknowledged; beyond it, "
    "directives wait in the outbox and use up no attempt. The same for each tenant, of directives pulled with a "
    "`serve` key that is bound to tenants.",
    "LUCIUS_TENANT_INFLIGHT": "Maximum of one tenant's jobs that have not ended.",
    "LUCIUS_GLOBAL_INFLIGHT": "Maximum of all jobs that have not ended.",
    "LUCIUS_TENANT_SHARE": "Share of an API process's time that a tenant may always use. While other tenants are "
    "active, and for a minute after, it may use more only as long as 60 % of the time stays free. Commands and job "
    "lists beyond that wait up to 5 s, then get 429 `TENANT_PACED`, sent after a delay of a second. A large command "
    "is charged the time to decode and check it, even if it is refused. 1 turns pacing off.",
}

HTTP: Texts = {
    "LUCIUS_ORCHESTRATOR_URL": "Public base URL, used in `callback_urls` of directives.",
    "LUCIUS_MAX_BODY_BYTES": "Larger bodies are refused with 413; no item of a batch may be larger either.",
    "LUCIUS_MAX_BATCH_BYTES": "The same for batches. A batch of callbacks without `Authorization` may have 1 MiB and "
    "100 items of 64 KiB.",
    "LUCIUS_MAX_HEADER_BYTES": "A larger head is refused with 431.",
    "LUCIUS_MAX_CONNECTIONS": "Further connections are refused with 503; 0 for no limit.",
    "LUCIUS_MAX_CONNECTIONS_PER_ADDRESS": "Further connections are refused with 429; 0 for no limit. Counted by peer "
    "address, for IPv6 by /64 network; Lucius does not read `X-Forwarded-For`.",
    "LUCIUS_TRUSTED_PROXIES": "Addresses and networks of proxies, which are exempt from the limit per address; `none` "
    "for none.",
    "LUCIUS_HEADER_TIMEOUT": "Time in which the head of a request must arrive, else 408.",
    "LUCIUS_BODY_TIMEOUT": "Time in which the body must arrive, else 408. Lucius also closes the connection of a "
    "client that does not read its response for this long.",
    "LUCIUS_IDLE_TIMEOUT": "Time that a connection may be idle.",
    "LUCIUS_MAX_STREAMS": "Live event streams; further ones are refused with 503; 0 for no limit.",
    "LUCIUS_MAX_STREAMS_PER_KEY": "The same per API key; 429.",
    "LUCIUS_MAX_STREAMS_PER_TENANT": "The same per tenant; 429.",
    "LUCIUS_MAX_LONG_POLLS_PER_KEY": "Requests with `?wait=` that one API key may have waiting; further ones are "
    "refused with 429; 0 for no limit. Unset: a quarter of `LUCIUS_MAX_CONNECTIONS`.",
    "LUCIUS_MAX_LONG_POLLS_PER_TENANT": "The same for the jobs of one tenant.",
    "LUCIUS_MAX_WAITING_PULLS_PER_KEY": "Pulls that one API key may have waiting; further ones are refused with 429; "
    "0 for no limit. Unset: half of `LUCIUS_MAX_CONNECTIONS`. A pull that finds a directive at once does not count.",
    "LUCIUS_MAX_WAITING_PULLS_PER_TENANT": "The same for the keys that are bound to one tenant alone. Unset: a "
    "quarter of `LUCIUS_MAX_CONNECTIONS`.",
}

SECRETS: Texts = {
    "LUCIUS_DEV_API_KEY": "An API key with every scope and tenant; outside `lucius dev` at least 20 characters.",
    "LUCIUS_TOKEN_SECRET": "Signs callback tokens; comma-separated list: the first secret signs, all are accepted. "
    "Unset: generated, and kept in the data folder, on PostgreSQL in the ledger.",
    "LUCIUS_SECRET_": "Value of `${secrets.name}` in calls; for `stripe-key`, set `LUCIUS_SECRET_STRIPE_KEY`.",
    "LUCIUS_WEBHOOK_SECRET_": "`whsec_…` that signs the webhooks of `notify` steps (`DEFAULT` for steps that name no "
    "secret), and job webhooks of tenants that [name it](../operations.md#job-webhooks). `DEFAULT` is generated if "
    "it is unset.",
    "LUCIUS_WEBHOOK_MASTER_SECRET": "`whsec_…` from which each tenant's webhook secret is derived. Unset: generated, "
    "and kept in the data folder, on PostgreSQL in the ledger.",
}

LOGS: Texts = {
    "LUCIUS_LOG_LEVEL": "Logs go to stderr.",
    "LUCIUS_LOG_FORMAT": "`console` is the readable format.",
}

TEMPORAL: Texts = {
    "LUCIUS_TEMPORAL_ADDRESS": "Host and port of Temporal's frontend.",
    "LUCIUS_TEMPORAL_NAMESPACE": "Temporal namespace. It must exist.",
    "LUCIUS_TEMPORAL_TASK_QUEUE": "One for each ledger; live jobs stay on the task queue on which they began.",
    "LUCIUS_TEMPORAL_NEW_JOBS": "`off`: new jobs go to the embedded engine "
    "([migration](../how-to/temporal.md#move-a-running-deployment)).",
    "LUCIUS_TEMPORAL_DOWN": "While Temporal does not answer, commands are accepted and start later; `refuse`: 503.",
    "LUCIUS_TEMPORAL_FASTPATH": "`off`: messages to workflows take the plain route, without the "
    "[shortcuts](../flows.md#a-result-on-temporal) that make answers faster. May differ between processes.",
    "LUCIUS_TEMPORAL_TLS": "`on`: TLS with the system's certificates; an API key turns it on.",
    "LUCIUS_TEMPORAL_API_KEY": "For Temporal Cloud.",
    "LUCIUS_TEMPORAL_CA_FILE": "PEM; authorities that may sign Temporal's certificate, instead of the system's.",
    "LUCIUS_TEMPORAL_CERT_FILE": "PEM; the client certificate (mTLS).",
    "LUCIUS_TEMPORAL_KEY_FILE": "PEM; its key.",
    "LUCIUS_TEMPORAL_SERVER_NAME": "The name in Temporal's certificate, if it differs from the address.",
    "LUCIUS_TEMPORAL_KEYS": "Encrypts what Temporal keeps ([encryption](../how-to/temporal.md#encryption)).",
    "LUCIUS_TEMPORAL_SEARCH_ATTRIBUTES": "`off`: workflows can't be searched by tenant and so on.",
    "LUCIUS_TEMPORAL_UI_URL": "Base of Temporal's web UI, for links from jobs; every reader of a job sees it.",
    "LUCIUS_TEMPORAL_WORKFLOW_SLOTS": "Maximum of concurrent workflow tasks in one worker.",
    "LUCIUS_TEMPORAL_ACTIVITY_SLOTS": "Maximum of concurrent activities in one worker.",
    "LUCIUS_TEMPORAL_CACHED_WORKFLOWS": "Live jobs that a worker keeps in memory; it reads the history of others "
    "again.",
    "LUCIUS_TEMPORAL_POLLERS": "Maximum of concurrent polls for each kind of task; their number follows the load.",
    "LUCIUS_TEMPORAL_METRICS": "Like `127.0.0.1:9091`: the Temporal SDK's own metrics for Prometheus, beside "
    "`/metrics`; 0.0.0.0 for other hosts.",
}

SERVICES: Texts = {
    "LUCIUS_ORCHESTRATOR_URL": "Address for pulls and callbacks.",
    "LUCIUS_API_KEY": "The service's key, of scope `serve`.",
    "LUCIUS_BUS_URL": "Source of directives: `local:`, or the orchestrator's `redis://…` (`pip install "
    "'lucius[redis]'`).",
    "LUCIUS_TOPIC_LAYOUT": "For `redis://`, the orchestrator's value: `shared` or `isolated`.",
    "LUCIUS_DATA_DIR": "Holds undelivered results, the record of attempts, and `blobs/`. **Without it a finished "
    "result is lost with the process**, and a warning at the start says so. It must be a local disk: on NFS and the "
    "like neither the locks nor the database work.",
    "LUCIUS_JOURNAL_SYNC": "`1`: results also survive a power failure, at the cost of a disk flush for each.",
    "LUCIUS_IDEMPOTENCY_URL": "Store for the record of attempts: `sqlite:` in the data folder (default), `redis://…` "
    "for several machines, `memory:`.",
    "LUCIUS_CONCURRENCY": "Concurrent steps.",
    "LUCIUS_GRACE": "Time that running steps get on shutdown.",
    "LUCIUS_HEALTH_PORT": "Serves `/healthz`, `/readyz`, `/metrics`.",
    "LUCIUS_HEALTH_HOST": "The host of that port; in a container 0.0.0.0. Also for `lucius reconciler` and `lucius "
    "temporal-worker`.",
    "LUCIUS_LANES": "Pull only these lanes: `0,1,2`.",
    "LUCIUS_BLOB_ROOT": "`blob://container/path` is `<root>/container/path`; default `<data dir>/blobs`.",
    "LUCIUS_FILE_ROOTS": "Folders (separated by `:`) in which clients' `file:` refs must lie ([files that a service "
    "may reach](../how-to/write-a-service.md#files-that-a-service-may-reach)).",
    "LUCIUS_HTTPS_TIMEOUT": "Time for reading one `https:` input in all.",
    "LUCIUS_HTTPS_IDLE_TIMEOUT": "Time without a byte from its host.",
    "LUCIUS_HTTPS_ALLOW_PRIVATE": "`1`: read `https:` inputs from loopback, private and link-local addresses, too. "
    "**A client can then have every web server of your network read**: for tests, or where the tenants' ref policy "
    "lists the hosts. A ref with such an address in it also needs an entry in `refs.hosts`.",
    "LUCIUS_SERVICE_DELAY": "Time by which every step takes longer, for tests.",
    "SSL_CERT_FILE": "Certificate authorities to trust instead of the system's.",
    "HTTP_PROXY": "And its like: ignored, a service connects to its orchestrator directly.",
    "LUCIUS_LOG_LEVEL": "As above.",
    "LUCIUS_LOG_FORMAT": "As above.",
}

REFERENCE_SERVICES: Texts = {
    "LUCIUS_OCR_ENGINE": "`off`: never read pixels.",
    "LUCIUS_EMBEDDING_MODEL": "Model for steps that name none. A service whose model is missing does not start.",
    "LUCIUS_MODEL_THREADS": "Threads of a model's computation; more threads read one page faster, at a higher total "
    "CPU time.",
    "LUCIUS_SIS_BASE_URL": "The chat endpoint. Unset: answers are sentences of the document.",
    "LUCIUS_SIS_MODEL": "The model there; required with the endpoint.",
    "LUCIUS_SIS_API_KEY": "The key for the endpoint.",
    "LUCIUS_SIS_TIMEOUT": "Maximum time for an answer.",
}

CLIENTS: Texts = {
    "LUCIUS_URL": "The control plane; if absent, the `lucius dev` of this folder.",
    "LUCIUS_API_KEY": "Your key; if absent, that of the `lucius dev` of this folder.",
    "LUCIUS_DATA_DIR": "The folder of that `lucius dev`.",
    "LUCIUS_BLOB_ROOT": "Where `blob:` refs are, for `lucius jobs output`.",
    "LUCIUS_HTTPS_ALLOW_PRIVATE": "`1`: `lucius jobs output` reads `https:` outputs from addresses that are not "
    "public, too.",
}

CONTROL_PLANE = {
    "Ledger, bus and files": STORES,
    "Engine": ENGINE,
    "Jobs and limits": JOBS,
    "HTTP": HTTP,
    "Keys and secrets": SECRETS,
    "Logs": LOGS,
    "Temporal": TEMPORAL,
}


_DATA_DIR = Path("/data-dir")


class Found(Struct, frozen=True):
    """What the code says about one setting."""

    default: str = ""
    values: str = ""


class _Recorder(EnvironmentReader):
    """Reads an empty environment and records what is asked for."""

    def __init__(self) -> None:
        super().__init__({})
        self.found: dict[str, Found] = {}

    def text(self, name: str, default: str) -> str:
        self._note(name, default)
        return super().text(name, default)

    def path(self, name: str) -> Path | None:
        self._note(name, "", "path")
        return None

    def named(self, prefix: str) -> dict[str, str]:
        self._note(prefix, "")
        return {}

    def number(self, name: str, default: float, least: float, most: float = float("inf")) -> float:
        self._note(name, f"{default:.15g}", f"at least {least:g}" if most == float("inf") else f"{least:g} to {most:g}")
        return default

    def share(self, name: str, default: float) -> float:
        self._note(name, f"{default:g}", "above 0, at most 1")
        return default

    def seconds(self, name: str, default: float, least: float, most: float = 0.0) -> float:
        shown = "" if default < least else f"{default:.15g}"  # a default outside of the range means unset
        self._note(name, shown, f"at least {least:g}")
        return default

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        self._note(name, default, ", ".join(f"`{value}`" for value in allowed))
        return default

    def _note(self, name: str, default: str, values: str = "") -> None:
        self.found.setdefault(name, Found(default, values))


class _Names(dict[str, str]):
    """An empty environment that records the names it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


def control_plane_settings() -> dict[str, Found]:
    """Return each setting of the control plane as the code reads it, in the code's order."""
    recorder = _Recorder()
    read_values(recorder, _DATA_DIR)
    shown = {
        name: Found(about.default.replace(str(_DATA_DIR), "<data dir>"), about.values)
        for name, about in recorder.found.items()
    }
    return {"LUCIUS_DATA_DIR": Found(".lucius", "path")} | shown


def service_settings() -> dict[str, Found]:
    """Return each setting of the SDK; files that it only protects are the control plane's and not among them."""
    names, default = _Names(), worker.WorkerSettings()
    worker.settings_from(names)
    found = {name: Found() for name in sorted(names.asked)}
    for field, name in worker.TEXTS.items():
        found[name] = Found(getattr(default, field))
    for field, (name, _, least, most) in worker.NUMBERS.items():
        value = getattr(default, field)
        found[name] = Found("" if value is None else f"{value:g}", f"{least:g} to {most:g}")
    for name in worker.SWITCHES.values():
        found[name] = Found("0", "`0`, `1`")
    return {name: about for name, about in found.items() if name not in ("LUCIUS_LEDGER_URL", "LUCIUS_GATE_URL")}


def reference_service_settings() -> set[str]:
    """Return the settings of OCR, EMBEDDING and SIS."""
    names = _Names()
    names["LUCIUS_SIS_BASE_URL"], names["LUCIUS_SIS_MODEL"] = "http://127.0.0.1", "model"
    read_reference_services(names)
    return names.asked


def page() -> str:
    found = control_plane_settings()
    lines = [INTRODUCTION, "## Control plane", ""]
    for title, texts in CONTROL_PLANE.items():
        lines += [f"### {title}", "", *_table(texts, found), ""]
    service = service_settings()
    lines += ["## Services", "", "Read by every service that uses the SDK.", "", *_table(SERVICES, service), ""]
    lines += ["## Reference services", "", "Read by `lucius service` in addition.", ""]
    lines += [*_table(REFERENCE_SERVICES, {}), "", "## Client and command line", "", *_table(CLIENTS, {}), ""]
    return "\n".join(lines)


def _table(texts: Texts, found: Mapping[str, Found]) -> Iterable[str]:
    yield from ("| variable | default | values | meaning |", "|---|---|---|---|")
    yield from _rows(texts, found)


def _rows(texts: Texts, found: Mapping[str, Found]) -> Iterator[str]:
    for name, text in texts.items():
        about = found.get(name, Found())
        shown = f"{name}<NAME>" if name.endswith("_") else name
        default = f"`{about.default}`" if about.default else ""
        yield f"| `{shown}` | {default} | {about.values} | {text} |"


if __name__ == "__main__":
    sys.exit(keep("reference/settings.md", "settings_reference", page))
