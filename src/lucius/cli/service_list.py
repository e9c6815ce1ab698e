"""`lucius services`: lists services that pull, what they work on and what waits for them."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lucius.cli import render
from lucius.cli.session import Output, fetch, server_command
from lucius.contract import ServiceList

if TYPE_CHECKING:
    from lucius.client import AsyncClient


@server_command
async def services(client: "AsyncClient") -> Output:
    """List services: last pull, running steps and queued directives of each."""
    answer, listed = await fetch(client, "/v1/services", ServiceList)

    def show() -> None:
        from lucius.cli.service_render import services_view  # noqa: PLC0415 - `--help` needs no tables

        if not listed.services:
            render.err().print("no service has pulled or called back yet, and nothing waits for one")
            return
        render.out().print(services_view(listed.services, datetime.now(UTC)))
        if listed.services_omitted:
            render.err().print(f"and {render.plural(listed.services_omitted, 'idle service')} more, seen long ago")

    return Output(answer, show)
