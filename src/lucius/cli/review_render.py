"""Renders review items, and what an act on them would lead to."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from lucius.cli.render import ListingRow, ago, listing, moment, plural, status_text, table
from lucius.contract.control import (
    ReviewDetail,
    ReviewEffect,
    ReviewGroupView,
    ReviewItemView,
    ReviewOption,
    ReviewOutcome,
)

MAX_SHOWN_NAMES = 8


def items_view(items: Sequence[ReviewItemView], now: datetime) -> RenderableType:
    heads = ("REVIEW ITEM", "KIND", "STATUS", "TENANT", "TYPE", "AGE")
    return listing(
        heads,
        [
            ListingRow(
                (
                    item.review_id,
                    item.kind,
                    status_text(item.status),
                    item.tenant_id,
                    item.request_type,
                    ago(item.created_at, now),
                ),
                cause(item),
                *_closed(item),
            )
            for item in items
        ],
    )


def cause(item: ReviewItemView) -> str:
    """Return what happened, and in which step."""
    step = f"step {item.stepId}: " if item.stepId else ""
    if item.error is None:
        return step + item.signature
    failure_class = f" ({item.failure_class})" if item.failure_class else ""
    message = f": {item.error.message}" if item.error.message else ""
    return f"{step}{item.error.code}{failure_class}{message}"


def _closed(item: ReviewItemView) -> Iterator[str]:
    if item.resolved_by:
        why = f": {item.reason}" if item.reason else ""
        yield f"{item.act} by {item.resolved_by} at {moment(item.updated_at)}{why}"


def groups_view(groups: Sequence[ReviewGroupView], now: datetime) -> RenderableType:
    heads = ("ITEMS", "KIND", "NEWEST", "SIGNATURE")
    return listing(
        heads,
        [
            ListingRow(
                (str(group.count), group.kind, ago(group.newest.created_at, now), group.signature),
                cause(group.newest),
            )
            for group in groups
        ],
    )


def item_header(item: ReviewDetail) -> Table:
    made = table(("", {"style": "dim"}), "")
    made.show_header = False
    rows: list[tuple[str, str | Text]] = [
        ("review item", item.review_id),
        ("job", f"{item.jobId}, run {item.run_no}"),
        ("tenant", item.tenant_id),
        ("type", item.request_type),
        ("kind", item.kind),
        ("status", Text.assemble(status_text(item.status), *(f"; {told}" for told in _closed(item)))),
        ("what", cause(item)),
        ("signature", item.signature),
        ("opened", moment(item.created_at)),
        ("job is", Text.assemble(status_text(item.job_status), _state(item))),
    ]
    if item.quarantined is not None:
        refs = ", ".join(item.quarantined.artifact_refs)
        rows.append(("kept result", str(item.quarantined.result) + (f" ({refs})" if refs else "")))
    for name, value in rows:
        made.add_row(name, value)
    return made


def _state(item: ReviewDetail) -> str:
    if item.blocked_on is not None:
        return f": {item.blocked_on.message}"
    return f": {item.job_error.message or item.job_error.code}" if item.job_error else ""


def options_view(item: ReviewDetail) -> RenderableType:
    return listing(("ACT", "WHAT IT WOULD DO"), [_option_line(option) for option in item.acts])


def _option_line(option: ReviewOption) -> ListingRow:
    if not option.allowed:
        return ListingRow((Text(option.act, style="dim"), Text(f"not possible: {option.message}", style="dim")))
    return ListingRow((Text(option.act, style="bold"), effect(option, option.act)))


def effect(effect: ReviewEffect, act: str) -> str:
    """Return the effect such as "runs again: read; then for the first time: file; keeps: scan"."""
    told = []
    if effect.undoes:
        told.append(f"undoes, in this order: {_names(effect.undoes, effect.undoes_total)}")
    if effect.re_executes:
        told.append(f"runs again: {_names(effect.re_executes, effect.re_executes_total)}")
    if effect.runs:
        after = "then for the first time" if effect.re_executes else "runs"
        told.append(f"{after}: {_names(effect.runs, effect.runs_total)}")
    if effect.keeps:
        told.append(f"keeps: {_names(effect.keeps, effect.keeps_total)}")
    return "; ".join(told) or ("closes the item and runs nothing" if act == "discard" else "runs nothing")


def _names(names: Sequence[str], total: int | None = None) -> str:
    total = total or len(names)
    more = total - min(len(names), MAX_SHOWN_NAMES)
    return ", ".join(names[:MAX_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


def outcomes_view(outcomes: Sequence[ReviewOutcome]) -> RenderableType:
    return listing(("REVIEW ITEM", "OUTCOME"), [_outcome_line(outcome) for outcome in outcomes])


def _outcome_line(outcome: ReviewOutcome) -> ListingRow:
    if outcome.outcome == "REFUSED":
        return ListingRow((outcome.review_id, Text("REFUSED", style="red")), f"{outcome.message} [{outcome.code}]")
    style = "green" if outcome.outcome == "APPLIED" else "cyan"
    return ListingRow((outcome.review_id, Text(outcome.outcome, style=style)), effect(outcome, outcome.act))


def summary(outcomes: Sequence[ReviewOutcome], act: str) -> str:
    """Return the outcome of a bulk act: how many items, and how many steps would run again."""
    good = [outcome for outcome in outcomes if outcome.outcome != "REFUSED"]
    steps = sum(outcome.re_executes_total for outcome in good)
    undone = sum(max(outcome.undoes_total, len(outcome.undoes)) for outcome in good)
    told = [f"{act} {plural(len(good), 'item')}"]
    told += [f"{plural(steps, 'step')} would run again"] if steps else []
    told += [f"{plural(undone, 'step')} would be undone"] if undone else []
    refused = len(outcomes) - len(good)
    told += [f"{plural(refused, 'item')} would be refused"] if refused else []
    return "; ".join(told)
