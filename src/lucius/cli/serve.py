"""Commands that run until stopped: `dev`, `api`, `reconciler`, `temporal-worker`, `service`."""

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lucius.cli.children import die_with_parent, keep_running
from lucius.cli.connection import (
    DEFAULT_DATA_DIR,
    Connection,
    GlobalOptions,
    connection,
    dev_key,
    places_beside_dev,
    remember_dev_server,
)
from lucius.cli.errors import CliError, Misused, guarded, run
from lucius.cli.render import out
from lucius.cli.session import is_answered, session

if TYPE_CHECKING:
    from lucius.bootstrap.settings import Settings
    from lucius.observability.readiness import Role

SERVICES = ("ocr", "embedding", "sis")
READY_SECONDS = 30.0
SERVICE_GRACE_SECONDS = 2.0
SAMPLE_REF = "blob://in/contract.pdf"

DataDir = Annotated[
    Path | None, typer.Option(help="Folder of ledger, keys and artifacts; .lucius by default", envvar="LUCIUS_DATA_DIR")
]
Host = Annotated[str, typer.Option(help="Address to listen on")]
HealthPort = Annotated[
    int | None,
    typer.Option(
        "--health-port",
        "--port",
        help="Serve /healthz, /readyz and /metrics here",
        min=0,
        max=65535,
        envvar="LUCIUS_HEALTH_PORT",
    ),
]
HealthHost = Annotated[
    str,
    typer.Option(help="Address of --health-port; 0.0.0.0 permits other hosts", envvar="LUCIUS_HEALTH_HOST"),
]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one", min=0, max=65535)]


def dev(
    ctx: typer.Context,
    port: Port = 8080,
    host: Host = "127.0.0.1",
    data_dir: DataDir = None,
    services: Annotated[
        bool, typer.Option("--services/--no-services", help="Also run the services ocr, embedding and sis")
    ] = True,
    engine: Annotated[
        str | None,
        typer.Option(help="Engine that drives the jobs: embedded (default), or temporal, whose server is started too"),
    ] = None,
) -> None:
    """Run the whole stack until Ctrl-C: control plane on a SQLite file, and the three reference services."""
    die_with_parent()
    folder = (data_dir or ctx.ensure_object(GlobalOptions).data_dir).resolve()
    _leave(run(lambda: _dev(host, port, folder, services, engine), fast_loop=True))


async def _dev(host: str, port: int, data_dir: Path, with_services: bool, engine: str | None) -> "Settings":
    from lucius.bootstrap.settings import load_settings  # noqa: PLC0415
    from lucius.cli.control_plane import base_url, drain_on_signals, listen, serving, until_stopped  # noqa: PLC0415
    from lucius.observability.logs import configure_logging  # noqa: PLC0415

    os.umask(0o077)  # inherited by the services: files in the data directory are private to this user
    drain = drain_on_signals()
    env = {"LUCIUS_LOG_FORMAT": "console", **os.environ, **({"LUCIUS_ENGINE": engine} if engine else {})}
    _make_folder(data_dir)
    put_sample(_blob_root(env, data_dir))
    with listen(host, port) as listener:
        url = base_url(listener)
        key = dev_key(data_dir)
        env.setdefault("LUCIUS_ORCHESTRATOR_URL", url)
        env |= file_roots(env)
        settings = load_settings(env, data_dir=data_dir, dev_api_key=key, dev=True)
        configure_logging(settings.log_level, settings.log_format)
        async with _with_temporal(settings) as settings, serving(settings, listener, drain) as server:
            await _ready(Connection(url, key), server, drain.asked)
            remember_dev_server(data_dir, url, _blob_root(env, data_dir), env["LUCIUS_FILE_ROOTS"])
            ours = {"LUCIUS_ORCHESTRATOR_URL": url, "LUCIUS_API_KEY": key, "LUCIUS_DATA_DIR": str(data_dir)}
            child_env = {**without_secrets(env), **ours}
            worker = _worker_running(settings, {**env, **ours})
            async with worker, _services_running(child_env if with_services else None):
                print_ready(url, key, settings, with_services)
                await until_stopped(server, drain)
            out().print("stopping")
    return settings


