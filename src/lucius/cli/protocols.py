"""Commands about protocols: `protocols list|show|validate`."""

from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from lucius.cli import render
from lucius.cli.client import Client
from lucius.cli.connection import connection
from lucius.cli.errors import Unsuccessful, guarded, run
from lucius.cli.jobs import ApiKey, AsJson, Url
from lucius.contract_protocols import ProtocolList, ProtocolView
from lucius.core.protocol import Protocol
from lucius.ports.errors import ProtocolError

protocols = typer.Typer(help="Request types: which there are, and whether a file is one.", no_args_is_help=True)


@protocols.command("list")
def list_protocols(ctx: typer.Context, as_json: AsJson = False, url: Url = None, api_key: ApiKey = None) -> None:
    """Protocols in force, and files that were refused."""

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            answer = await client.get("/v1/protocols")
            listing = client.read(answer, ProtocolList)
        if as_json:
            render.print_json(answer)
            return
        render.out().print(render.protocols_table(listing))
        for problem in listing.problems:
            where = f"{problem.file}:{problem.line}" if problem.line else problem.file
            render.err().print(f"refused: {where}: {problem.reason}", style="red", soft_wrap=True)

    run(work)


@protocols.command("show")
def show_protocol(
    ctx: typer.Context,
    request_type: Annotated[str, typer.Argument(help="Such as OCR_EMBEDDING_SIS, or an alias")],
    version: Annotated[int | None, typer.Option(help="The newest if absent", min=1)] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """One protocol: its steps, and what a client may say to each."""

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            params = {"version": str(version)} if version else None
            answer = await client.get(f"/v1/protocols/{quote(request_type, safe='')}", params)
            protocol = client.read(answer, ProtocolView)
        if as_json:
            render.print_json(answer)
            return
        console = render.out()
        console.print(f"{protocol.request_type} version {protocol.version}: {protocol.title}", style="bold")
        if protocol.description:
            console.print(protocol.description)
        console.print()
        console.print(render.protocol_steps(protocol))

    run(work)


@protocols.command("validate")
def validate(
    files: Annotated[list[Path], typer.Argument(help="YAML or JSON files, one protocol version in each")],
    as_json: AsJson = False,
) -> None:
    """Check protocol files as the server would. Needs no server; exit code 1 if one is wrong."""
    found = [_read(path) for path in files]
    if as_json:
        render.print_json({"files": [_as_json(path, outcome) for path, outcome in zip(files, found, strict=True)]})
    else:
        for path, outcome in zip(files, found, strict=True):
            typer.echo(_as_line(path, outcome))
    bad = sum(isinstance(outcome, ProtocolError) for outcome in found)
    if bad:
        guarded(lambda: _refuse(f"{bad} of {render.plural(len(files), 'file')} would be refused"))


def _refuse(message: str) -> None:
    raise Unsuccessful(message)


def _read(path: Path) -> Protocol | ProtocolError:
    from lucius.adapters.protocols_dir import read_protocol  # noqa: PLC0415 - compiles schemas, which others need not

    try:
        return read_protocol(path)
    except ProtocolError as error:
        return error


def _as_line(path: Path, outcome: Protocol | ProtocolError) -> str:
    match outcome:
        case ProtocolError():
            return str(outcome) if outcome.file else f"{path}: {outcome.reason}"
        case Protocol():
            steps = render.plural(len(outcome.steps), "step")
            return f"{path}: good ({outcome.request_type} version {outcome.version}, {steps})"


def _as_json(path: Path, outcome: Protocol | ProtocolError) -> dict[str, object]:
    match outcome:
        case ProtocolError():
            file = outcome.file or str(path)
            return {"file": file, "valid": False, "line": outcome.line, "reason": outcome.reason}
        case Protocol():
            named = {"request_type": outcome.request_type, "version": outcome.version}
            return {"file": str(path), "valid": True, **named}
