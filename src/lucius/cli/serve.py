"""Commands that run until stopped: `dev`, `api`, `reconciler`, `temporal-worker`, `service`."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import structlog
import typer
from msgspec.structs import replace
from rich.text import Text

from lucius.cli.children import die_with_parent, keep_running
from lucius.cli.client import Client
from lucius.cli.connection import Connection, Options, connection, dev_key, remember_dev_server
from lucius.cli.errors import CliError, Misused, guarded, run
from lucius.cli.render import out
from lucius.observability.logs import configure_logging
from lucius.settings import Settings, load_settings

if TYPE_CHECKING:
    from lucius.observability.readiness import Role

log: structlog.stdlib.BoundLogger = structlog.get_logger()

SERVICES = ("ocr", "embedding", "sis")
READY_SECONDS = 30.0
SERVICE_GRACE = 2.0

DataDir = Annotated[
    Path | None, typer.Option(help="Ledger, keys and artifacts; .lucius if absent", envvar="LUCIUS_DATA_DIR")
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
HealthHost = Annotated[str, typer.Option(help="Address for that")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one", min=0, max=65535)]


def dev(
    ctx: typer.Context,
    port: Port = 8080,
    host: Host = "127.0.0.1",
    data_dir: DataDir = None,
    services: Annotated[bool, typer.Option("--services/--no-services", help="Run ocr, embedding and sis too")] = True,
    engine: Annotated[
        str | None,
        typer.Option(
            help="What drives the jobs: embedded, or temporal, whose server is started too; embedded if absent"
        ),
    ] = None,
) -> None:
    """Run the whole stack until Ctrl-C: control plane on a SQLite file, and the three platform services."""
    die_with_parent()
    folder = (data_dir or ctx.ensure_object(Options).data_dir).resolve()
    _leave(run(lambda: _dev(host, port, folder, services, engine), fast_loop=True))


async def _dev(host: str, port: int, data_dir: Path, with_services: bool, engine: str | None) -> Settings:
    from lucius.cli.control_plane import base_url, drain_on_signals, listen, serving, until_stopped  # noqa: PLC0415

    drain = drain_on_signals()
    env = {"LUCIUS_LOG_FORMAT": "console", **os.environ, **({"LUCIUS_ENGINE": engine} if engine else {})}
    _make_folder(data_dir)
    with listen(host, port) as listener:
        url = base_url(listener)
        key = dev_key(data_dir)
        env.setdefault("LUCIUS_ORCHESTRATOR_URL", url)
        settings = load_settings(env, data_dir=data_dir, dev_api_key=key)
        configure_logging(settings.log_level, settings.log_format)
        async with _with_temporal(settings) as settings, serving(settings, listener, drain) as server:
            await _ready(Connection(url, key), server, drain.asked)
            remember_dev_server(data_dir, url)
            ours = {"LUCIUS_ORCHESTRATOR_URL": url, "LUCIUS_API_KEY": key, "LUCIUS_DATA_DIR": str(data_dir)}
            child_env = {**_without_secrets(env), **ours}
            worker = _worker_running(settings, {**env, **ours})
            async with worker, _services_running(child_env if with_services else None):
                _say_ready(url, key, settings, with_services)
                await until_stopped(server, drain)
            out().print("stopping")
    return settings


def _leave(settings: Settings) -> None:
    """Without the interpreter's own way out, during which threads of Temporal's SDK now and then abort the process."""
    if settings.engine == "temporal":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


@asynccontextmanager
async def _with_temporal(settings: Settings) -> AsyncIterator[Settings]:
    """A Temporal server of our own, if there is to be one and nobody has said where it is."""
    if settings.engine != "temporal" or os.environ.get("LUCIUS_TEMPORAL_ADDRESS"):
        yield settings
        return
    from lucius.cli.temporal_server import temporal_server  # noqa: PLC0415

    async with temporal_server(settings.data_dir, settings.temporal_namespace) as temporal:
        ui_url = settings.temporal_ui_url or temporal.ui_url
        yield replace(settings, temporal_address=temporal.address, temporal_ui_url=ui_url)


def _make_folder(data_dir: Path) -> None:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Misused(f"can't use {data_dir} as data directory: {error.strerror}") from error


async def _ready(to: Connection, server: asyncio.Task[None], stop: asyncio.Event) -> None:
    """Until /readyz answers, or there is no more reason to wait."""
    async with Client(to) as client:
        deadline = asyncio.get_running_loop().time() + READY_SECONDS
        while not (stop.is_set() or server.done() or await client.answers("/readyz")):
            if asyncio.get_running_loop().time() > deadline:
                raise CliError(f"the control plane did not become ready within {READY_SECONDS:.0f} s")
            await asyncio.sleep(0.02)


def _without_secrets(env: dict[str, str]) -> dict[str, str]:
    """What the engine alone may know stays out of the services' processes."""
    private = (
        "LUCIUS_SECRET_",
        "LUCIUS_WEBHOOK_SECRET_",
        "LUCIUS_TOKEN_SECRET",
        "LUCIUS_LEDGER_URL",
        "LUCIUS_GATE_URL",
        "LUCIUS_TEMPORAL_",
    )
    return {name: value for name, value in env.items() if not name.startswith(private)}