def file_roots(env: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that permit `file:` refs below LUCIUS_FILE_ROOTS, else the folder `dev` was started in."""
    from lucius.bootstrap.settings import DEV_FILE_ROOTS  # noqa: PLC0415

    roots = env.get("LUCIUS_FILE_ROOTS") or str(Path.cwd())
    logical = env.get("PWD", "")  # the same folder, as a shell that followed a link to it names it
    names = [roots]
    if os.path.isabs(logical) and logical != roots and os.path.realpath(logical) == roots:
        names.append(logical)
    return {"LUCIUS_FILE_ROOTS": roots, DEV_FILE_ROOTS: os.pathsep.join(names)}


def _leave(settings: "Settings") -> None:
    """Exit at once with Temporal: its SDK's threads sometimes abort the process during the interpreter's shutdown."""
    if settings.engine == "temporal":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


@asynccontextmanager
async def _with_temporal(settings: "Settings") -> "AsyncIterator[Settings]":
    """Start a Temporal server if the engine needs one and no address is given; yield the settings for it."""
    if settings.engine != "temporal" or os.environ.get("LUCIUS_TEMPORAL_ADDRESS"):
        yield settings
        return
    from msgspec.structs import replace  # noqa: PLC0415

    from lucius.cli.temporal_server import temporal_server  # noqa: PLC0415

    async with temporal_server(settings.data_dir, settings.temporal_namespace) as temporal:
        ui_url = settings.temporal_ui_url or temporal.ui_url
        yield replace(settings, temporal_address=temporal.address, temporal_ui_url=ui_url)


def _make_folder(data_dir: Path) -> None:
    from lucius.private_files import make_data_folder  # noqa: PLC0415

    try:
        make_data_folder(data_dir)
    except OSError as error:
        raise Misused(f"can't use {data_dir} as data directory: {error.strerror}") from error


def _blob_root(env: Mapping[str, str], data_dir: Path) -> Path:
    """Return the folder that the services take `blob://` refs from."""
    return Path(env["LUCIUS_BLOB_ROOT"]) if env.get("LUCIUS_BLOB_ROOT") else data_dir / "blobs"


def put_sample(blob_root: Path) -> None:
    """Put the sample contract where SAMPLE_REF finds it. A file that is there already is kept. Raises Misused."""
    path = blob_root / SAMPLE_REF.removeprefix("blob://")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes((files("lucius.reference_services") / "sample" / "contract.pdf").read_bytes())
    except OSError as error:
        raise Misused(f"can't write the sample document {path}: {error.strerror}") from error


async def _ready(to: Connection, server: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Wait until /readyz answers, or a stop is asked for, or the server ends. Raises CliError."""
    async with session(to) as client:
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while not (stop.is_set() or server.done() or await is_answered(client, "/readyz")):
            if asyncio.get_running_loop().time() > deadline:
                raise CliError(f"the control plane did not become ready within {READY_SECONDS:.0f} s")
            await asyncio.sleep(0.02)


def without_secrets(env: dict[str, str]) -> dict[str, str]:
    """Return the environment for services, without secrets that only the engine may know."""
    private = (
        "LUCIUS_SECRET_",
        "LUCIUS_WEBHOOK_SECRET_",
        "LUCIUS_WEBHOOK_MASTER_SECRET",
        "LUCIUS_TOKEN_SECRET",
        "LUCIUS_LEDGER_URL",
        "LUCIUS_GATE_URL",
        "LUCIUS_TEMPORAL_",
    )
    return {name: value for name, value in env.items() if not name.startswith(private)}


def _worker_running(settings: "Settings", env: dict[str, str]) -> AbstractAsyncContextManager[None]:
    """Run a Temporal worker as a separate process, unless this process is the worker."""
    if settings.engine != "temporal" or not settings.shares_ledger:
        return nullcontext()
    return _kept_running(
        {"temporal-worker": ["temporal-worker"]}, {**env, "LUCIUS_TEMPORAL_ADDRESS": settings.temporal_address}
    )


def _services_running(env: dict[str, str] | None) -> AbstractAsyncContextManager[None]:
    """Run the three services as separate processes; none without an environment for them."""
    names = SERVICES if env is not None else ()
    return _kept_running({name: ["service", name, "--grace", str(SERVICE_GRACE_SECONDS)] for name in names}, env or {})


@asynccontextmanager
async def _kept_running(commands: Mapping[str, Sequence[str]], env: dict[str, str]) -> AsyncIterator[None]:
    keepers = [asyncio.create_task(keep_running(name, words, env)) for name, words in commands.items()]
    try:
        yield
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)


