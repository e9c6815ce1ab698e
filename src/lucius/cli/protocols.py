"""Commands about protocols: looking at them, checking files, and what becomes of a version."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import msgspec
import typer

from lucius.cli import protocol_render, render
from lucius.cli.client import Client
from lucius.cli.connection import connection
from lucius.cli.errors import Misused, Unsuccessful, guarded, run
from lucius.cli.jobs import ApiKey, AsJson, Url
from lucius.cli.protocol_files import read_file
from lucius.contract_protocols import ProtocolDiff, ProtocolList, ProtocolVersionList, ProtocolView
from lucius.ports.errors import ProtocolError

if TYPE_CHECKING:
    from lucius.adapters.protocols_dir import ProtocolFile

RequestType = Annotated[str, typer.Argument(help="Such as OCR_EMBEDDING_SIS, or an alias")]
Version = Annotated[int, typer.Argument(min=1)]


class Status(StrEnum):
    DRAFT = "draft"
    PUBLISHED = "published"
    DEPRECATED = "deprecated"
    ANY = "any"


protocols = typer.Typer(help="Request types: which there are, and whether a file is one.", no_args_is_help=True)


@protocols.command("list")
def list_protocols(
    ctx: typer.Context,
    status: Annotated[Status, typer.Option(help="Those in this state", case_sensitive=False)] = Status.PUBLISHED,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Protocols that serve new commands, and files that were refused."""

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            answer = await client.get("/v1/protocols", {"status": status.upper()})
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
    request_type: RequestType,
    version: Annotated[int | None, typer.Option(help="The newest that serves if absent", min=1)] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """One protocol: its steps, what a client may say to each, and who did what to it."""

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            params = {"version": str(version)} if version else None
            answer = await client.get(_path(request_type), params)
            protocol = client.read(answer, ProtocolView)
        if as_json:
            render.print_json(answer)
            return
        console = render.out()
        console.print(_heading(protocol), style="bold", soft_wrap=True)
        if protocol.description:
            console.print(protocol.description)
        for line in protocol_render.life(protocol):
            console.print(line, style="dim", soft_wrap=True)
        console.print()
        console.print(render.protocol_steps(protocol))

    run(work)


@protocols.command("versions")
def list_versions(
    ctx: typer.Context, request_type: RequestType, as_json: AsJson = False, url: Url = None, api_key: ApiKey = None
) -> None:
    """Every version in every state, with who did what to it, when and why."""

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            answer = await client.get(f"{_path(request_type)}/versions")
            listing = client.read(answer, ProtocolVersionList)
        if as_json:
            render.print_json(answer)
        else:
            render.out().print(protocol_render.versions_table(listing.versions))

    run(work)


