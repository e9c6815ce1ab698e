"""Commands about the review queue: `review list|groups|show` and the acts on its items."""

import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import quote

import typer
from msgspec import Struct

from lucius.cli import render
from lucius.cli.client import Client
from lucius.cli.connection import connection
from lucius.cli.control import read_json
from lucius.cli.errors import Misused, Unsuccessful, guarded, run
from lucius.cli.jobs import ApiKey, AsJson, Url
from lucius.cli.review_render import (
    effect,
    groups_view,
    item_header,
    items_view,
    options_view,
    outcomes_view,
    summary,
)
from lucius.contract_control import (
    MAX_BULK,
    ReviewBulkAnswer,
    ReviewDetail,
    ReviewGroupList,
    ReviewItemView,
    ReviewList,
    ReviewOutcome,
)
from lucius.core.model import ReviewKind

review = typer.Typer(help="What a person must look at, and acting on it, singly or by cause.", no_args_is_help=True)


class Status(StrEnum):
    OPEN = "OPEN"
    REPROCESSED = "REPROCESSED"
    RESOLVED = "RESOLVED"
    DISCARDED = "DISCARDED"
    ANY = "ANY"


Tenant = Annotated[str | None, typer.Option(help="Only this tenant's")]
Kind = Annotated[ReviewKind | None, typer.Option(help="Only of this kind", case_sensitive=False)]
Signature = Annotated[str | None, typer.Option(help="Only with this cause; `review groups` has them")]
Ids = Annotated[list[str] | None, typer.Argument(metavar="ITEM", help="Review items, as `review list` has them")]
Reason = Annotated[str, typer.Option(help="Why, for the record")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would run again")]
All = Annotated[bool, typer.Option("--all", help="All open ones that --signature, --kind and --tenant leave")]
Limit = Annotated[int, typer.Option(help="With --all, at most this many at a time", min=1, max=MAX_BULK)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With --all, don't ask")]


@review.command("list")
def list_items(
    ctx: typer.Context,
    tenant: Tenant = None,
    kind: Kind = None,
    signature: Signature = None,
    job: Annotated[str | None, typer.Option(help="Only of this job")] = None,
    status: Annotated[Status, typer.Option(help="Only in this state", case_sensitive=False)] = Status.OPEN,
    limit: Annotated[int, typer.Option(help="At most this many", min=1)] = 20,
    all_: Annotated[bool, typer.Option("--all", help="However many there are")] = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Items that wait for a person, newest first."""
    params = _params(tenant_id=tenant, kind=kind, signature=signature, jobId=job, status=status)

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            found = await _items(client, params, None if all_ else limit)
        if as_json:
            render.print_json(ReviewList(items=found, next_cursor=None))
        elif found:
            render.out().print(items_view(found, datetime.now(UTC)))
            if not all_ and len(found) == limit:
                render.err().print(f"the newest {limit}; --limit or --all for more", style="dim")
        else:
            render.err().print("nothing to review" if status is Status.OPEN else "no review items")

    run(work)


async def _items(client: Client, params: dict[str, str], limit: int | None) -> list[ReviewItemView]:
    found: list[ReviewItemView] = []
    cursor: str | None = None
    while limit is None or len(found) < limit:
        page = 200 if limit is None else min(200, limit - len(found))
        asked = {**params, "limit": str(page), **({"cursor": cursor} if cursor else {})}
        answer = client.read(await client.get("/v1/review", asked), ReviewList)
        found += answer.items
        cursor = answer.next_cursor
        if cursor is None:
            break
    return found


def _params(**given: Any) -> dict[str, str]:
    return {name: str(value) for name, value in given.items() if value is not None}


@review.command("groups")
def list_groups(
    ctx: typer.Context,
    tenant: Tenant = None,
    kind: Kind = None,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Open items by cause, the most frequent first."""

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            answer = await client.get("/v1/review/groups", _params(tenant_id=tenant, kind=kind, limit=200))
            found = client.read(answer, ReviewGroupList)
        if as_json:
            render.print_json(answer)
        elif found.groups:
            render.out().print(groups_view(found.groups, datetime.now(UTC)))
        else:
            render.err().print("nothing to review")

    run(work)


@review.command("show")
def show_item(
    ctx: typer.Context,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="As `review list` has it")],
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """One item: what happened, and what each act would do."""

    async def work() -> None:
        async with Client(connection(ctx, url, api_key)) as client:
            answer = await client.get(_path(item))
            shown = client.read(answer, ReviewDetail)
        if as_json:
            render.print_json(answer)
            return
        console = render.out()
        console.print(item_header(shown))
        if shown.acts:
            console.print()
            console.print(options_view(shown))

    run(work)


def _path(review_id: str) -> str:
    return f"/v1/review/{quote(review_id, safe='~')}"


class Selection(Struct, frozen=True, kw_only=True):
    """Which items an act is for: named ones, or all that have something in common."""

    ids: list[str]
    all_: bool
    signature: str | None = None
    kind: str | None = None
    tenant: str | None = None
    limit: int = MAX_BULK

    def check(self) -> None:
        named = any((self.signature, self.kind, self.tenant))
        if bool(self.ids) is self.all_:
            raise Misused("name review items, or say --all with --signature, --kind or --tenant")
        if self.all_ and not named:
            raise Misused("--all needs --signature, --kind or --tenant: acting on everything is never meant")
        if self.ids and named:
            raise Misused("--signature, --kind and --tenant go with --all")

    def body(self) -> dict[str, Any]:
        if self.ids:
            return {"ids": self.ids}
        said = {"signature": self.signature, "kind": self.kind, "tenant_id": self.tenant, "limit": self.limit}
        return {name: value for name, value in said.items() if value is not None}


class Wish(Struct, frozen=True, kw_only=True):
    """What is to be done, and how it is shown."""

    act: str
    reason: str
    extra: dict[str, Any]
    dry_run: bool
    yes: bool
    as_json: bool

    def body(self) -> dict[str, Any]:
        return {"reason": self.reason.strip() or "a dry run", **self.extra}


def _perform(ctx: typer.Context, url: str | None, api_key: str | None, which: Selection, wish: Wish) -> None:
    async def work() -> None:
        which.check()
        if not wish.reason.strip() and not wish.dry_run:
            raise Misused("--reason is needed: it is kept with the job")
        async with Client(connection(ctx, url, api_key)) as client:
            if len(which.ids) == 1:
                await _act_on_one(client, which.ids[0], wish)
            else:
                await _act_on_many(client, which, wish)

    run(work)


async def _act_on_one(client: Client, review_id: str, wish: Wish) -> None:
    answer = await client.post(f"{_path(review_id)}:{wish.act}", {**wish.body(), "dry_run": wish.dry_run})
    outcome = client.read(answer, ReviewOutcome)
    if wish.as_json:
        render.print_json(answer)
        return
    if wish.dry_run:
        render.out().print(f"{wish.act} {review_id} would: {effect(outcome, wish.act)}", soft_wrap=True)
        return
    told = f"job {outcome.jobId} is {outcome.job_status}, run {outcome.run_no}; {effect(outcome, wish.act)}"
    render.out().print(told, soft_wrap=True)


async def _act_on_many(client: Client, which: Selection, wish: Wish) -> None:
    """First what it would do; what is confirmed is then done to the very items that were shown."""
    would = await _first_that_can(client, which.body(), wish)
    if wish.dry_run or not would.results:
        _show(would, wish)
        return
    ids = [outcome.review_id for outcome in would.results if outcome.outcome == "WOULD"]
    if not wish.yes:
        render.err().print(outcomes_view(would.results))
        _confirm(summary(would.results, wish.act))
    if not ids:
        raise Unsuccessful("none of them takes this act")
    done = await _bulk(client, {"ids": ids}, wish, dry_run=False)
    _show(ReviewBulkAnswer(results=done.results, applied=done.applied, refused=done.refused, more=would.more), wish)
    if done.refused:
        raise Unsuccessful(f"{done.refused} of {render.plural(len(done.results), 'item')} refused")


async def _first_that_can(client: Client, which: dict[str, Any], wish: Wish) -> ReviewBulkAnswer:
    """Past pages of items that all refuse, unless it is for a limit, which the next ones would hit too."""
    would = await _bulk(client, which, wish, dry_run=True)
    while would.next_cursor is not None and all(_never_takes(outcome) for outcome in would.results):
        would = await _bulk(client, {**which, "cursor": would.next_cursor}, wish, dry_run=True)
    return would


def _never_takes(outcome: ReviewOutcome) -> bool:
    return outcome.outcome == "REFUSED" and not (outcome.code or "").endswith("_LIMIT")


async def _bulk(client: Client, which: dict[str, Any], wish: Wish, *, dry_run: bool) -> ReviewBulkAnswer:
    body = {"act": wish.act, **wish.body(), **which, "dry_run": dry_run}
    return client.read(await client.post("/v1/review:act", body, within=300.0), ReviewBulkAnswer)


def _confirm(question: str) -> None:
    if not _someone_is_there():
        raise Misused(f"{question}: say --yes, as there is nobody to ask")
    typer.confirm(f"{question}. Go on?", abort=True, err=True)


def _someone_is_there() -> bool:
    return sys.stdin.isatty()


def _show(answer: ReviewBulkAnswer, wish: Wish) -> None:
    if wish.as_json:
        render.print_json(answer)
        return
    if not answer.results:
        render.err().print("nothing to review")
        return
    render.out().print(outcomes_view(answer.results))
    if wish.dry_run:
        render.err().print(summary(answer.results, wish.act), style="bold")
    else:
        render.err().print(f"{answer.applied} done, {answer.refused} refused", style="bold")
    if answer.more:
        render.err().print("more items fit: run it again for the next ones", style="dim")


@review.command("retry")
def retry_items(
    ctx: typer.Context,
    items: Ids = None,
    reason: Reason = "",
    from_step: Annotated[str | None, typer.Option(help="An earlier step than the one that failed")] = None,
    dry_run: DryRun = False,
    all_: All = False,
    signature: Signature = None,
    kind: Kind = None,
    tenant: Tenant = None,
    limit: Limit = MAX_BULK,
    yes: Yes = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """A new run from the step that failed, or from an earlier one. What was done before it is kept."""
    extra = {"from_step": from_step} if from_step else {}
    which = Selection(ids=items or [], all_=all_, signature=signature, kind=kind, tenant=tenant, limit=limit)
    wish = Wish(act="retry", reason=reason, extra=extra, dry_run=dry_run, yes=yes, as_json=as_json)
    _perform(ctx, url, api_key, which, wish)


@review.command("skip")
def skip_items(
    ctx: typer.Context,
    items: Ids = None,
    reason: Reason = "",
    result: Annotated[str, typer.Option(help="The step's result instead: JSON or @FILE; null for none")] = "",
    dry_run: DryRun = False,
    all_: All = False,
    signature: Signature = None,
    kind: Kind = None,
    tenant: Tenant = None,
    limit: Limit = MAX_BULK,
    yes: Yes = False,
    as_json: AsJson = False,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """A new run in which the failed step counts as done, with a result that you supply."""
    extra = {"result": guarded(lambda: _required(result))}
    which = Selection(ids=items or [], all_=all_, signature=signature, kind=kind, tenant=tenant, limit=limit)
    wish = Wish(act="skip", reason=reason, extra=extra, dry_run=dry_run, yes=yes, as_json=as_json)
    _perform(ctx, url, api_key, which, wish)


def _required(result: str) -> Any:
    if not result:
        raise Misused("--result is needed: later steps may read it; say null for none")
    return read_json(result, "--result")


def _plain(act: str, help_: str) -> None:
    """An act that needs nothing but a reason."""

    def command(
        ctx: typer.Context,
        items: Ids = None,
        reason: Reason = "",
        dry_run: DryRun = False,
        all_: All = False,
        signature: Signature = None,
        kind: Kind = None,
        tenant: Tenant = None,
        limit: Limit = MAX_BULK,
        yes: Yes = False,
        as_json: AsJson = False,
        url: Url = None,
        api_key: ApiKey = None,
    ) -> None:
        which = Selection(ids=items or [], all_=all_, signature=signature, kind=kind, tenant=tenant, limit=limit)
        wish = Wish(act=act, reason=reason, extra={}, dry_run=dry_run, yes=yes, as_json=as_json)
        _perform(ctx, url, api_key, which, wish)

    review.command(act, help=help_)(command)


_plain("compensate", "Undo what completed steps did, the last first; or go on where a handler failed.")
_plain("adopt", "Take a late success as the step's result instead of paying for the step again.")
_plain("discard", "Close items and do nothing. A job that was held for one ends as failed.")
