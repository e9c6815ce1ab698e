"""The part of the message contract that is about what people do: control, approvals, reviews, audits.

Fields are only ever added.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from lucius.contract import BlockedOn, Error, Reason, StepInput, Timestamp

Act = Literal["retry", "skip", "compensate", "adopt", "discard"]
ReviewKindName = Literal["JOB_FAILED", "COMPENSATION", "POISON", "STALE_RESULT"]
Why = Annotated[str, Meta(max_length=1024, pattern=r"\S")]
StepName = Annotated[str, Meta(min_length=1, max_length=256)]
MAX_BULK = 500


class PauseRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """`reason` is kept with the job's events."""

    reason: Reason | None = None


class ResumeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Reason | None = None


class SignalRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`payload` becomes part of the result of the step that waits for the signal; 8 KiB at most."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    payload: Any = None
    reason: Reason | None = None


class RetryRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From the step that failed, with all before it kept, or from an earlier one."""

    reason: Reason | None = None
    from_step: StepName | None = None


class VoteRequest(Struct, frozen=True, forbid_unknown_fields=True):
    comment: Reason | None = None


class ReviewItemView(Struct, frozen=True, kw_only=True):
    """Something a person must look at. Items with the same `signature` have the same cause."""

    review_id: str
    jobId: str
    tenant_id: str
    request_type: str
    kind: str
    status: str
    signature: str
    created_at: Timestamp
    updated_at: Timestamp
    run_no: int
    stepId: str | None = None
    attempt_no: int | None = None
    failure_class: str | None = None
    error: Error | None = None
    resolved_by: str | None = None
    act: str = ""
    reason: str = ""


class ReviewEffect(Struct, frozen=True, kw_only=True):
    """What an act leads to, as far as it can be known before: where a protocol decides, every way is counted.

    `re_executes` ran before and would run again, `runs` would run for the first time, `keeps` stands as it is,
    `undoes` would be compensated, in this order. Long lists are cut; the totals are not.
    """

    re_executes: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    keeps: list[str] = field(default_factory=list)
    undoes: list[str] = field(default_factory=list)
    re_executes_total: int = 0
    keeps_total: int = 0
    runs_total: int = 0
    undoes_total: int = 0


class ReviewOption(ReviewEffect, frozen=True, kw_only=True):
    """One act, and whether the item takes it now."""

    act: str
    allowed: bool
    code: str | None = None
    message: str = ""


class ReviewDetail(ReviewItemView, frozen=True, kw_only=True):
    """An item with the state of its job. `quarantined` is what `adopt` would take."""

    job_status: str
    blocked_on: BlockedOn | None = None
    job_error: Error | None = None
    acts: list[ReviewOption] = field(default_factory=list)
    quarantined: StepInput | None = None


class ReviewList(Struct, frozen=True, kw_only=True):
    items: list[ReviewItemView]
    next_cursor: str | None


class ReviewGroupView(Struct, frozen=True, kw_only=True):
    signature: str
    kind: str
    count: int
    newest: ReviewItemView


class ReviewGroupList(Struct, frozen=True, kw_only=True):
    """The largest group first."""

    groups: list[ReviewGroupView]


class ReviewActRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`from_step` is for retry; `result`, of the step that is skipped, for skip, which must name it: it may be null.
    A dry run changes nothing."""

    reason: Why
    from_step: StepName | None = None
    result: Any | UnsetType = UNSET
    dry_run: bool = False


class ReviewBulkRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Items by their ids, or the newest open ones that fit what is said of `signature`, `kind` and `tenant_id`, and are
    of a kind that takes the act. With `cursor`, those after the ones that an earlier answer was about."""

    act: Act
    reason: Why
    dry_run: bool = False
    ids: Annotated[list[StepName], Meta(min_length=1, max_length=MAX_BULK)] | None = None
    signature: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    kind: ReviewKindName | None = None
    tenant_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_BULK)] = 100
    from_step: StepName | None = None
    result: Any | UnsetType = UNSET
    cursor: Annotated[str, Meta(max_length=256)] | None = None


class ReviewOutcome(ReviewEffect, frozen=True, kw_only=True):
    """What became of an item, or in a dry run would. Refused, `code` and `message` say why."""

    review_id: str
    act: str
    outcome: Literal["APPLIED", "WOULD", "REFUSED"]
    jobId: str | None = None
    job_status: str | None = None
    run_no: int | None = None
    code: str | None = None
    message: str = ""


class ReviewBulkAnswer(Struct, frozen=True, kw_only=True):
    """In the order of the ids, or newest first. `more` open items fit and were left for another call: with
    `next_cursor`, which gets past those that were refused."""

    results: list[ReviewOutcome]
    applied: int
    refused: int
    more: bool = False
    next_cursor: str | None = None


class ChainBreak(Struct, frozen=True):
    seq: int
    what: str


class AuditView(Struct, frozen=True, kw_only=True):
    """Whether a job's events are all there as they were written. `unsealed` are older than the hash chain."""

    jobId: str
    valid: bool
    events: int
    breaks: list[ChainBreak]
    unsealed: int = 0
