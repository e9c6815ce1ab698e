"""Renders versions of protocols and the changes between them."""

from collections.abc import Iterator

import msgspec
from msgspec import UNSET
from rich.console import RenderableType
from rich.text import Text

from lucius.cli import render
from lucius.contract.protocols import ProtocolAct, ProtocolChange, ProtocolDiff, ProtocolVersionView, ProtocolView

STATUS_STYLES = {"DRAFT": "cyan", "PUBLISHED": "green", "DEPRECATED": "yellow"}
MARKS = {"ADDED": ("+", "green"), "REMOVED": ("-", "red"), "CHANGED": ("~", "yellow"), "MOVED": ("↕", "yellow")}
MAX_TEXT_CHARS = 100


def versions_table(versions: list[ProtocolVersionView]) -> RenderableType:
    lines = []
    for version in versions:
        act = last_act(version)
        instead = f"{version.successor.request_type} version {version.successor.version}" if version.successor else ""
        cells = (
            str(version.version),
            Text(version.status, style=STATUS_STYLES.get(version.status, "")),
            act.at if act else "",
            act.by if act else "",
            act.reason if act else "",
            instead,
            version.title,
        )
        lines.append(render.ListingRow(cells))
    return render.listing(("VERSION", "STATUS", "SINCE", "BY", "WHY", "INSTEAD", "TITLE"), lines)


def last_act(version: ProtocolVersionView) -> ProtocolAct | None:
    return version.deprecated or version.published or version.changed or version.created


def life(protocol: ProtocolView) -> Iterator[str]:
    """Yield a line for everything that was done to a version."""
    acts = {name: getattr(protocol, name) for name in ("created", "changed", "published", "deprecated")}
    for name, act in acts.items():
        if act is not None:
            why = f": {act.reason}" if act.reason else ""
            yield f"{name} {act.at} by {act.by}{why}"
    if protocol.successor is not None:
        yield f"use {protocol.successor.request_type} version {protocol.successor.version} instead"


def diff_lines(diff: ProtocolDiff) -> Iterator[Text]:
    """Yield a line for each change, below the step that it belongs to."""
    yield Text(f"{diff.request_type} version {diff.from_version} → {diff.to_version}", style="bold")
    if not diff.changes:
        yield Text("no change")
    heading: str | None = None
    for change in diff.changes:
        if change.stepId != heading and change.stepId is not None and not _is_whole_step(change, diff):
            yield Text(f"  {change.stepId}")
        heading = change.stepId
        yield _line(change, _is_whole_step(change, diff))


def _is_whole_step(change: ProtocolChange, diff: ProtocolDiff) -> bool:
    return change.stepId in (*diff.steps_added, *diff.steps_removed)


def _line(change: ProtocolChange, whole_step: bool) -> Text:
    mark, style = MARKS.get(change.change, ("?", ""))
    if whole_step:
        return Text(f"{mark} step {change.stepId}  ({change.pointer})", style=style)
    indent = "    " if change.stepId is not None else "  "
    match change.change:
        case "ADDED":
            told = _short(change.after)
        case "REMOVED":
            told = _short(change.before)
        case _:
            told = f"{_short(change.before)} → {_short(change.after)}"
    return Text(f"{indent}{mark} {change.pointer}: {told}", style=style)


def _short(value: object) -> str:
    text = "" if value is UNSET else msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 1]}…"