def _worker_running(settings: Settings, env: dict[str, str]) -> AbstractAsyncContextManager[None]:
    """One that works for Temporal, where this process does not."""
    if settings.engine != "temporal" or not settings.shares_ledger:
        return nullcontext()
    return _kept_running(
        {"temporal-worker": ["temporal-worker"]}, {**env, "LUCIUS_TEMPORAL_ADDRESS": settings.temporal_address}
    )


def _services_running(env: dict[str, str] | None) -> AbstractAsyncContextManager[None]:
    """The three services as processes of their own; none without an environment for them."""
    names = SERVICES if env is not None else ()
    child_env = {"LUCIUS_DEMO_INPUTS": "1", **(env or {})}
    return _kept_running({name: ["service", name, "--grace", str(SERVICE_GRACE)] for name in names}, child_env)


@asynccontextmanager
async def _kept_running(commands: Mapping[str, Sequence[str]], env: dict[str, str]) -> AsyncIterator[None]:
    keepers = [asyncio.create_task(keep_running(name, words, env)) for name, words in commands.items()]
    try:
        yield
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)


def _say_ready(url: str, key: str, settings: Settings, with_services: bool) -> None:
    console = out()
    console.print(Text("Lucius is ready", style="bold green"))
    rows = (
        ("API", url),
        ("docs", f"{url}/docs"),
        ("API key", key),
        ("ledger", settings.ledger_shown),
        *_temporal_rows(settings),
        ("webhooks", f"signed with {_webhook_secret(settings)}"),
        ("blobs", f"{settings.data_dir / 'blobs'} (blob://out/x is out/x in there)"),
        ("services", ", ".join(SERVICES) if with_services else "none (start them with `lucius service ocr`, …)"),
    )
    for name, value in rows:
        console.print(Text.assemble((f"  {name:<9}", "dim"), value), soft_wrap=True)
    console.print(Text("\nTry it; paste it again and you get the same job:", style="bold"))
    console.print(Text(try_it(url, key)), soft_wrap=True)
    then = "\nThen `lucius jobs list`, `lucius jobs watch JOB`, `lucius explain JOB`. Ctrl-C stops it."
    console.print(Text(then), soft_wrap=True)


def _webhook_secret(settings: Settings) -> str:
    """Where it is, for those who must give it to clients."""
    if "DEFAULT" in settings.webhook_secrets:
        return "LUCIUS_WEBHOOK_SECRET_DEFAULT"
    if settings.shares_ledger:
        return "the secret 'webhook' in the ledger's table secrets, unless LUCIUS_WEBHOOK_SECRET_DEFAULT is set"
    return str(settings.webhook_secret_file)


def _temporal_rows(settings: Settings) -> Iterator[tuple[str, str]]:
    if settings.engine == "temporal":
        yield "Temporal", f"{settings.temporal_address}, namespace {settings.temporal_namespace}"
        if settings.temporal_workflows_url:
            yield "its UI", settings.temporal_workflows_url


def try_it(url: str, key: str) -> str:
    """A curl that works when pasted."""
    command = {
        "tenant_id": "acme",
        "request_type": "OCR_EMBEDDING_SIS",
        "input_ref": "blob://in/contract.pdf",
        "output_ref": "blob://out/contract.json",
        "payload": {"sis": {"prompt_set": ["What must the supplier deliver?"]}},
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
            help="Drive the jobs too, or leave that to `lucius reconciler`; also LUCIUS_API_ENGINE=on|off",
        ),
    ] = None,
) -> None:
    """Run the control plane as the environment says (LUCIUS_*), with JSON logs. Keys come from LUCIUS_CONFIG.

    API and engine, as many of them as you like on a ledger that processes can share: LUCIUS_LEDGER_URL, and
    LUCIUS_BUS_URL if there is a bus, the same for all (docs/how-to/replicas.md). SIGTERM drains: /readyz says no at
    once, after LUCIUS_DRAIN_DELAY no request is taken any more, and what is under way has LUCIUS_DRAIN_SECONDS.
    """
    die_with_parent()
    _leave(run(lambda: _api(host, port, data_dir, engine), fast_loop=True))


async def _api(host: str, port: int, data_dir: Path | None, engine: bool | None) -> Settings:
    from lucius.cli.control_plane import base_url, drain_on_signals, listen, serving, until_stopped  # noqa: PLC0415
    from lucius.observability.readiness import Role  # noqa: PLC0415

    drain = drain_on_signals()
    with listen(host, port) as listener:
        env = {"LUCIUS_ORCHESTRATOR_URL": base_url(listener), **os.environ}
        settings = load_settings(env, data_dir=data_dir)
        configure_logging(settings.log_level, settings.log_format)
        _warn_of_own_workspace(settings)
        with_engine = settings.api_engine if engine is None else engine
        async with serving(settings, listener, drain, Role.WHOLE if with_engine else Role.API) as server:
            await until_stopped(server, drain)
    return settings