def print_ready(url: str, key: str, settings: "Settings", with_services: bool) -> None:
    from rich.text import Text  # noqa: PLC0415

    console, lucius = out(), _name_command(settings.data_dir)
    console.print(Text("Lucius is ready", style="bold green"))
    rows = (
        ("API", url),
        ("docs", f"{url}/docs"),
        ("API key", key),
        ("ledger", settings.ledger_shown),
        *_temporal_rows(settings),
        ("webhooks", f"signed with each tenant's own secret: GET {url}/v1/tenants/acme/webhook-secrets"),
        ("blobs", f"{_blob_root(os.environ, settings.data_dir)} (blob://out/x is out/x in there)"),
        ("services", ", ".join(SERVICES) if with_services else f"none (start them with `{lucius} service ocr`, …)"),
    )
    for name, value in rows:
        console.print(Text.assemble((f"  {name:<9}", "dim"), value), soft_wrap=True)
    head = "Try it; paste it again and you get the same job:"
    if not with_services:
        head = f"Submit a command; it waits until services {', '.join(SERVICES[:-1])} and {SERVICES[-1]} pull:"
    console.print(Text(f"\n{head}", style="bold"))
    console.print(Text(try_it(url, key)), soft_wrap=True)
    then = f"\nThen `{lucius} jobs list`, `{lucius} jobs watch JOB`, `{lucius} explain JOB`. Ctrl-C stops it."
    console.print(Text(then), soft_wrap=True)


def _name_command(data_dir: Path) -> str:
    """Return how to call the CLI so that it finds the `lucius dev` of this data directory."""
    if data_dir.resolve() == Path(DEFAULT_DATA_DIR).resolve():
        return _name_program()
    return f"{_name_program()} --data-dir {shlex.quote(str(data_dir))}"


def _name_program() -> str:
    """Return `lucius`, or the path that it was called by if a shell would not find it by that name."""
    called, found = sys.argv[0], shutil.which("lucius")
    if Path(called).name != "lucius" or (found and os.path.abspath(found) == os.path.abspath(called)):
        return "lucius"
    return shlex.quote(called)


def _temporal_rows(settings: "Settings") -> Iterator[tuple[str, str]]:
    if settings.engine == "temporal":
        yield "Temporal", f"{settings.temporal_address}, namespace {settings.temporal_namespace}"
        if settings.temporal_workflows_url:
            yield "its UI", settings.temporal_workflows_url


def try_it(url: str, key: str) -> str:
    """Return a curl command that works when pasted."""
    command = {
        "tenant_id": "acme",
        "request_type": "OCR_EMBEDDING_SIS",
        "input_ref": SAMPLE_REF,
        "output_ref": "blob://out/contract.json",
        "payload": {"sis": {"prompt_set": ["What does one pump cost?"]}},
        "schema_version": "v1",
    }
    return (
        f"curl -sS {url}/v1/commands \\\n"
        f"  -H 'Authorization: Bearer {key}' \\\n"
        f"  -H 'Content-Type: application/json' \\\n"
        f"  -d '{json.dumps(command)}'"
    )


