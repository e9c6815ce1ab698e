"""The review queue: looking is for readers, acting for those with the scope `operate`."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from msgspec.structs import replace

from lucius import contract_control as contract
from lucius.api.openapi import answers, takes
from lucius.api.problems import ledger_refusal
from lucius.api.routes import Operator, Reader, Wired, body_of, ok, tenants_asked
from lucius.core.model import ReviewKind, ReviewStatus
from lucius.ports.errors import LedgerError
from lucius.ports.ledger import ReviewFilter
from lucius.service.auth import Principal
from lucius.service.errors import Rejected
from lucius.service.reviews import Asked, Outcome, invalid, kinds_for
from lucius.wiring import Runtime

router = APIRouter(tags=["review"])

StatusName = Literal["OPEN", "REPROCESSED", "RESOLVED", "DISCARDED", "ANY"]
Tenant = Annotated[str | None, Query(max_length=256)]
Signature = Annotated[str | None, Query(max_length=512)]
ITEM = "/v1/review/{review_id}"
ACTED = takes(contract.ReviewActRequest, contract.ReviewOutcome, 200, 401, 403, 404, 409, 422, 429)


def _where(
    who: Principal,
    status: StatusName,
    kind: contract.ReviewKindName | None,
    tenant_id: str | None,
    signature: str | None,
    job_id: str | None = None,
) -> ReviewFilter:
    return ReviewFilter(
        tenants=tenants_asked(who, tenant_id),
        status=None if status == "ANY" else ReviewStatus(status),
        kind=ReviewKind(kind) if kind else None,
        signature=signature,
        job_id=job_id,
    )


@router.get("/v1/review", **answers(contract.ReviewList, 401, 403, 422))
async def list_reviews(
    who: Reader,
    runtime: Wired,
    status: StatusName = "OPEN",
    kind: contract.ReviewKindName | None = None,
    tenant_id: Tenant = None,
    signature: Signature = None,
    job_id: Annotated[str | None, Query(alias="jobId", max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """Newest first: failed jobs, effects that may need undoing, messages the bus refused, late successes."""
    where = _where(who, status, kind, tenant_id, signature, job_id)
    items, next_cursor = await runtime.reviews.page(who, where, limit, cursor)
    return ok(contract.ReviewList(items=items, next_cursor=next_cursor))


@router.get("/v1/review/groups", **answers(contract.ReviewGroupList, 401, 403, 422))
async def group_reviews(
    who: Reader,
    runtime: Wired,
    status: StatusName = "OPEN",
    kind: contract.ReviewKindName | None = None,
    tenant_id: Tenant = None,
    signature: Signature = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """By signature, the largest group first: what broke the same way can be acted on together."""
    where = _where(who, status, kind, tenant_id, signature)
    return ok(contract.ReviewGroupList(groups=await runtime.reviews.groups(who, where, limit)))


@router.get(ITEM, **answers(contract.ReviewDetail, 401, 403, 404))
async def get_review(review_id: str, who: Reader, runtime: Wired) -> Response:
    """With the state of the job, and for each act whether it can be done and what it would lead to."""
    return ok(await runtime.reviews.show(review_id, who))


async def _act(request: Request, review_id: str, act: contract.Act, who: Principal, runtime: Runtime) -> Response:
    said = await body_of(request, contract.ReviewActRequest)
    asked = Asked(act=act, reason=said.reason, from_step=said.from_step, result=said.result, dry_run=said.dry_run)
    return ok(await runtime.reviews.act(review_id, asked, who))


@router.post(ITEM + ":retry", **ACTED)
async def retry_review(request: Request, review_id: str, who: Operator, runtime: Wired) -> Response:
    """A new run from the step that failed, or with `from_step` from an earlier one. It passes the limits again."""
    return await _act(request, review_id, "retry", who, runtime)


@router.post(ITEM + ":skip", **ACTED)
async def skip_review(request: Request, review_id: str, who: Operator, runtime: Wired) -> Response:
    """A new run in which the failed step counts as done, with `result` as its result."""
    return await _act(request, review_id, "skip", who, runtime)


@router.post(ITEM + ":compensate", **ACTED)
async def compensate_review(request: Request, review_id: str, who: Operator, runtime: Wired) -> Response:
    """Run the handlers of completed steps, the last first; or go on where a handler failed."""
    return await _act(request, review_id, "compensate", who, runtime)


@router.post(ITEM + ":adopt", **ACTED)
async def adopt_review(request: Request, review_id: str, who: Operator, runtime: Wired) -> Response:
    """Take a late success as the step's result: now, fencing an attempt that runs, or after the end in a new run."""
    return await _act(request, review_id, "adopt", who, runtime)


@router.post(ITEM + ":discard", **ACTED)
async def discard_review(request: Request, review_id: str, who: Operator, runtime: Wired) -> Response:
    """Close it and do nothing. A job that was held for it ends as failed."""
    return await _act(request, review_id, "discard", who, runtime)


@router.post("/v1/review:act", **takes(contract.ReviewBulkRequest, contract.ReviewBulkAnswer, 200, 401, 403, 422))
async def act_on_reviews(request: Request, who: Operator, runtime: Wired) -> Response:
    """The same act on many open items: by their ids, or by what they have in common. Each is answered on its own."""
    said = await body_of(request, contract.ReviewBulkRequest)
    ids, cursor = await _selected(said, who, runtime)
    asked = Asked(act=said.act, reason=said.reason, from_step=said.from_step, result=said.result, dry_run=said.dry_run)
    outcomes = await runtime.reviews.act_on_all(ids, asked, who)
    results = [_told(review_id, said.act, outcome) for review_id, outcome in zip(ids, outcomes, strict=True)]
    refused = sum(result.outcome == "REFUSED" for result in results)
    return ok(
        contract.ReviewBulkAnswer(
            results=results,
            applied=0 if said.dry_run else len(results) - refused,
            refused=refused,
            more=cursor is not None,
            next_cursor=cursor,
        )
    )


async def _selected(said: contract.ReviewBulkRequest, who: Principal, runtime: Runtime) -> tuple[list[str], str | None]:
    """Which items are meant, and where more that fit begin. Everything there is can't be meant by saying nothing."""
    named = [name for name in ("signature", "kind", "tenant_id") if getattr(said, name) is not None]
    if (said.ids is None) is not bool(named):
        pointer = f"/{named[0]}" if named else "/ids"
        raise invalid(pointer, "say ids, or signature, kind or tenant_id; not both and not neither")
    if said.ids is not None:
        if said.cursor is not None:
            raise invalid("/cursor", "is for what is selected by signature, kind or tenant_id")
        return list(dict.fromkeys(said.ids)), None
    where = _where(who, "OPEN", said.kind, said.tenant_id, said.signature)
    where = replace(where, kinds=kinds_for(said.act, where.kind))
    items, cursor = await runtime.reviews.page(who, where, said.limit, said.cursor)
    return [item.review_id for item in items], cursor


def _told(review_id: str, act: str, outcome: Outcome) -> contract.ReviewOutcome:
    match outcome:
        case LedgerError():
            return _told(review_id, act, ledger_refusal(outcome))
        case Rejected(code=code, detail=detail, job_id=job_id):
            return contract.ReviewOutcome(
                review_id=review_id, act=act, outcome="REFUSED", jobId=job_id, code=code, message=detail
            )
        case _:
            return outcome