def reconciler(
    data_dir: DataDir = None,
    health_port: HealthPort = None,
    health_host: HealthHost = "0.0.0.0",
) -> None:
    """Run the engine without the API, for ledgers that several processes may share. As many of them as you like.

    It needs LUCIUS_LEDGER_URL, and LUCIUS_BUS_URL if there is a bus, as they are set for the API
    (docs/how-to/replicas.md). SIGTERM drains: what is being handed over or called has LUCIUS_DRAIN_SECONDS, the rest
    goes to the others.
    """
    from lucius.observability.readiness import Role  # noqa: PLC0415

    die_with_parent()
    settings = guarded(lambda: load_settings(data_dir=data_dir))
    run(lambda: _without_api(settings, Role.ENGINE, health_host, health_port), fast_loop=True)
    _leave(settings)


def temporal_worker(
    data_dir: DataDir = None,
    health_port: HealthPort = None,
    health_host: HealthHost = "0.0.0.0",
) -> None:
    """Run the jobs' workflows for Temporal (LUCIUS_ENGINE=temporal). As many of them as you like.

    For ledgers that several processes may share; with SQLite the API's process does this too. SIGTERM drains: what is
    under way has LUCIUS_DRAIN_SECONDS, the rest goes to the others.
    """
    from lucius.observability.readiness import Role  # noqa: PLC0415

    die_with_parent()
    settings = guarded(lambda: _for_temporal(load_settings(data_dir=data_dir)))
    run(lambda: _without_api(settings, Role.WORKER, health_host, health_port), fast_loop=True)
    _leave(settings)


def _for_temporal(settings: Settings) -> Settings:
    """Raises Misused if a worker would have nothing to do, or nothing to do it with."""
    if settings.engine != "temporal":
        raise Misused(f"LUCIUS_ENGINE is {settings.engine}: set LUCIUS_ENGINE=temporal, here and for the API")
    if not settings.shares_ledger:
        raise Misused(
            f"a {settings.ledger_scheme} ledger belongs to one process: the one that hosts the API works for Temporal, "
            "too. A worker of its own needs a ledger that processes can share (LUCIUS_LEDGER_URL=postgresql://…)"
        )
    return settings


def _warn_of_own_workspace(settings: Settings) -> None:
    """Jobs tell services where artifacts are, and those on other hosts would look for them in a folder of their own."""
    if settings.shares_ledger and not settings.workspace_given:
        log.warning(
            "the workspace is a folder of this host: services on others can't read what is written there; "
            "set LUCIUS_WORKSPACE_ROOT to one that all of them share",
            workspace=settings.workspace_root,
        )


async def _without_api(settings: Settings, role: "Role", health_host: str, health_port: int | None) -> None:
    from lucius.cli.control_plane import drain_on_signals, driving, listen, serving, until_stopped  # noqa: PLC0415
    from lucius.observability.readiness import Role  # noqa: PLC0415

    drain = drain_on_signals()
    configure_logging(settings.log_level, settings.log_format)
    if role is Role.ENGINE:
        _warn_of_own_workspace(settings)
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
        typer.Argument(help="ocr, embedding, sis, or module:attribute of your own; several share one process"),
    ],
    url: Annotated[str | None, typer.Option(help="The control plane", envvar="LUCIUS_ORCHESTRATOR_URL")] = None,
    api_key: Annotated[str | None, typer.Option(help="A key of scope serve; also LUCIUS_API_KEY")] = None,
    concurrency: Annotated[int, typer.Option(help="Steps at work at once", min=1, envvar="LUCIUS_CONCURRENCY")] = 16,
    data_dir: Annotated[
        Path | None, typer.Option(help="Remembers finished steps; holds blob:// refs", envvar="LUCIUS_DATA_DIR")
    ] = None,
    health_port: HealthPort = None,
    grace: Annotated[
        float, typer.Option(help="Seconds for steps at work when asked to stop", min=0, envvar="LUCIUS_GRACE")
    ] = 20.0,
    delay: Annotated[
        float, typer.Option(help="Make every step take this much longer, in seconds", envvar="LUCIUS_SERVICE_DELAY")
    ] = 0.0,
) -> None:
    """Run platform services: they take directives, do the work, and answer with ACK and RESULT.

    They need LUCIUS_API_KEY, a key of scope serve, and LUCIUS_BUS_URL as it is set for the API; without that they
    pull directives from LUCIUS_ORCHESTRATOR_URL.
    """
    from lucius.cli.services import run_named  # noqa: PLC0415

    die_with_parent()
    to = guarded(lambda: connection(ctx, url, api_key))
    settings = guarded(load_settings)
    configure_logging(settings.log_level, settings.log_format)
    guarded(
        lambda: run_named(
            names,
            orchestrator_url=to.url,
            api_key=to.api_key,
            concurrency=concurrency,
            data_dir=data_dir,
            health_port=health_port,
            grace_seconds=grace,
            delay_seconds=delay,
        )
    )
