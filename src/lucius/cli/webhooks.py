"""`lucius webhooks listen`: a receiver on this machine that shows webhooks and checks their signatures."""

import os
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from lucius.cli import render
from lucius.cli.errors import CliError, Unsuccessful
from lucius.cli.session import AsJson, fetch, server_command
from lucius.contract.control import WebhookSecretList

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lucius.client import AsyncClient

webhooks = typer.Typer(help="Test webhooks on this machine.", no_args_is_help=True)

MAX_BODY_BYTES = 1024 * 1024
HOST = "127.0.0.1"


@webhooks.callback()
def _group() -> None:
    """Test webhooks on this machine."""


@webhooks.command("listen")
@server_command
async def listen(
    client: "AsyncClient",
    tenant: Annotated[str, typer.Option(help="Tenant whose webhook secrets verify the signatures")],
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 picks a free one", min=0, max=65535)] = 8090,
    count: Annotated[int | None, typer.Option(help="Exit after this many webhooks", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Print received webhooks and whether their signatures are valid, until Ctrl-C.

    For `lucius submit --callback`. Needs a key with scope operate for the tenant; that of `lucius dev` has it.
    """
    path = f"/v1/tenants/{quote(tenant, safe='')}/webhook-secrets"
    _, found = await fetch(client, path, WebhookSecretList)
    bad = await receive(tenant, found.secrets, port, count, _show_json if as_json else _show)
    if bad:
        raise Unsuccessful(f"{render.plural(bad, 'webhook')} had no valid signature")


def _show(webhook: dict[str, Any]) -> None:
    verdict = "signature is valid" if webhook["valid"] else f"NOT VALID: {webhook['reason']}"
    name = webhook["id"] or "request without webhook-id"
    render.out().print(f"{name}: {_describe_job(webhook['body'])}; {verdict}", soft_wrap=True)


def _describe_job(body: Any) -> str:
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, dict) or not data.get("jobId"):
        return "no job is named"
    return f"job {data['jobId']} is {data['status']}" if data.get("status") else f"job {data['jobId']}"


def _show_json(webhook: dict[str, Any]) -> None:
    render.print_json(webhook)


def _find_tenant(body: Any) -> str | None:
    """Return the tenant that a webhook names."""
    data = body.get("data") if isinstance(body, dict) else None
    for members in (data, body):
        if isinstance(members, dict) and isinstance(named := members.get("tenant_id"), str):
            return named
    return None


async def receive(
    tenant: str, secrets: "Sequence[str]", port: int, count: int | None, show: "Callable[[dict[str, Any]], None]"
) -> int:
    """Answer `count` webhooks with 204, or 401 without a valid signature.

    Returns the number of invalid ones. Raises CliError if the port is taken.
    """
    import asyncio  # noqa: PLC0415 - not needed for help

    import msgspec  # noqa: PLC0415
    from aiohttp import web  # noqa: PLC0415

    from lucius.cli.webhook_signature import find_fault  # noqa: PLC0415

    ended, bad, seen = asyncio.Event(), 0, 0

    async def handle(request: web.Request) -> web.Response:
        nonlocal bad, seen
        body = await request.read()
        fault = find_fault(secrets, request.headers, body)
        try:
            value: Any = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            value = body.decode(errors="replace")
        if fault is not None and (other := _find_tenant(value)) not in (None, tenant):
            fault = f"for tenant {other}; this command uses {tenant}'s secrets"
        show({"id": request.headers.get("webhook-id"), "valid": fault is None, "reason": fault, "body": value})
        seen, bad = seen + 1, bad + (fault is not None)
        if seen == count:
            ended.set()
        return web.Response(status=204 if fault is None else 401)

    application = web.Application(client_max_size=MAX_BODY_BYTES)
    application.router.add_post("/{path:.*}", handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, HOST, port).start()
        except OSError as error:
            raise CliError(
                f"can't listen on {HOST} port {port}: {os.strerror(error.errno or 0)}; choose another with --port"
            ) from error
        at = f"http://{HOST}:{runner.addresses[0][1]}/"
        render.err().print(f"listening; submit with --callback {at}", soft_wrap=True)
        await ended.wait()
    finally:
        await runner.cleanup()
    return bad
