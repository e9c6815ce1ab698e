"""Renders services: a line for each, and its instances below."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.text import Text

from lucius.cli import render
from lucius.contract import ServiceView

MAX_INSTANCES_SHOWN = 5


def services_view(found: Sequence[ServiceView], now: datetime) -> RenderableType:
    """Return one line for each service, and one for each of its instances."""
    heads = ("SERVICE", "LAST PULL", "LAST SEEN", "AT WORK", "UNACKED", "BACKLOG", "OLDEST")
    lines = [render.ListingRow(_cells(service, now), *_notes(service, now)) for service in found]
    return render.listing(heads, lines)


def _cells(service: ServiceView, now: datetime) -> tuple[str | Text, ...]:
    pulled = render.ago(service.last_pull_at, now) if service.last_pull_at else "never"
    is_absent = service.backlog and not service.last_seen_at  # on a push bus, services call back and never pull
    return (
        service.service,
        Text(pulled, style="red") if is_absent else pulled,
        render.ago(service.last_seen_at, now) if service.last_seen_at else "never",
        str(service.at_work),
        str(service.unacked),
        str(service.backlog),
        render.ago(service.oldest_waiting_at, now) if service.oldest_waiting_at else "",
    )


def _notes(service: ServiceView, now: datetime) -> Iterator[Text]:
    for one in service.instances[:MAX_INSTANCES_SHOWN]:
        named = " ".join(part for part in (one.instance, one.agent) if part)
        yield Text(f"{named}, seen {render.ago(one.last_seen_at, now)} ago", style="dim")
    if len(service.instances) > MAX_INSTANCES_SHOWN:
        more = len(service.instances) - MAX_INSTANCES_SHOWN
        yield Text(f"and {more} more; --json has all of them", style="dim")
