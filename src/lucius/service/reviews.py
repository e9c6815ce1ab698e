"""The review queue: what people must look at, what they can do about it, and doing it."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from lucius.contract import Fault, StepInput
from lucius.contract_control import ReviewDetail, ReviewGroupView, ReviewItemView, ReviewOption, ReviewOutcome
from lucius.core.decision import Decision, JobView
from lucius.core.inputs import Adopt, Compensate, Discard, Input, Retry, Skip
from lucius.core.model import Quarantined, ReviewItem, ReviewKind, ReviewStatus
from lucius.ports.errors import LedgerError
from lucius.ports.ledger import Reader, ReviewFilter, ReviewReader
from lucius.service.acts import MAX_SKIPPED_BYTES, Limits, carry_out, require_accepted, require_room, require_small
from lucius.service.auth import Principal
from lucius.service.errors import RejectCode, Rejected
from lucius.service.jobs import Inputs, Jobs
from lucius.service.queries import Queries
from lucius.service.replay import Effect, effect_of
from lucius.service.review_views import effect_fields, item_fields, item_view

AT_ONCE = 25
ACTS: dict[ReviewKind, tuple[str, ...]] = {
    ReviewKind.JOB_FAILED: ("retry", "skip", "compensate", "discard"),
    ReviewKind.POISON: ("retry", "skip", "compensate", "discard"),
    ReviewKind.COMPENSATION: ("retry", "skip", "compensate", "discard"),
    ReviewKind.STALE_RESULT: ("adopt", "discard"),
}


class Asked(Struct, frozen=True, kw_only=True):
    """What a person wants done about an item, and why."""

    act: str
    reason: str
    from_step: str | None = None
    result: Any = UNSET
    dry_run: bool = False


Outcome = ReviewOutcome | Rejected | LedgerError


class Reviews:
    """Nobody sees an item of a tenant they have no key for. Raises Rejected."""

    def __init__(self, reader: Reader, reviews: ReviewReader, jobs: Jobs, queries: Queries, limits: Limits) -> None:
        self._reader = reader
        self._reviews = reviews
        self._jobs = jobs
        self._queries = queries
        self._limits = limits

    async def page(
        self, who: Principal, where: ReviewFilter, limit: int, cursor: str | None
    ) -> tuple[list[ReviewItemView], str | None]:
        try:
            page = await self._reviews.reviews(_seen_by(who, where), limit, cursor)
        except ValueError as error:
            raise Rejected(RejectCode.INVALID_CURSOR, str(error)) from None
        return [item_view(item) for item in page.items], page.next_cursor

    async def groups(self, who: Principal, where: ReviewFilter, limit: int) -> list[ReviewGroupView]:
        found = await self._reviews.review_groups(_seen_by(who, where), limit)
        return [
            ReviewGroupView(
                signature=group.signature, kind=group.kind, count=group.count, newest=item_view(group.newest)
            )
            for group in found
        ]

    async def show(self, review_id: str, who: Principal) -> ReviewDetail:
        """The item, the state of its job, and what each act would lead to."""
        item = await self._find(review_id, who)
        job = await self._queries.job(item.job_id, who)
        kept = await self._kept(item)
        acts = ACTS[item.kind] if item.status is ReviewStatus.OPEN else ()
        return ReviewDetail(
            **item_fields(item),
            job_status=job.status,
            blocked_on=job.blocked_on,
            job_error=job.error,
            acts=[await self._option(item, act, who) for act in acts],
            quarantined=StepInput(kept.result, kept.artifact_refs) if kept else None,
        )

    async def _option(self, item: ReviewItem, act: str, who: Principal) -> ReviewOption:
        try:
            _, effect = await self._weigh(item, Asked(act=act, reason="", result=None), who, Counter())
        except Rejected as refused:
            return ReviewOption(act=act, allowed=False, code=refused.code, message=refused.detail)
        return ReviewOption(act=act, allowed=True, **effect_fields(effect))

    async def act(
        self, review_id: str, asked: Asked, who: Principal, planned: Counter[str] | None = None
    ) -> ReviewOutcome:
        """In a dry run `planned` is what acts before this one would add to the jobs in flight."""
        _check(asked)
        item = await self._find(review_id, who)
        if asked.dry_run:
            decision, effect = await self._weigh(item, asked, who, Counter() if planned is None else planned)
        else:
            before = await self._whole(item)
            decision = await carry_out(self._jobs, item.job_id, self._inputs(item.review_id, asked, who), item.step_id)
            effect = effect_of(before, decision, asked.from_step)
        return ReviewOutcome(
            review_id=review_id,
            act=asked.act,
            outcome="WOULD" if asked.dry_run else "APPLIED",
            jobId=item.job_id,
            job_status=decision.job.status,
            run_no=decision.job.run_no,
            **effect_fields(effect),
        )

    async def act_on_all(self, review_ids: Sequence[str], asked: Asked, who: Principal) -> list[Outcome]:
        """Each on its own, in order; one that is refused does not touch others."""
        _check(asked)
        if asked.dry_run:
            planned: Counter[str] = Counter()
            return [await self._outcome(review_id, asked, who, planned) for review_id in review_ids]
        outcomes: list[Outcome] = []
        for i in range(0, len(review_ids), AT_ONCE):
            batch = review_ids[i : i + AT_ONCE]
            outcomes += await asyncio.gather(*(self._outcome(review_id, asked, who) for review_id in batch))
        return outcomes

    async def _outcome(
        self, review_id: str, asked: Asked, who: Principal, planned: Counter[str] | None = None
    ) -> Outcome:
        try:
            return await self.act(review_id, asked, who, planned)
        except (Rejected, LedgerError) as refusal:
            return refusal

    async def _weigh(
        self, item: ReviewItem, asked: Asked, who: Principal, planned: Counter[str]
    ) -> tuple[Decision, Effect]:
        before = await self._whole(item)
        decision = await self._jobs.weigh(
            item.job_id, self._inputs(item.review_id, asked, who), item.step_id, fresh=True
        )
        require_accepted(decision.reply, item.job_id)
        counters = await self._reader.counters(*(cap.counter for cap in decision.caps))
        require_room(decision, Counter(counters) + planned)
        planned.update(decision.counters)
        return decision, effect_of(before, decision, asked.from_step)

    async def _whole(self, item: ReviewItem) -> JobView:
        view = await self._reader.job(item.job_id)
        if view is None:
            raise Rejected(RejectCode.JOB_NOT_FOUND, f"there is no job {item.job_id}")
        return view

    def _inputs(self, review_id: str, asked: Asked, who: Principal) -> Inputs:
        """The item is read after its job, in whose commits alone it changes: if it is old, so is the job's version."""

        async def act(view: JobView) -> Sequence[Input]:
            item = await self._find(review_id, who)
            if item.status is not ReviewStatus.OPEN:
                done = f"{item.status} already, by {item.resolved_by}"
                raise Rejected(RejectCode.REVIEW_CLOSED, f"review item {review_id} is {done}", job_id=item.job_id)
            if asked.act not in ACTS[item.kind]:
                takes = " or ".join(ACTS[item.kind])
                raise _not_applicable(item, f"an item of kind {item.kind} takes {takes}, not {asked.act}")
            return (await self._input(item, view, asked, who.name),)

        return act

    async def _input(self, item: ReviewItem, view: JobView, asked: Asked, by: str) -> Input:
        why, caps = asked.reason, self._limits.of(view)
        match asked.act:
            case "retry":
                return Retry(by=by, reason=why, from_step=asked.from_step, item=item, caps=caps)
            case "skip":
                if view.job.review is None or view.job.review.review_id != item.review_id:
                    raise _not_applicable(item, "only the failure that ended the job can be skipped")
                return Skip(by=by, reason=why, result=asked.result, item=item, caps=caps)
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
        """The idempotency key that the fenced attempt worked under."""
        ended = await self._reader.attempts(kept.job_id)
        lease = kept.lease_id
        return next((entry.attempt.idempotency_key for entry in ended if entry.attempt.lease_id == lease), "")

    async def _kept(self, item: ReviewItem) -> Quarantined | None:
        if item.kind is not ReviewKind.STALE_RESULT:
            return None
        named = (item.step_id, item.attempt_no, item.lease_id)
        kept = await self._reader.quarantined(item.job_id)
        return next((entry for entry in kept if (entry.step_id, entry.attempt_no, entry.lease_id) == named), None)


