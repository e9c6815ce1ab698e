"""Shared parts of commands that call a control plane: options, the session, and output as text or JSON.

The Python client, and with it aiohttp, is imported only when a command runs.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from msgspec import Struct

from lucius.cli import render
from lucius.cli.connection import Connection, connection
from lucius.cli.errors import CliError, Misused, ServerRefused, ServerUnreachable, run
from lucius.contract import JobView

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lucius.client import AsyncClient, LuciusError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Url = Annotated[str | None, typer.Option("--url", help="URL of the control plane; also LUCIUS_URL")]
ApiKey = Annotated[str | None, typer.Option("--api-key", help="API key; also LUCIUS_API_KEY")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout")]
AtMost = Annotated[int, typer.Option(help="At most this many", min=1)]
Everything = Annotated[bool, typer.Option("--all", help="No limit")]

ANSWER_SECONDS = 30.0
PROBE_SECONDS = 2.0
RETRY_SECONDS = 0.0  # the user sees the failure and can try again
OUTAGE_SECONDS = 60.0  # of commands that wait for a job


class Output(Struct, frozen=True):
    """Output of a command: `value` for --json, as bytes if it is an answer, and `show`, which prints text."""

    value: Any
    show: Callable[[], None]


def server_command(work: Callable[..., Coroutine[Any, Any, Output | None]]) -> Callable[..., None]:
    """Return a command that opens a session, calls `work` with the client, and prints the Output that it returns.

    The command has the parameters of `work`, then --json if `work` returns an Output, --url and --api-key.
    """
    own = signature(work)
    has_output = own.return_annotation is Output

    def command(ctx: typer.Context, url: str | None, api_key: str | None, **arguments: Any) -> None:
        as_json = arguments.pop("as_json") if has_output else False
        if "ctx" in own.parameters:
            arguments["ctx"] = ctx

        async def in_session() -> None:
            async with session(connection(ctx, url, api_key)) as client:
                output = await work(client, **arguments)
            if output is not None and as_json:
                render.print_json(output.value)
            elif output is not None:
                output.show()

        run(in_session)

    parameters = [parameter for name, parameter in own.parameters.items() if name not in ("client", "ctx")]
    json = [_option("as_json", AsJson, False)] if has_output else []
    server = [_option("url", Url, None), _option("api_key", ApiKey, None)]
    context = Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    return set_parameters(command, work, [context, *parameters, *json, *server])


def set_parameters(function: F, like: Callable[..., Any], parameters: Iterable[Parameter]) -> F:
    """Give a function the name and help of another one and, as typer reads them, these parameters."""
    named = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in parameters]
    function.__name__, function.__doc__ = like.__name__, like.__doc__
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in named}
    function.__signature__ = Signature(named)  # type: ignore[attr-defined]
    return function


def _option(name: str, kind: Any, default: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


@asynccontextmanager
async def session(to: Connection) -> "AsyncIterator[AsyncClient]":
    """Yield a client of a control plane, whose errors become CliError when they leave the block. Raises Misused."""
    from lucius.client import AsyncClient, LuciusError, Misconfigured  # noqa: PLC0415
    from lucius.client.http import address  # noqa: PLC0415

    try:
        address(to.url)
        try:
            client = AsyncClient(to.url, api_key=to.api_key, retry_for=RETRY_SECONDS, timeout=ANSWER_SECONDS)
        except Misconfigured as error:
            raise Misused(str(error)) from error
        async with client:
            yield client
    except LuciusError as error:
        raise _to_cli_error(to.url, error) from error


def _to_cli_error(url: str, error: "LuciusError") -> CliError:
    from lucius.client import Misconfigured, RequestRefused, Unreachable  # noqa: PLC0415

    match error:
        case RequestRefused():
            return ServerRefused(error.problem)
        case Misconfigured():
            return ServerUnreachable(f"{url} is not an address: give --url as http://host:port")
        case Unreachable(failure="no_connection"):
            return ServerUnreachable(f"no control plane answers at {url}; start one with `lucius dev`, or give --url")
        case _:
            return ServerUnreachable(str(error))


async def fetch(
    client: "AsyncClient", path: str, kind: type[T], params: Mapping[str, Any] | None = None, **options: Any
) -> tuple[bytes, T]:
    """GET an answer; return it as received and decoded. Parameters that are None are omitted."""
    answer = await client.http.get(path, _drop_none(params or {}), **options)
    return answer, client.http.read(answer, kind)


async def act(
    client: "AsyncClient", path: str, body: Mapping[str, Any], kind: type[T], **options: Any
) -> tuple[bytes, T]:
    """POST a body without its members that are None; return the answer as received and decoded."""
    answer = await client.http.post(path, _drop_none(body), **options)
    return answer, client.http.read(answer, kind)


def _drop_none(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


async def is_answered(client: "AsyncClient", path: str) -> bool:
    """Return whether a GET is answered with 200, for waiting until a server is up."""
    from lucius.client import LuciusError  # noqa: PLC0415

    try:
        await client.http.get(path, within=PROBE_SECONDS)
    except LuciusError:
        return False
    return True


def list_output(
    value: Any, found: Sequence[Any], view: "Callable[[], RenderableType]", empty_text: str, limit: int | None = None
) -> Output:
    """Return the output of a listing: a table, with a hint if the limit was reached, or `empty_text`."""

    def show() -> None:
        if not found:
            render.err().print(empty_text)
            return
        render.out().print(view())
        if len(found) == limit:
            render.err().print(f"the newest {limit}; --limit or --all for more", style="dim")

    return Output(value, show)


def job_output(answer: bytes, job: JobView) -> Output:
    """Return the output of an act on a job: the job's new state."""
    return Output(answer, lambda: render.out().print(f"job {job.jobId}: {render.explain(job)}", soft_wrap=True))
