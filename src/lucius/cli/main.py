"""The `lucius` command."""

from pathlib import Path
from typing import Annotated

import typer

from lucius.cli.connection import DEFAULT_DATA_DIR, GlobalOptions
from lucius.cli.lazy import LazyCommand, LazyGroup
from lucius.version import __version__

TRY, JOBS, REVIEW, OPERATE = "Try it", "Work with jobs", "Decide and review", "Run it"

# Help of each command, as in its own module; a test compares them.
COMMANDS = (
    LazyCommand(
        "demo",
        "lucius.cli.demo:demo",
        TRY,
        "Run jobs while services and the control plane are killed and callbacks are duplicated, late or dropped.",
    ),
    LazyCommand(
        "dev",
        "lucius.cli.serve:dev",
        TRY,
        "Run the whole stack until Ctrl-C: control plane on a SQLite file, and the three reference services.",
    ),
    LazyCommand("submit", "lucius.cli.jobs:submit", JOBS, "Submit a command; it becomes a job."),
    LazyCommand(
        "jobs",
        "lucius.cli.control:jobs",
        JOBS,
        "List, show, watch, pause, resume, signal, retry and cancel jobs, and fetch their output.",
    ),
    LazyCommand(
        "explain",
        "lucius.cli.jobs:explain",
        JOBS,
        "Explain in one sentence what a job waits for, or how it ended.",
    ),
    LazyCommand(
        "services",
        "lucius.cli.service_list:services",
        JOBS,
        "List services: last pull, running steps and queued directives of each.",
    ),
    LazyCommand(
        "protocols",
        "lucius.cli.protocols:protocols",
        JOBS,
        "Manage protocols.",
    ),
    LazyCommand("webhooks", "lucius.cli.webhooks:webhooks", JOBS, "Test webhooks on this machine."),
    LazyCommand(
        "simulate",
        "lucius.cli.simulate:simulate",
        JOBS,
        "Run a protocol on a virtual clock with scripted services, calls and approvers, and print what happens.",
    ),
    LazyCommand(
        "new-service",
        "lucius.cli.new_service:new_service",
        JOBS,
        "Create a project for a platform service, with tests, protocol and Dockerfile. It passes the conformance kit.",
    ),
    LazyCommand(
        "approve",
        "lucius.cli.control:approve",
        REVIEW,
        "Approve a waiting step in your name. Needs a key with scope approve that the step permits.",
    ),
    LazyCommand(
        "reject",
        "lucius.cli.control:reject",
        REVIEW,
        "Reject a step; the job follows its failure path.",
    ),
    LazyCommand(
        "review",
        "lucius.cli.review:review",
        REVIEW,
        "Review queue: list items and act on them.",
    ),
    LazyCommand("audit", "lucius.cli.audit:audit", REVIEW, "Verify the history of jobs."),
    LazyCommand(
        "api",
        "lucius.cli.serve:api",
        OPERATE,
        "Run the control plane with settings from the environment (LUCIUS_*) and JSON logs; keys are in LUCIUS_CONFIG.",
    ),
    LazyCommand(
        "reconciler",
        "lucius.cli.serve:reconciler",
        OPERATE,
        "Run the engine without the API, in any number of processes that share a ledger.",
    ),
    LazyCommand(
        "temporal-worker",
        "lucius.cli.serve:temporal_worker",
        OPERATE,
        "Run the Temporal workflows of jobs (LUCIUS_ENGINE=temporal), in any number of processes.",
    ),
    LazyCommand(
        "service",
        "lucius.cli.serve:service",
        OPERATE,
        "Run platform services, which execute directives and send ACK, heartbeats and RESULT.",
    ),
    LazyCommand(
        "retention",
        "lucius.cli.retention:retention",
        OPERATE,
        "Archive finished jobs, delete them from the ledger, and read the archive.",
    ),
    LazyCommand(
        "conformance",
        "lucius.cli.conformance:conformance",
        OPERATE,
        "Test a service in any language against the contract; the kit acts as the orchestrator.",
    ),
)


class Commands(LazyGroup):
    table = COMMANDS


app = typer.Typer(
    name="lucius",
    cls=Commands,
    help="A durable control plane for document-AI pipelines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"lucius {__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(help="URL of the control plane; by default the `lucius dev` of this folder", envvar="LUCIUS_URL"),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="API key; by default the dev server's own key", envvar="LUCIUS_API_KEY"),
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Data folder of `lucius dev`", envvar="LUCIUS_DATA_DIR")] = Path(
        DEFAULT_DATA_DIR
    ),
    version: Annotated[
        bool, typer.Option("--version", help="Show the version", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    ctx.obj = GlobalOptions(url, api_key, data_dir)
