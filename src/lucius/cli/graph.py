"""`lucius protocols graph`: draws a protocol."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import msgspec
import typer

from lucius.cli.connection import connection
from lucius.cli.errors import Misused, Unsuccessful, guarded, run
from lucius.cli.session import ApiKey, Url, fetch, session
from lucius.terminal import strip_controls

if TYPE_CHECKING:
    from lucius.core.protocol.definition import ProtocolDefinition


class Format(StrEnum):
    MERMAID = "mermaid"
    SVG = "svg"


def graph(
    ctx: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="YAML or JSON file")] = None,
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="Output format; by default by the suffix of --output, else mermaid"),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File to write; stdout by default")] = None,
    request_type: Annotated[str | None, typer.Option(help="Protocol on the server, instead of FILE")] = None,
    version: Annotated[
        int | None, typer.Option(help="Version for --request-type; by default the newest", min=1)
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Draw a protocol: steps, transitions and failure paths. FILE needs no server."""
    if (file is None) == (request_type is None):
        guarded(_refuse_choice)
    if file is not None:
        from lucius.bootstrap.authoring import read_protocol_file  # noqa: PLC0415 - slow to load

        protocol = guarded(lambda: read_protocol_file(file).protocol)
    else:
        protocol = run(lambda: _fetch(ctx, request_type or "", version, url, api_key))
    text = _draw(protocol, format_ or _format_by_suffix(output))
    if output is None:
        typer.echo(strip_controls(text), nl=False)
    else:
        guarded(lambda: _write(output, text))


def _refuse_choice() -> None:
    raise Misused("give either a file or --request-type")


async def _fetch(
    ctx: typer.Context, name: str, version: int | None, url: str | None, api_key: str | None
) -> "ProtocolDefinition":
    from lucius.core.protocol.definition import ProtocolDefinition  # noqa: PLC0415

    async with session(connection(ctx, url, api_key)) as client:
        _, members = await fetch(client, f"/v1/protocols/{quote(name, safe='')}", dict, {"version": version})
    document = {name: value for name, value in members.items() if name in ProtocolDefinition.__struct_fields__}
    try:
        return msgspec.convert(document, ProtocolDefinition)
    except msgspec.ValidationError as error:
        raise Unsuccessful(f"the server's protocol {name} can't be read here: {error}") from None


def _format_by_suffix(output: Path | None) -> Format:
    return Format.SVG if output is not None and output.suffix == ".svg" else Format.MERMAID


def _draw(protocol: "ProtocolDefinition", format_: Format) -> str:
    from lucius.authoring.graph import graph_of  # noqa: PLC0415 - not needed for help
    from lucius.authoring.mermaid import mermaid  # noqa: PLC0415
    from lucius.authoring.svg import svg  # noqa: PLC0415

    drawing = graph_of(protocol)
    match format_:
        case Format.MERMAID:
            return mermaid(drawing)
        case Format.SVG:
            return svg(drawing)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise Misused(f"can't write {path}: {error.strerror}") from None
