"""The review queue: items that need a person, the acts that each kind of item takes, and carrying them out."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from lucius.contract import Fault, StepInput
from lucius.contract.control import ReviewDetail, ReviewGroupView, ReviewItemView, ReviewOption, ReviewOutcome
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.inputs import Adopt, Compensate, Discard, Input, Retry, Skip
from lucius.core.model.records import Quarantined, ReviewItem
from lucius.core.model.statuses import ReviewKind, ReviewStatus
from lucius.ports.engine import Engine, Inputs
from lucius.ports.errors import LedgerError
from lucius.ports.readers import HistoryReader, JobReader, ReviewFilter, ReviewReader
from lucius.usecases.access.auth import Principal
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.operations.operator_actions import (
    MAX_SKIPPED_BYTES,
    RunLimits,
    carry_out,
    require_accepted,
    require_room,
    require_small,
)
from lucius.usecases.operations.rerun_preview import Effect, effect_of
from lucius.usecases.queries.jobs import Queries
from lucius.usecases.queries.views import error_view
from lucius.usecases.timestamps import timestamp

MAX_CONCURRENT_ACTS = 25
MAX_SHOWN_STEPS = 100
ACTS: dict[ReviewKind, tuple[str, ...]] = {
    ReviewKind.JOB_FAILED: ("retry", "skip", "compensate", "discard"),
    ReviewKind.POISON: ("retry", "skip", "compensate", "discard"),
    ReviewKind.COMPENSATION: ("retry", "skip", "compensate", "discard"),
    ReviewKind.STALE_RESULT: ("adopt", "discard"),
}


class RequestedAct(Struct, frozen=True, kw_only=True):
    """A requested act on an item, with the reason."""

    act: str
    reason: str
    from_step: str | None = None
    result: Any = UNSET
    dry_run: bool = False


ActOutcome = ReviewOutcome | Rejected | LedgerError


class Reviews:
    """Shows and closes review items; items of tenants that the key may not see are not found."""

    def __init__(
        self,
        jobs: JobReader,
        history: HistoryReader,
        reviews: ReviewReader,
        engine: Engine,
        queries: Queries,
        limits: RunLimits,
    ) -> None:
        self._jobs = jobs
        self._history = history
        self._reviews = reviews
        self._engine = engine
        self._queries = queries
        self._limits = limits

    async def page(
        self, who: Principal, where: ReviewFilter, limit: int, cursor: str | None
    ) -> tuple[list[ReviewItemView], str | None]:
        try:
            page = await self._reviews.reviews(_seen_by(who, where), limit, cursor)
        except ValueError as error:
            raise Rejected(RejectCode.INVALID_CURSOR, str(error)) from None
        return [_item_view(item) for item in page.items], page.next_cursor

    async def groups(self, who: Principal, where: ReviewFilter, limit: int) -> list[ReviewGroupView]:
        found = await self._reviews.review_groups(_seen_by(who, where), limit)
        return [
            ReviewGroupView(
                signature=group.signature, kind=group.kind, count=group.count, newest=_item_view(group.newest)
            )
            for group in found
        ]

    async def show(self, review_id: str, who: Principal) -> ReviewDetail:
        """Return the item, its job's state, and the effect of each act."""
        item = await self._find(review_id, who)
        job = await self._queries.job(item.job_id, who)
        kept = await self._kept(item)
        acts = ACTS[item.kind] if item.status is ReviewStatus.OPEN else ()
        return ReviewDetail(
            **_item_fields(item),
            job_status=job.status,
            blocked_on=job.blocked_on,
            job_error=job.error,
            acts=[await self._option(item, act, who) for act in acts],
            quarantined=StepInput(kept.result, kept.artifact_refs) if kept else None,
        )

    async def _option(self, item: ReviewItem, act: str, who: Principal) -> ReviewOption:
        try:
            _, effect = await self._evaluate(item, RequestedAct(act=act, reason="", result=None), who, Counter())
        except Rejected as refused:
            return ReviewOption(act=act, allowed=False, code=refused.code, message=refused.detail)
        return ReviewOption(act=act, allowed=True, **_effect_fields(effect))

    async def act(
        self, review_id: str, requested: RequestedAct, who: Principal, planned: Counter[str] | None = None
    ) -> ReviewOutcome:
        """Carry out an act, or preview it in a dry run.

        In a dry run, `planned` is what earlier acts would add to the jobs in flight.
        """
        _check(requested)
        item = await self._find(review_id, who)
        if requested.dry_run:
            decision, effect = await self._evaluate(item, requested, who, Counter() if planned is None else planned)
        else:
            before = await self._whole(item)
            inputs = self._inputs(item.review_id, requested, who)
            decision = await carry_out(self._engine, item.job_id, inputs, item.step_id)
            effect = effect_of(before, decision, requested.from_step)
        return ReviewOutcome(
            review_id=review_id,
            act=requested.act,
            outcome="WOULD" if requested.dry_run else "APPLIED",
            jobId=item.job_id,
            job_status=decision.job.status,
            run_no=decision.job.run_no,
            **_effect_fields(effect),
        )

    async def act_on_all(self, review_ids: Sequence[str], requested: RequestedAct, who: Principal) -> list[ActOutcome]:
        """Carry out an act on each item and return the outcomes in order; one refusal does not affect other items."""
        _check(requested)
        if requested.dry_run:
            planned: Counter[str] = Counter()
            return [await self._outcome(review_id, requested, who, planned) for review_id in review_ids]
        outcomes: list[ActOutcome] = []
        for i in range(0, len(review_ids), MAX_CONCURRENT_ACTS):
            batch = review_ids[i : i + MAX_CONCURRENT_ACTS]
            outcomes += await asyncio.gather(*(self._outcome(review_id, requested, who) for review_id in batch))
        return outcomes

    async def _outcome(
        self, review_id: str, requested: RequestedAct, who: Principal, planned: Counter[str] | None = None
    ) -> ActOutcome:
        try:
            return await self.act(review_id, requested, who, planned)
        except (Rejected, LedgerError) as refusal:
            return refusal

    async def _evaluate(
        self, item: ReviewItem, requested: RequestedAct, who: Principal, planned: Counter[str]
    ) -> tuple[Decision, Effect]:
        before = await self._whole(item)
        decision = await self._engine.evaluate(
            item.job_id, self._inputs(item.review_id, requested, who), item.step_id, fresh=True
        )
        require_accepted(decision.reply, item.job_id)
        counters = await self._jobs.counters(*(cap.counter for cap in decision.caps))
        require_room(decision, Counter(counters) + planned)
        planned.update(decision.counters)
        return decision, effect_of(before, decision, requested.from_step)

    async def _whole(self, item: ReviewItem) -> JobSnapshot:
        view = await self._jobs.job(item.job_id)
        if view is None:
            raise Rejected(RejectCode.JOB_NOT_FOUND, f"there is no job {item.job_id}")
        return view

    def _inputs(self, review_id: str, requested: RequestedAct, who: Principal) -> Inputs:
        """Return a function that reads the item after its job and returns the act's input.

        An item changes only in commits of its job, so if the item is outdated, the job's version is as well.
        """

        async def act(view: JobSnapshot) -> Sequence[Input]:
            item = await self._find(review_id, who)
            if item.status is not ReviewStatus.OPEN:
                done = f"{item.status} already, by {item.resolved_by}"
                raise Rejected(RejectCode.REVIEW_CLOSED, f"review item {review_id} is {done}", job_id=item.job_id)
            if requested.act not in ACTS[item.kind]:
                takes = " or ".join(ACTS[item.kind])
                raise _not_applicable(item, f"an item of kind {item.kind} takes {takes}, not {requested.act}")
            return (await self._input(item, view, requested, who.name),)

        return act

    async def _input(self, item: ReviewItem, view: JobSnapshot, requested: RequestedAct, by: str) -> Input:
        why, caps = requested.reason, self._limits.of(view)
        match requested.act:
            case "retry":
                return Retry(by=by, reason=why, from_step=requested.from_step, item=item, caps=caps)
            case "skip":
                if view.job.review is None or view.job.review.review_id != item.review_id:
                    raise _not_applicable(item, "only the failure that ended the job can be skipped")
                return Skip(by=by, reason=why, result=requested.result, item=item, caps=caps)
            case "compensate":
                return Compensate(by=by, reason=why, item=item, caps=caps)
            case "adopt":
                kept = await self._kept(item)
                if kept is None:
                    raise _not_applicable(item, "the result that it is about is gone")
                key = await self._key(kept)
                return Adopt(kept=kept, by=by, reason=why, idempotency_key=key, item=item, caps=caps)
            case _:
                return Discard(item=item, by=by, reason=why)

    async def _find(self, review_id: str, who: Principal) -> ReviewItem:
        item = await self._reviews.review(review_id)
        if item is None or not who.sees(item.tenant_id):
            raise Rejected(RejectCode.REVIEW_NOT_FOUND, f"there is no review item {review_id[:256]}")
        return item

    async def _key(self, kept: Quarantined) -> str:
        """Return the idempotency key that the fenced attempt used; empty if the attempt is gone."""
        ended = await self._history.attempts(kept.job_id)
        lease = kept.lease_id
        return next((entry.attempt.idempotency_key for entry in ended if entry.attempt.lease_id == lease), "")

    async def _kept(self, item: ReviewItem) -> Quarantined | None:
        if item.kind is not ReviewKind.STALE_RESULT:
            return None
        named = (item.step_id, item.attempt_no, item.lease_id)
        kept = await self._history.quarantined(item.job_id)
        return next((entry for entry in kept if (entry.step_id, entry.attempt_no, entry.lease_id) == named), None)