def api(
    host: Host = "127.0.0.1",
    port: Port = 8080,
    data_dir: DataDir = None,
    engine: Annotated[
        bool | None,
        typer.Option(
            "--engine/--no-engine",
            help="Also run the engine, or leave that to `lucius reconciler`; also LUCIUS_API_ENGINE=on|off",
        ),
    ] = None,
) -> None:
    """Run the control plane with settings from the environment (LUCIUS_*) and JSON logs; keys are in LUCIUS_CONFIG.

    Runs API and engine; docs/how-to/replicas.md describes several processes. They can share a ledger if they have the
    same LUCIUS_LEDGER_URL and, with a push bus, the same LUCIUS_BUS_URL. SIGTERM drains: /readyz fails at once, new
    requests are refused after LUCIUS_DRAIN_DELAY, and running ones have LUCIUS_DRAIN_SECONDS to finish.
    """
    die_with_parent()
    _leave(run(lambda: _api(host, port, data_dir, engine), fast_loop=True))


async def _api(host: str, port: int, data_dir: Path | None, engine: bool | None) -> "Settings":
    from lucius.bootstrap.settings import load_settings  # noqa: PLC0415
    from lucius.cli.control_plane import base_url, drain_on_signals, listen, serving, until_stopped  # noqa: PLC0415
    from lucius.observability.logs import configure_logging  # noqa: PLC0415
    from lucius.observability.readiness import Role  # noqa: PLC0415

    drain = drain_on_signals()
    with listen(host, port) as listener:
        env = {"LUCIUS_ORCHESTRATOR_URL": base_url(listener), **os.environ}
        settings = load_settings(env, data_dir=data_dir)
        configure_logging(settings.log_level, settings.log_format)
        _warn_about_local_workspace(settings)
        with_engine = settings.api_engine if engine is None else engine
        role = Role.WHOLE if with_engine else Role.API
        async with serving(settings, listener, drain, role, announce=True) as server:
            await until_stopped(server, drain)
    return settings


def reconciler(
    data_dir: DataDir = None,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
) -> None:
    """Run the engine without the API, in any number of processes that share a ledger.

    Needs the LUCIUS_LEDGER_URL of the API and, with a push bus, its LUCIUS_BUS_URL (docs/how-to/replicas.md).
    SIGTERM drains: hand-overs and calls in progress have LUCIUS_DRAIN_SECONDS to finish; other processes take the rest.
    """
    from lucius.bootstrap.settings import load_settings  # noqa: PLC0415
    from lucius.observability.readiness import Role  # noqa: PLC0415

    die_with_parent()
    settings = guarded(lambda: load_settings(data_dir=data_dir))
    run(lambda: _without_api(settings, Role.ENGINE, health_host, health_port), fast_loop=True)
    _leave(settings)


def temporal_worker(
    data_dir: DataDir = None,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
) -> None:
    """Run the Temporal workflows of jobs (LUCIUS_ENGINE=temporal), in any number of processes.

    For ledgers that processes can share; with SQLite the API's process is the worker. SIGTERM drains: tasks in progress
    have LUCIUS_DRAIN_SECONDS to finish; other workers take the rest.
    """
    from lucius.bootstrap.settings import load_settings  # noqa: PLC0415
    from lucius.observability.readiness import Role  # noqa: PLC0415

    die_with_parent()
    settings = guarded(lambda: _for_temporal(load_settings(data_dir=data_dir)))
    run(lambda: _without_api(settings, Role.WORKER, health_host, health_port), fast_loop=True)
    _leave(settings)