def _seen_by(who: Principal, where: ReviewFilter) -> ReviewFilter:
    return where if who.every_tenant or where.tenants is not None else replace(where, tenants=who.tenants)


def _check(asked: Asked) -> None:
    for name, value, act in (("from_step", asked.from_step, "retry"), ("result", asked.result, "skip")):
        if value is not None and value is not UNSET and asked.act != act:
            raise invalid(f"/{name}", f"is for {act}, not for {asked.act}")
    if asked.act == "skip" and asked.result is UNSET:
        raise invalid("/result", "say what the skipped step's result is; null if it has none")
    require_small(None if asked.result is UNSET else asked.result, MAX_SKIPPED_BYTES, "/result")


def kinds_for(act: str, kind: ReviewKind | None) -> frozenset[ReviewKind]:
    """Raises Rejected for a kind that does not take the act."""
    kinds = frozenset(other for other, acts in ACTS.items() if act in acts)
    if kind is not None and kind not in kinds:
        raise invalid("/kind", f"an item of kind {kind} takes {' or '.join(ACTS[kind])}, not {act}")
    return kinds


def invalid(pointer: str, message: str) -> Rejected:
    return Rejected(RejectCode.INVALID_ENVELOPE, f"{pointer}: {message}", [Fault(pointer, message)])


def _not_applicable(item: ReviewItem, why: str) -> Rejected:
    return Rejected(RejectCode.ACT_NOT_APPLICABLE, why, job_id=item.job_id)
