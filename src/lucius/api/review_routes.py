"""The review queue: reading needs the scope `read`, acting the scope `operate`."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from msgspec.structs import replace

from lucius.api.dependencies import Operator, Reader, ReviewQueue, body_of, ok, tenants_asked
from lucius.api.openapi_parts import answers, takes
from lucius.api.problems import ledger_refusal
from lucius.contract import control as contract
from lucius.core.model.statuses import ReviewKind, ReviewStatus
from lucius.ports.errors import LedgerError
from lucius.ports.readers import ReviewFilter
from lucius.usecases.access.auth import Principal
from lucius.usecases.errors import Rejected
from lucius.usecases.operations.reviews import ActOutcome, RequestedAct, Reviews, invalid, kinds_for

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
    reviews: ReviewQueue,
    status: StatusName = "OPEN",
    kind: contract.ReviewKindName | None = None,
    tenant_id: Tenant = None,
    signature: Signature = None,
    job_id: Annotated[str | None, Query(alias="jobId", max_length=128)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    """List review items, newest first: failed jobs, effects that may need undoing, refused messages, late successes."""
    where = _where(who, status, kind, tenant_id, signature, job_id)
    items, next_cursor = await reviews.page(who, where, limit, cursor)
    return ok(contract.ReviewList(items=items, next_cursor=next_cursor))


@router.get("/v1/review/groups", **answers(contract.ReviewGroupList, 401, 403, 422))
async def group_reviews(
    who: Reader,
    reviews: ReviewQueue,
    status: StatusName = "OPEN",
    kind: contract.ReviewKindName | None = None,
    tenant_id: Tenant = None,
    signature: Signature = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> Response:
    """Group review items by signature, the largest group first: items with the same cause can be acted on together."""
    where = _where(who, status, kind, tenant_id, signature)
    return ok(contract.ReviewGroupList(groups=await reviews.groups(who, where, limit)))


@router.get("/v1/review/{review_id:name}", **answers(contract.ReviewDetail, 401, 403, 404))
async def get_review(review_id: str, who: Reader, reviews: ReviewQueue) -> Response:
    """Get a review item with the state of its job, and for each act whether it is possible and its effect."""
    return ok(await reviews.show(review_id, who))


async def _act(request: Request, review_id: str, act: contract.Act, who: Principal, reviews: Reviews) -> Response:
    body = await body_of(request, contract.ReviewActRequest)
    requested = RequestedAct(
        act=act, reason=body.reason, from_step=body.from_step, result=body.result, dry_run=body.dry_run
    )
    return ok(await reviews.act(review_id, requested, who))


@router.post(ITEM + ":retry", **ACTED)
async def retry_review(request: Request, review_id: str, who: Operator, reviews: ReviewQueue) -> Response:
    """Start a new run from the failed step, or with `from_step` from an earlier one. It passes the limits again."""
    return await _act(request, review_id, "retry", who, reviews)


@router.post(ITEM + ":skip", **ACTED)
async def skip_review(request: Request, review_id: str, who: Operator, reviews: ReviewQueue) -> Response:
    """Start a new run in which the failed step counts as done, with `result` as its result."""
    return await _act(request, review_id, "skip", who, reviews)


@router.post(ITEM + ":compensate", **ACTED)
async def compensate_review(request: Request, review_id: str, who: Operator, reviews: ReviewQueue) -> Response:
    """Run the compensation handlers of completed steps, the last first; or continue where a handler failed."""
    return await _act(request, review_id, "compensate", who, reviews)


@router.post(ITEM + ":adopt", **ACTED)
async def adopt_review(request: Request, review_id: str, who: Operator, reviews: ReviewQueue) -> Response:
    """Take a late success as the step's result: now, fencing an attempt that runs, or after the end in a new run."""
    return await _act(request, review_id, "adopt", who, reviews)


@router.post(ITEM + ":discard", **ACTED)
async def discard_review(request: Request, review_id: str, who: Operator, reviews: ReviewQueue) -> Response:
    """Close the item without further action. A job that was held for it ends as failed."""
    return await _act(request, review_id, "discard", who, reviews)


@router.post("/v1/review:act", **takes(contract.ReviewBulkRequest, contract.ReviewBulkAnswer, 200, 401, 403, 422))
async def act_on_reviews(request: Request, who: Operator, reviews: ReviewQueue) -> Response:
    """Apply one act to many open items, selected by ids or by common properties. Each item has its own outcome."""
    body = await body_of(request, contract.ReviewBulkRequest)
    ids, cursor = await _selected(body, who, reviews)
    requested = RequestedAct(
        act=body.act, reason=body.reason, from_step=body.from_step, result=body.result, dry_run=body.dry_run
    )
    outcomes = await reviews.act_on_all(ids, requested, who)
    results = [_told(review_id, body.act, outcome) for review_id, outcome in zip(ids, outcomes, strict=True)]
    refused = sum(result.outcome == "REFUSED" for result in results)
    return ok(
        contract.ReviewBulkAnswer(
            results=results,
            applied=0 if body.dry_run else len(results) - refused,
            refused=refused,
            more=cursor is not None,
            next_cursor=cursor,
        )
    )


async def _selected(body: contract.ReviewBulkRequest, who: Principal, reviews: Reviews) -> tuple[list[str], str | None]:
    """Return the ids of the selected items, and the cursor of further ones.

    Raises Rejected without a selection: an empty request must not mean all items.
    """
    named = [name for name in ("signature", "kind", "tenant_id") if getattr(body, name) is not None]
    if (body.ids is None) is not bool(named):
        pointer = f"/{named[0]}" if named else "/ids"
        raise invalid(pointer, "say ids, or signature, kind or tenant_id; not both and not neither")
    if body.ids is not None:
        if body.cursor is not None:
            raise invalid("/cursor", "is for what is selected by signature, kind or tenant_id")
        return list(dict.fromkeys(body.ids)), None
    where = _where(who, "OPEN", body.kind, body.tenant_id, body.signature)
    where = replace(where, kinds=kinds_for(body.act, where.kind))
    items, cursor = await reviews.page(who, where, body.limit, body.cursor)
    return [item.review_id for item in items], cursor


def _told(review_id: str, act: str, outcome: ActOutcome) -> contract.ReviewOutcome:
    match outcome:
        case LedgerError():
            return _told(review_id, act, ledger_refusal(outcome))
        case Rejected(code=code, detail=detail, job_id=job_id):
            return contract.ReviewOutcome(
                review_id=review_id, act=act, outcome="REFUSED", jobId=job_id, code=code, message=detail
            )
        case _:
            return outcome
