"""The `lucius` command."""

from pathlib import Path
from typing import Annotated

import typer

from lucius import __version__
from lucius.cli import control, graph, jobs, serve, simulate
from lucius.cli.audit import audit
from lucius.cli.conformance import conformance
from lucius.cli.connection import DEFAULT_DATA_DIR, Options
from lucius.cli.demo import demo
from lucius.cli.new_service import new_service
from lucius.cli.protocols import protocols
from lucius.cli.retention import retention
from lucius.cli.review import review

app = typer.Typer(
    name="lucius",
    help="A durable control plane for document-AI pipelines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lucius {__version__}")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    url: Annotated[
        str | None,
        typer.Option(help="The control plane; if absent, the `lucius dev` of this folder", envvar="LUCIUS_URL"),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(help="Who you are; the dev server's own key if absent", envvar="LUCIUS_API_KEY"),
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="The folder of `lucius dev`", envvar="LUCIUS_DATA_DIR")] = Path(
        DEFAULT_DATA_DIR
    ),
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    ctx.obj = Options(url, api_key, data_dir)


TRY, WORK, PEOPLE, RUN = "Try it", "Work with jobs", "Decide and review", "Run it"

app.command(rich_help_panel=TRY)(demo)
app.command(rich_help_panel=TRY)(serve.dev)
app.command(rich_help_panel=WORK)(jobs.submit)
app.add_typer(jobs.jobs, name="jobs", rich_help_panel=WORK)
app.command(rich_help_panel=WORK)(jobs.explain)
app.command(rich_help_panel=PEOPLE)(control.approve)
app.command(rich_help_panel=PEOPLE)(control.reject)
app.add_typer(review, name="review", rich_help_panel=PEOPLE)
app.add_typer(audit, name="audit", rich_help_panel=PEOPLE)
protocols.command("graph")(graph.graph)
app.add_typer(protocols, name="protocols", rich_help_panel=WORK)
app.command(rich_help_panel=WORK)(simulate.simulate)
app.command(rich_help_panel=WORK)(new_service)
app.command(rich_help_panel=RUN)(serve.api)
app.command(rich_help_panel=RUN)(serve.reconciler)
app.command("temporal-worker", rich_help_panel=RUN)(serve.temporal_worker)
app.command(rich_help_panel=RUN)(serve.service)
app.add_typer(retention, name="retention", rich_help_panel=RUN)
app.command(rich_help_panel=RUN)(conformance)