def _seen_by(who: Principal, where: ReviewFilter) -> ReviewFilter:
    return where if who.every_tenant or where.tenants is not None else replace(where, tenants=who.tenants)


def _check(requested: RequestedAct) -> None:
    for name, value, act in (("from_step", requested.from_step, "retry"), ("result", requested.result, "skip")):
        if value is not None and value is not UNSET and requested.act != act:
            raise invalid(f"/{name}", f"is for {act}, not for {requested.act}")
    if requested.act == "skip" and requested.result is UNSET:
        raise invalid("/result", "say what the skipped step's result is; null if it has none")
    require_small(None if requested.result is UNSET else requested.result, MAX_SKIPPED_BYTES, "/result")


def kinds_for(act: str, kind: ReviewKind | None) -> frozenset[ReviewKind]:
    """Return the kinds that take the act. Raises Rejected if `kind` does not."""
    kinds = frozenset(other for other, acts in ACTS.items() if act in acts)
    if kind is not None and kind not in kinds:
        raise invalid("/kind", f"an item of kind {kind} takes {' or '.join(ACTS[kind])}, not {act}")
    return kinds


def invalid(pointer: str, message: str) -> Rejected:
    return Rejected(RejectCode.INVALID_ENVELOPE, f"{pointer}: {message}", [Fault(pointer, message)])


