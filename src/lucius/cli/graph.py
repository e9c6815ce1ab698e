"""`lucius protocols graph`: a picture of a protocol."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import msgspec
import typer

from lucius.authoring.graph import Graph, graph_of
from lucius.authoring.mermaid import mermaid
from lucius.authoring.svg import svg
from lucius.cli.client import Client
from lucius.cli.connection import connection
from lucius.cli.errors import Misused, Unsuccessful, guarded, run
from lucius.cli.jobs import ApiKey, Url
from lucius.cli.protocol_files import read_file
from lucius.core.protocol import Protocol


class Format(StrEnum):
    MERMAID = "mermaid"
    SVG = "svg"


def graph(
    ctx: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="A YAML or JSON file")] = None,
    format_: Annotated[
        Format | None, typer.Option("--format", help="If absent, by the name of --output; else mermaid")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; stdout if absent")] = None,
    request_type: Annotated[str | None, typer.Option(help="Instead of FILE: one that the server has")] = None,
    version: Annotated[int | None, typer.Option(help="With --request-type; the newest if absent", min=1)] = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Draw a protocol: its steps, where each leads, and what happens when one fails. FILE needs no server."""
    if (file is None) == (request_type is None):
        guarded(_refuse_choice)
    if file is not None:
        protocol = guarded(lambda: read_file(file).protocol)
    else:
        protocol = run(lambda: _fetch(ctx, request_type or "", version, url, api_key))
    text = _drawn(graph_of(protocol), format_ or _by_name(output))
    if output is None:
        typer.echo(text, nl=False)
    else:
        guarded(lambda: _write(output, text))


def _refuse_choice() -> None:
    raise Misused("name either a file or, with --request-type, a protocol of the server")


async def _fetch(ctx: typer.Context, name: str, version: int | None, url: str | None, api_key: str | None) -> Protocol:
    async with Client(connection(ctx, url, api_key)) as client:
        params = {"version": str(version)} if version else None
        answer = await client.get(f"/v1/protocols/{quote(name, safe='')}", params)
        told = client.read(answer, dict)
    document = {name: value for name, value in told.items() if name in Protocol.__struct_fields__}
    try:
        return msgspec.convert(document, Protocol)
    except msgspec.ValidationError as error:
        raise Unsuccessful(f"the server's protocol {name} can't be read here: {error}") from None


def _by_name(output: Path | None) -> Format:
    return Format.SVG if output is not None and output.suffix == ".svg" else Format.MERMAID


def _drawn(drawing: Graph, format_: Format) -> str:
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
