"""Commands about the review queue: `review list|groups|show` and the acts on its items."""

import inspect
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer
from msgspec import Struct
from msgspec.structs import replace

from lucius.cli import render
from lucius.cli.errors import Misused, Unsuccessful
from lucius.cli.job_ids import MAX_CANDIDATES, find_job, join_some
from lucius.cli.json_options import read_json
from lucius.cli.session import (
    AsJson,
    AtMost,
    Everything,
    Output,
    fetch,
    list_output,
    server_command,
    set_parameters,
)
from lucius.contract.control import (
    MAX_BULK_ITEMS,
    ReviewBulkAnswer,
    ReviewDetail,
    ReviewGroupList,
    ReviewList,
    ReviewOutcome,
)
from lucius.core.model.statuses import ReviewKind

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lucius.client import AsyncClient

BULK_SECONDS = 300.0

review = typer.Typer(help="Review queue: list items and act on them.", no_args_is_help=True)


class ReviewStatusOption(StrEnum):
    OPEN = "OPEN"
    REPROCESSED = "REPROCESSED"
    RESOLVED = "RESOLVED"
    DISCARDED = "DISCARDED"
    ANY = "ANY"


Tenant = Annotated[str | None, typer.Option(help="Only of this tenant")]
Kind = Annotated[ReviewKind | None, typer.Option(help="Only of this kind", case_sensitive=False)]
Signature = Annotated[str | None, typer.Option(help="Only with this cause, as listed by `review groups`")]
ITEM = "Id of an item or its job, or a unique prefix"
Ids = Annotated[list[str] | None, typer.Argument(metavar="ITEM", help=ITEM)]
Reason = Annotated[str, typer.Option(help="Reason, kept in the history; required without --dry-run")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what the act would do")]
All = Annotated[bool, typer.Option("--all", help="All open items that match --signature, --kind and --tenant")]
Limit = Annotated[int, typer.Option(help="With --all, the maximum number of items", min=1, max=MAX_BULK_ITEMS)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With --all, do not ask for confirmation")]


@review.command("list")
@server_command
async def list_items(
    client: "AsyncClient",
    tenant: Tenant = None,
    kind: Kind = None,
    signature: Signature = None,
    job: Annotated[str | None, typer.Option(help="Only of this job")] = None,
    status: Annotated[
        ReviewStatusOption, typer.Option(help="Only with this status", case_sensitive=False)
    ] = ReviewStatusOption.OPEN,
    limit: AtMost = 20,
    all_: Everything = False,
) -> Output:
    """List items to review, newest first."""
    most = None if all_ else limit
    job_id = await find_job(client, job) if job else None
    items = client.reviews.list(tenant=tenant, status=status, kind=kind, signature=signature, job_id=job_id, limit=most)
    found = [item async for item in items]

    def view() -> "RenderableType":
        from lucius.cli.review_render import items_view  # noqa: PLC0415

        return items_view(found, datetime.now(UTC))

    nothing = "nothing to review" if status is ReviewStatusOption.OPEN else "no review items"
    return list_output(ReviewList(items=found, next_cursor=None), found, view, nothing, most)


@review.command("groups")
@server_command
async def list_groups(client: "AsyncClient", tenant: Tenant = None, kind: Kind = None) -> Output:
    """Group open items by cause, the most frequent first."""
    params = {"tenant_id": tenant, "kind": kind, "limit": 200}
    answer, found = await fetch(client, "/v1/review/groups", ReviewGroupList, params)

    def view() -> "RenderableType":
        from lucius.cli.review_render import groups_view  # noqa: PLC0415

        return groups_view(found.groups, datetime.now(UTC))

    return list_output(answer, found.groups, view, "nothing to review")


@review.command("show")
@server_command
async def show_item(client: "AsyncClient", item: Annotated[str, typer.Argument(metavar="ITEM", help=ITEM)]) -> Output:
    """Show one item: what happened, and what each act would do."""
    answer, shown = await fetch(client, _path(await _find_item(client, item)), ReviewDetail)

    def show() -> None:
        from lucius.cli.review_render import item_header, options_view  # noqa: PLC0415

        console = render.out()
        console.print(item_header(shown))
        if shown.acts:
            console.print()
            console.print(options_view(shown))

    return Output(answer, show)


async def _find_item(client: "AsyncClient", item: str) -> str:
    """Return the id of the review item with the id `item`, or of the job whose id is or begins with it. Raises Misused.

    Of a job with several items, it is the open one.
    """
    job, tilde, rest = item.partition("~")
    job_id = await find_job(client, job)
    if tilde:
        return f"{job_id}~{rest}"
    ids: list[str] = []
    for status in ("OPEN", "ANY"):
        found = client.reviews.list(job_id=job_id, status=status, limit=MAX_CANDIDATES + 1)
        ids = [item.review_id async for item in found]
        if ids:
            break
    if not ids:
        raise Misused(f"job {job_id} has no review items")
    if len(ids) > 1:
        raise Misused(f"job {job_id} has several review items: {join_some(ids)}")
    return ids[0]


def _path(review_id: str) -> str:
    return f"/v1/review/{quote(review_id, safe='~')}"


class Selection(Struct, frozen=True, kw_only=True):
    """Items to act on: the given ids, or all that match the filters."""

    ids: list[str]
    all_: bool
    signature: str | None = None
    kind: str | None = None
    tenant: str | None = None
    limit: int = MAX_BULK_ITEMS

    def check(self) -> None:
        has_filters = any((self.signature, self.kind, self.tenant))
        if bool(self.ids) is self.all_:
            raise Misused("give review items, or --all with --signature, --kind or --tenant")
        if self.all_ and not has_filters:
            raise Misused("--all needs --signature, --kind or --tenant")
        if self.ids and has_filters:
            raise Misused("--signature, --kind and --tenant need --all")

    def body(self) -> dict[str, Any]:
        if self.ids:
            return {"ids": self.ids}
        filters = {"signature": self.signature, "kind": self.kind, "tenant_id": self.tenant, "limit": self.limit}
        return {name: value for name, value in filters.items() if value is not None}


class Action(Struct, frozen=True, kw_only=True):
    """An act on review items, and how to show its outcome."""

    act: str
    reason: str
    extra: dict[str, Any]
    dry_run: bool
    yes: bool
    as_json: bool

    def body(self) -> dict[str, Any]:
        return {"reason": self.reason.strip() or "a dry run", **self.extra}


async def _act_on_one(client: "AsyncClient", review_id: str, action: Action) -> None:
    from lucius.cli.review_render import effect  # noqa: PLC0415

    answer = await client.http.post(f"{_path(review_id)}:{action.act}", {**action.body(), "dry_run": action.dry_run})
    outcome = client.http.read(answer, ReviewOutcome)
    if action.as_json:
        render.print_json(answer)
        return
    if action.dry_run:
        render.out().print(f"{action.act} {review_id} would: {effect(outcome, action.act)}", soft_wrap=True)
        return
    text = f"job {outcome.jobId} is {outcome.job_status}, run {outcome.run_no}; {effect(outcome, action.act)}"
    render.out().print(text, soft_wrap=True)


async def _act_on_many(client: "AsyncClient", selection: Selection, action: Action) -> None:
    """Show what the act would do, ask for confirmation, and apply it to exactly the items shown."""
    from lucius.cli.review_render import outcomes_view, summary  # noqa: PLC0415

    would = await _first_applicable_page(client, selection.body(), action)
    if action.dry_run or not would.results:
        _show(would, action)
        return
    ids = [outcome.review_id for outcome in would.results if outcome.outcome == "WOULD"]
    if not action.yes:
        render.err().print(outcomes_view(would.results))
        _confirm(summary(would.results, action.act))
    if not ids:
        raise Unsuccessful("this act applies to none of them")
    done = await _bulk(client, {"ids": ids}, action, dry_run=False)
    _show(ReviewBulkAnswer(results=done.results, applied=done.applied, refused=done.refused, more=would.more), action)
    if done.refused:
        raise Unsuccessful(f"{done.refused} of {render.plural(len(done.results), 'item')} refused")


async def _first_applicable_page(client: "AsyncClient", selection: dict[str, Any], action: Action) -> ReviewBulkAnswer:
    """Skip pages whose items all refuse, unless for a limit, which later items would reach too."""
    would = await _bulk(client, selection, action, dry_run=True)
    while would.next_cursor is not None and all(_always_refuses(outcome) for outcome in would.results):
        would = await _bulk(client, {**selection, "cursor": would.next_cursor}, action, dry_run=True)
    return would


def _always_refuses(outcome: ReviewOutcome) -> bool:
    return outcome.outcome == "REFUSED" and not (outcome.code or "").endswith("_LIMIT")


async def _bulk(client: "AsyncClient", selection: dict[str, Any], action: Action, *, dry_run: bool) -> ReviewBulkAnswer:
    body = {"act": action.act, **action.body(), **selection, "dry_run": dry_run}
    return client.http.read(await client.http.post("/v1/review:act", body, within=BULK_SECONDS), ReviewBulkAnswer)


def _confirm(question: str) -> None:
    if not _is_interactive():
        raise Misused(f"{question}: confirm with --yes, since this is not a terminal")
    typer.confirm(f"{question}. Continue?", abort=True, err=True)


def _is_interactive() -> bool:
    return sys.stdin.isatty()


def _show(answer: ReviewBulkAnswer, action: Action) -> None:
    from lucius.cli.review_render import outcomes_view, summary  # noqa: PLC0415

    if action.as_json:
        render.print_json(answer)
        return
    if not answer.results:
        render.err().print("nothing to review")
        return
    render.out().print(outcomes_view(answer.results))
    if action.dry_run:
        render.err().print(summary(answer.results, action.act), style="bold")
    else:
        render.err().print(f"{answer.applied} done, {answer.refused} refused", style="bold")
    if answer.more:
        render.err().print("more items match: run the command again for the next ones", style="dim")


Members = Callable[..., dict[str, Any]]


def _act_command(name: str) -> Callable[[Members], Members]:
    """Add the command of an act. The function has the act's own options, and returns its members of the request."""

    def add(members: Members) -> Members:
        async def perform(
            client: "AsyncClient",
            items: Ids = None,
            reason: Reason = "",
            dry_run: DryRun = False,
            all_: All = False,
            signature: Signature = None,
            kind: Kind = None,
            tenant: Tenant = None,
            limit: Limit = MAX_BULK_ITEMS,
            yes: Yes = False,
            as_json: AsJson = False,
            **own: Any,
        ) -> None:
            selection = Selection(
                ids=items or [], all_=all_, signature=signature, kind=kind, tenant=tenant, limit=limit
            )
            selection.check()
            if not reason.strip() and not dry_run:
                raise Misused("--reason is required: it is kept in the history")
            action = Action(act=name, reason=reason, extra=members(**own), dry_run=dry_run, yes=yes, as_json=as_json)
            ids = [await _find_item(client, item) for item in selection.ids]
            if len(ids) == 1:
                await _act_on_one(client, ids[0], action)
            else:
                await _act_on_many(client, replace(selection, ids=ids), action)

        items, reason, *others, _ = list(inspect.signature(perform).parameters.values())[1:]
        own = inspect.signature(members).parameters.values()
        review.command(name)(server_command(set_parameters(perform, members, [items, reason, *own, *others])))
        return members

    return add


@_act_command("retry")
def _retry(
    from_step: Annotated[str | None, typer.Option(help="First step of the run; by default the one that failed")] = None,
) -> dict[str, Any]:
    """Retry as a new run from the failed step or an earlier one; earlier results are kept."""
    return {"from_step": from_step} if from_step else {}


@_act_command("skip")
def _skip(
    result: Annotated[str, typer.Option(help="Result of the skipped step: JSON or @FILE; null for none")] = "",
) -> dict[str, Any]:
    """Skip the failed step: a new run continues after it with a result that you supply."""
    if not result:
        raise Misused("--result is required: later steps may read it; give null for none")
    return {"result": read_json("--result", result)}


@_act_command("compensate")
def _compensate() -> dict[str, Any]:
    """Compensate completed steps in reverse order, or resume where a handler failed."""
    return {}


@_act_command("adopt")
def _adopt() -> dict[str, Any]:
    """Adopt a late success as the step's result, instead of executing the step again."""
    return {}


@_act_command("discard")
def _discard() -> dict[str, Any]:
    """Discard items without effect; a job held for review ends as failed."""
    return {}