def _not_applicable(item: ReviewItem, why: str) -> Rejected:
    return Rejected(RejectCode.ACT_NOT_APPLICABLE, why, job_id=item.job_id)


def _effect_fields(effect: Effect) -> dict[str, Any]:
    return {
        "re_executes": list(effect.again[:MAX_SHOWN_STEPS]),
        "runs": list(effect.first[:MAX_SHOWN_STEPS]),
        "keeps": list(effect.kept[:MAX_SHOWN_STEPS]),
        "undoes": list(effect.undone[:MAX_SHOWN_STEPS]),
        "re_executes_total": len(effect.again),
        "keeps_total": len(effect.kept),
        "runs_total": len(effect.first),
        "undoes_total": len(effect.undone),
    }


def _item_view(item: ReviewItem) -> ReviewItemView:
    return ReviewItemView(**_item_fields(item))


def _item_fields(item: ReviewItem) -> dict[str, Any]:
    return {
        "review_id": item.review_id,
        "jobId": item.job_id,
        "tenant_id": item.tenant_id,
        "request_type": item.request_type,
        "kind": item.kind,
        "status": item.status,
        "signature": item.signature,
        "created_at": timestamp(item.created_at),
        "updated_at": timestamp(item.updated_at),
        "run_no": item.run_no,
        "stepId": item.step_id,
        "attempt_no": item.attempt_no,
        "failure_class": item.failure_class,
        "error": error_view(item.error),
        "resolved_by": item.resolved_by,
        "act": item.act,
        "reason": item.reason,
    }