@protocols.command("create")
def create_draft(
    ctx: typer.Context,
    file: Annotated[Path, typer.Argument(help="A YAML or JSON file, checked as by `validate`")],
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Keep a file as a draft on the server, or replace the draft of that version."""
    document = guarded(lambda: msgspec.to_builtins(read_file(file).protocol))

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            answer = await client.post("/v1/protocols", document)
            protocol = client.read(answer, ProtocolView)
        _say(answer, protocol, as_json)
        for finding in protocol.findings if not as_json else ():
            style = "red" if finding.fatal else "yellow"
            render.err().print(f"{finding.pointer}: {finding.message}", style=style, soft_wrap=True)

    run(work)


@protocols.command("publish")
def publish(
    ctx: typer.Context,
    request_type: RequestType,
    version: Version,
    reason: Annotated[str | None, typer.Option(help="Kept with the version")] = None,
    digest: Annotated[str | None, typer.Option(help="Only if the draft is still this one")] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Let a draft serve new commands. It never changes again."""
    said = {"reason": reason, "digest": digest}
    _act(ctx, url, api_key, as_json, f"{_path(request_type, version)}:publish", said)


@protocols.command("deprecate")
def deprecate(
    ctx: typer.Context,
    request_type: RequestType,
    version: Version,
    reason: Annotated[str, typer.Option(help="Told to those whose commands are refused")],
    successor: Annotated[
        str | None, typer.Option(help="What to use instead: TYPE, TYPE:VERSION or :VERSION; the newest if absent")
    ] = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Take a version out of use: commands that name it are refused with its successor named, running jobs go on."""
    said = {"reason": reason, "successor": guarded(lambda: _successor(successor)) if successor else None}
    _act(ctx, url, api_key, as_json, f"{_path(request_type, version)}:deprecate", said)


@protocols.command("delete")
def delete_draft(
    ctx: typer.Context,
    request_type: RequestType,
    version: Version,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Forget a draft. What was published can only be deprecated."""

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            answer = await client.delete(_path(request_type, version))
        if as_json:
            render.print_json(answer)
        else:
            typer.echo(f"the draft of {request_type} version {version} is deleted")

    run(work)


@protocols.command("diff")
def diff(
    ctx: typer.Context,
    request_type: RequestType,
    before: Annotated[int, typer.Argument(metavar="FROM", min=1)],
    after: Annotated[int, typer.Argument(metavar="TO", min=1)],
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """What changed between two versions, step by step."""

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            answer = await client.get(f"{_path(request_type, before)}/diff/{after}")
            found = client.read(answer, ProtocolDiff)
        if as_json:
            render.print_json(answer)
            return
        for line in protocol_render.diff_lines(found):
            render.out().print(line, soft_wrap=True)

    run(work)


def _act(
    ctx: typer.Context, url: str | None, api_key: str | None, as_json: bool, path: str, said: dict[str, Any]
) -> None:
    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            answer = await client.post(path, {name: value for name, value in said.items() if value is not None})
            _say(answer, client.read(answer, ProtocolView), as_json)

    run(work)


def _say(answer: bytes, protocol: ProtocolView, as_json: bool) -> None:
    if as_json:
        render.print_json(answer)
    else:
        render.out().print(_heading(protocol), soft_wrap=True)
        if protocol.status == "DEPRECATED":
            render.out().print(_serving(protocol), soft_wrap=True)


def _serving(protocol: ProtocolView) -> str:
    if protocol.serving_version is None:
        return f"no version of {protocol.request_type} serves new commands now"
    return f"{protocol.request_type} version {protocol.serving_version} serves commands that name no version now"


def _heading(protocol: ProtocolView) -> str:
    title = f": {protocol.title}" if protocol.title else ""
    return f"{protocol.request_type} version {protocol.version} ({protocol.status}){title}"


def _path(request_type: str, version: int | None = None) -> str:
    path = f"/v1/protocols/{quote(request_type, safe='')}"
    return f"{path}/versions/{version}" if version else path


def _successor(given: str) -> dict[str, Any]:
    name, _, number = given.partition(":")
    if number and not number.isdecimal():
        raise Misused(f"--successor must be TYPE, TYPE:VERSION or :VERSION, not {given}")
    return {**({"request_type": name} if name else {}), **({"version": int(number)} if number else {})}


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
            for line in _as_lines(path, outcome):
                typer.echo(line)
    bad = sum(isinstance(outcome, ProtocolError) for outcome in found)
    if bad:
        guarded(lambda: _refuse(f"{bad} of {render.plural(len(files), 'file')} would be refused"))


def _refuse(message: str) -> None:
    raise Unsuccessful(message)


def _read(path: Path) -> "ProtocolFile | ProtocolError":
    try:
        return read_file(path)
    except ProtocolError as error:
        return error


def _as_lines(path: Path, outcome: "ProtocolFile | ProtocolError") -> Iterator[str]:
    if isinstance(outcome, ProtocolError):
        yield str(outcome) if outcome.file else f"{path}: {outcome.reason}"
        return
    protocol = outcome.protocol
    steps = render.plural(len(protocol.steps), "step")
    yield f"{path}: good ({protocol.request_type} version {protocol.version}, {steps})"
    yield from (f"note: {warning}" for warning in outcome.warnings)


def _as_json(path: Path, outcome: "ProtocolFile | ProtocolError") -> dict[str, object]:
    if isinstance(outcome, ProtocolError):
        file = outcome.file or str(path)
        return {"file": file, "valid": False, "line": outcome.line, "reason": outcome.reason}
    named = {"request_type": outcome.protocol.request_type, "version": outcome.protocol.version}
    warnings = [{"line": warning.line, "reason": warning.reason} for warning in outcome.warnings]
    return {"file": str(path), "valid": True, **named, "warnings": warnings}
