"""Commands about protocols: list and show them, validate files, and manage versions."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from lucius.cli import render
from lucius.cli.errors import Misused, Unsuccessful, guarded
from lucius.cli.graph import graph
from lucius.cli.session import AsJson, Output, act, fetch, server_command
from lucius.contract.protocols import ProtocolDiff, ProtocolList, ProtocolVersionList, ProtocolView
from lucius.ports.errors import ProtocolError

if TYPE_CHECKING:
    from lucius.bootstrap.authoring import ProtocolFile
    from lucius.client import AsyncClient

RequestType = Annotated[str, typer.Argument(help="For example OCR_EMBEDDING_SIS, or an alias")]
Version = Annotated[int, typer.Argument(min=1)]


class VersionStatusOption(StrEnum):
    DRAFT = "draft"
    PUBLISHED = "published"
    DEPRECATED = "deprecated"
    ANY = "any"


protocols = typer.Typer(help="Manage protocols.", no_args_is_help=True)
protocols.command("graph")(graph)


@protocols.command("list")
@server_command
async def list_protocols(
    client: "AsyncClient",
    status: Annotated[
        VersionStatusOption, typer.Option(help="Only with this status", case_sensitive=False)
    ] = VersionStatusOption.PUBLISHED,
) -> Output:
    """List protocols that serve new commands, and files that were refused."""
    answer, listing = await fetch(client, "/v1/protocols", ProtocolList, {"status": status.upper()})

    def show() -> None:
        render.out().print(render.protocols_table(listing))
        for problem in listing.problems:
            where = f"{problem.file}:{problem.line}" if problem.line else problem.file
            render.err().print(f"refused: {where}: {problem.reason}", style="red", soft_wrap=True)

    return Output(answer, show)


@protocols.command("show")
@server_command
async def show_protocol(
    client: "AsyncClient",
    request_type: RequestType,
    version: Annotated[int | None, typer.Option(help="Version; by default the newest published one", min=1)] = None,
) -> Output:
    """Show one protocol: steps, payload schemas, history."""
    answer, protocol = await fetch(client, _path(request_type), ProtocolView, {"version": version})

    def show() -> None:
        from lucius.cli import protocol_render  # noqa: PLC0415

        console = render.out()
        console.print(_heading(protocol), style="bold", soft_wrap=True)
        if protocol.description:
            console.print(protocol.description)
        for line in protocol_render.life(protocol):
            console.print(line, style="dim", soft_wrap=True)
        console.print()
        console.print(render.protocol_steps(protocol))

    return Output(answer, show)


@protocols.command("versions")
@server_command
async def list_versions(client: "AsyncClient", request_type: RequestType) -> Output:
    """List all versions with their status and history."""
    answer, listing = await fetch(client, f"{_path(request_type)}/versions", ProtocolVersionList)

    def show() -> None:
        from lucius.cli import protocol_render  # noqa: PLC0415

        render.out().print(protocol_render.versions_table(listing.versions))

    return Output(answer, show)


@protocols.command("create")
@server_command
async def create_draft(
    client: "AsyncClient",
    file: Annotated[Path, typer.Argument(help="YAML or JSON file, validated as by `validate`")],
) -> Output:
    """Upload a file as a draft, or replace the draft of that version."""
    answer = await client.http.post("/v1/protocols", _read_or_report(file).document)
    protocol = client.http.read(answer, ProtocolView)

    def show() -> None:
        _show_state(protocol)
        for finding in protocol.findings:
            style = "red" if finding.fatal else "yellow"
            note = "" if finding.fatal else "note: "
            render.err().print(f"{note}{finding.pointer}: {finding.message}", style=style, soft_wrap=True)

    return Output(answer, show)


@protocols.command("publish")
@server_command
async def publish(
    client: "AsyncClient",
    request_type: RequestType,
    version: Version,
    reason: Annotated[str | None, typer.Option(help="Reason, kept in the history")] = None,
    digest: Annotated[str | None, typer.Option(help="Publish only if the draft has this digest")] = None,
) -> Output:
    """Publish a draft: it serves new commands and is immutable."""
    return await _act(client, f"{_path(request_type, version)}:publish", {"reason": reason, "digest": digest})


@protocols.command("deprecate")
@server_command
async def deprecate(
    client: "AsyncClient",
    request_type: RequestType,
    version: Version,
    reason: Annotated[str, typer.Option(help="Shown to clients whose commands are refused")],
    successor: Annotated[
        str | None, typer.Option(help="Replacement: TYPE, TYPE:VERSION or :VERSION; by default the newest version")
    ] = None,
) -> Output:
    """Deprecate a version: commands for it are refused with a reference to its successor; running jobs continue."""
    body = {"reason": reason, "successor": _successor(successor) if successor else None}
    return await _act(client, f"{_path(request_type, version)}:deprecate", body)


@protocols.command("delete")
@server_command
async def delete_draft(client: "AsyncClient", request_type: RequestType, version: Version) -> Output:
    """Delete a draft. Published versions can only be deprecated."""
    answer = await client.http.delete(_path(request_type, version))
    return Output(answer, lambda: render.print_line(f"deleted the draft of {request_type} version {version}"))


@protocols.command("diff")
@server_command
async def diff(
    client: "AsyncClient",
    request_type: RequestType,
    before: Annotated[int, typer.Argument(metavar="FROM", min=1)],
    after: Annotated[int, typer.Argument(metavar="TO", min=1)],
) -> Output:
    """Show the differences between two versions, step by step."""
    answer, found = await fetch(client, f"{_path(request_type, before)}/diff/{after}", ProtocolDiff)

    def show() -> None:
        from lucius.cli import protocol_render  # noqa: PLC0415

        for line in protocol_render.diff_lines(found):
            render.out().print(line, soft_wrap=True)

    return Output(answer, show)


async def _act(client: "AsyncClient", path: str, body: dict[str, Any]) -> Output:
    answer, protocol = await act(client, path, body, ProtocolView)
    return Output(answer, lambda: _show_state(protocol))


def _show_state(protocol: ProtocolView) -> None:
    render.out().print(_heading(protocol), soft_wrap=True)
    if protocol.status == "DEPRECATED":
        render.out().print(_serving(protocol), soft_wrap=True)


def _serving(protocol: ProtocolView) -> str:
    if protocol.serving_version is None:
        return f"no version of {protocol.request_type} now serves new commands"
    return f"{protocol.request_type} version {protocol.serving_version} now serves commands without a version"


def _heading(protocol: ProtocolView) -> str:
    title = f": {protocol.title}" if protocol.title else ""
    return f"{protocol.request_type} version {protocol.version} ({protocol.status}){title}"


def _path(request_type: str, version: int | None = None) -> str:
    path = f"/v1/protocols/{quote(request_type, safe='')}"
    return f"{path}/versions/{version}" if version else path


def _successor(text: str) -> dict[str, Any]:
    name, _, number = text.partition(":")
    if number and not number.isdecimal():
        raise Misused(f"--successor must be TYPE, TYPE:VERSION or :VERSION, not {text}")
    return {**({"request_type": name} if name else {}), **({"version": int(number)} if number else {})}


@protocols.command("validate")
def validate(
    files: Annotated[list[Path], typer.Argument(help="YAML or JSON files with one protocol version each")],
    as_json: AsJson = False,
) -> None:
    """Validate protocol files as the server does, without a server. Exit code 1 if one is invalid."""
    found = [_read(path) for path in files]
    if as_json:
        render.print_json({"files": [_as_json(path, outcome) for path, outcome in zip(files, found, strict=True)]})
    else:
        for path, outcome in zip(files, found, strict=True):
            for line in _as_lines(path, outcome):
                render.print_line(line)
    bad = sum(isinstance(outcome, ProtocolError) for outcome in found)
    if bad:
        guarded(lambda: _refuse(f"{bad} of {render.plural(len(files), 'file')} would be refused"))


def _refuse(message: str) -> None:
    raise Unsuccessful(message)


def _read(path: Path) -> "ProtocolFile | ProtocolError":
    from lucius.bootstrap.authoring import read_protocol_file  # noqa: PLC0415 - slow to load

    try:
        return read_protocol_file(path)
    except ProtocolError as error:
        return error


def _read_or_report(path: Path) -> "ProtocolFile":
    """Read a file. Raises ProtocolError for one fault, and Unsuccessful after all of several were printed."""
    outcome = _read(path)
    if not isinstance(outcome, ProtocolError):
        return outcome
    if len(outcome.everything) == 1:
        raise outcome
    for line in _as_lines(path, outcome):
        render.err().print(line, style="red", soft_wrap=True)
    raise Unsuccessful(f"{path} has {len(outcome.everything)} faults; nothing was sent")


def _as_lines(path: Path, outcome: "ProtocolFile | ProtocolError") -> Iterator[str]:
    if isinstance(outcome, ProtocolError):
        for fault in outcome.everything:
            yield str(fault) if fault.file else f"{path}: {fault.reason}"
        return
    protocol = outcome.protocol
    steps = render.plural(len(protocol.steps), "step")
    yield f"{path}: valid ({protocol.request_type} version {protocol.version}, {steps})"
    yield from (f"note: {warning}" for warning in outcome.warnings)


def _as_json(path: Path, outcome: "ProtocolFile | ProtocolError") -> dict[str, object]:
    if isinstance(outcome, ProtocolError):
        file = outcome.file or str(path)
        faults = [{"line": fault.line, "reason": fault.reason} for fault in outcome.everything]
        return {"file": file, "valid": False, "line": outcome.line, "reason": outcome.reason, "faults": faults}
    named = {"request_type": outcome.protocol.request_type, "version": outcome.protocol.version}
    warnings = [{"line": warning.line, "reason": warning.reason} for warning in outcome.warnings]
    return {"file": str(path), "valid": True, **named, "warnings": warnings}