def _for_temporal(settings: "Settings") -> "Settings":
    """Return the settings. Raises Misused if a worker would have no work, or can't share the ledger."""
    if settings.engine != "temporal":
        raise Misused(f"LUCIUS_ENGINE is {settings.engine}: set LUCIUS_ENGINE=temporal, here and for the API")
    if not settings.shares_ledger:
        raise Misused(
            f"a {settings.ledger_scheme} ledger belongs to one process: the one that hosts the API works for Temporal, "
            "too. A separate worker needs a ledger that processes can share (LUCIUS_LEDGER_URL=postgresql://…)"
        )
    return settings


def _warn_about_local_workspace(settings: "Settings") -> None:
    """Warn of a local workspace, which services on other hosts can't read."""
    if settings.shares_ledger and not settings.workspace_given:
        import structlog  # noqa: PLC0415

        structlog.get_logger().warning(
            "the workspace is a local folder, which services on other hosts can't read; "
            "set LUCIUS_WORKSPACE_ROOT to a shared one",
            workspace=settings.workspace_root,
        )


async def _without_api(settings: "Settings", role: "Role", health_host: str, health_port: int | None) -> None:
    from lucius.cli.control_plane import drain_on_signals, driving, listen, serving, until_stopped  # noqa: PLC0415
    from lucius.observability.logs import configure_logging  # noqa: PLC0415
    from lucius.observability.readiness import Role  # noqa: PLC0415

    drain = drain_on_signals()
    configure_logging(settings.log_level, settings.log_format)
    if role is Role.ENGINE:
        _warn_about_local_workspace(settings)
    if health_port is None:
        async with driving(settings, drain, role):
            await drain.asked.wait()
        return
    with listen(health_host, health_port) as listener:
        async with serving(settings, listener, drain, role) as server:
            await until_stopped(server, drain)


def service(
    ctx: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(help="ocr, embedding, sis, or module:attribute of your own service; several share one process"),
    ],
    url: Annotated[str | None, typer.Option(help="URL of the control plane", envvar="LUCIUS_ORCHESTRATOR_URL")] = None,
    api_key: Annotated[str | None, typer.Option(help="API key with scope serve; also LUCIUS_API_KEY")] = None,
    concurrency: Annotated[
        int, typer.Option(help="Maximum number of concurrent steps", min=1, envvar="LUCIUS_CONCURRENCY")
    ] = 16,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of finished RESULTs and blob:// refs", envvar="LUCIUS_DATA_DIR")
    ] = None,
    health_port: HealthPort = None,
    health_host: HealthHost = "127.0.0.1",
    grace: Annotated[
        float, typer.Option(help="Seconds for running steps to finish on stop", min=0, envvar="LUCIUS_GRACE")
    ] = 20.0,
    delay: Annotated[
        float, typer.Option(help="Extra seconds that every step takes, for tests", envvar="LUCIUS_SERVICE_DELAY")
    ] = 0.0,
) -> None:
    """Run platform services, which execute directives and send ACK, heartbeats and RESULT.

    Needs LUCIUS_API_KEY, a key with scope serve, and the LUCIUS_BUS_URL of the API; on the default bus `local:`,
    services pull directives from --url or LUCIUS_ORCHESTRATOR_URL. Next to the `lucius dev` of this folder no settings
    are needed: services use its key, data directory, blob folder and permitted file roots.
    """
    from lucius.bootstrap.settings import load_settings  # noqa: PLC0415
    from lucius.cli.services import run_named  # noqa: PLC0415
    from lucius.observability.logs import configure_logging  # noqa: PLC0415

    die_with_parent()
    to = guarded(lambda: connection(ctx, url, api_key))
    settings = guarded(load_settings)
    configure_logging(settings.log_level, settings.log_format)
    places = {"data_dir": data_dir} if data_dir else places_beside_dev(ctx.ensure_object(GlobalOptions).data_dir, to)
    guarded(
        lambda: run_named(
            names,
            **places,
            orchestrator_url=to.url,
            api_key=to.api_key,
            concurrency=concurrency,
            health_port=health_port,
            health_host=health_host,
            grace_seconds=grace,
            delay_seconds=delay,
        )
    )
