"""Messages of operators and approvers: job control, approvals, reviews, audits. Fields are only ever added."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from lucius.contract.directives import StepInput
from lucius.contract.fields import Error, Reason, Timestamp
from lucius.contract.views import BlockedOn

Act = Literal["retry", "skip", "compensate", "adopt", "discard"]
ReviewKindName = Literal["JOB_FAILED", "COMPENSATION", "POISON", "STALE_RESULT"]
Why = Annotated[str, Meta(max_length=1024, pattern=r"\S")]
StepName = Annotated[str, Meta(min_length=1, max_length=256)]
MAX_BULK_ITEMS = 500


class PauseRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Pauses a job. `reason` is recorded in the job's events."""

    reason: Reason | None = None


class ResumeRequest(Struct, frozen=True, forbid_unknown_fields=True):
    reason: Reason | None = None


class SignalRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sends a signal to a job. `payload`, at most 8 KiB, becomes part of the result of the step that waits for it."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    payload: Any = None
    reason: Reason | None = None


class RetryRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Opens a new run, from the failed step or from `from_step`. Results of earlier steps are kept."""

    reason: Reason | None = None
    from_step: StepName | None = None


class VoteRequest(Struct, frozen=True, forbid_unknown_fields=True):
    comment: Reason | None = None


class ReviewItemView(Struct, frozen=True, kw_only=True):
    """Review item: something an operator must decide about. Items with the same `signature` have the same cause."""

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
    """Steps that an act would affect. After a decision step, the steps of every branch are listed.

    `re_executes` lists steps that ran before and would run again, `runs` steps that would run for the first time,
    `keeps` steps whose results would be kept, and `undoes` steps that would be compensated, in this order. Long lists
    are truncated; the totals are not.
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
    """An act, its effect, and whether it is allowed now; otherwise `code` and `message` give the reason."""

    act: str
    allowed: bool
    code: str | None = None
    message: str = ""


class ReviewDetail(ReviewItemView, frozen=True, kw_only=True):
    """A review item with the state of its job. `quarantined` is the result that `adopt` would use."""

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
    """Groups of review items with the same signature, the largest first."""

    groups: list[ReviewGroupView]


class ReviewActRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Acts on a review item. `from_step` is for `retry` only. `skip` requires `result`, the result of the skipped step,
    which may be null. With `dry_run` nothing changes."""

    reason: Why
    from_step: StepName | None = None
    result: Any | UnsetType = UNSET
    dry_run: bool = False


class ReviewBulkRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Acts on several review items: those in `ids`, or the newest open ones that match `signature`, `kind` and
    `tenant_id` and allow the act. `cursor` continues after an earlier answer."""

    act: Act
    reason: Why
    dry_run: bool = False
    ids: Annotated[list[StepName], Meta(min_length=1, max_length=MAX_BULK_ITEMS)] | None = None
    signature: Annotated[str, Meta(min_length=1, max_length=512)] | None = None
    kind: ReviewKindName | None = None
    tenant_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_BULK_ITEMS)] = 100
    from_step: StepName | None = None
    result: Any | UnsetType = UNSET
    cursor: Annotated[str, Meta(max_length=256)] | None = None


class ReviewOutcome(ReviewEffect, frozen=True, kw_only=True):
    """Outcome of an act on one review item: applied, refused, or what a dry run would do (`WOULD`). For a refused act
    `code` and `message` give the reason."""

    review_id: str
    act: str
    outcome: Literal["APPLIED", "WOULD", "REFUSED"]
    jobId: str | None = None
    job_status: str | None = None
    run_no: int | None = None
    code: str | None = None
    message: str = ""


class ReviewBulkAnswer(Struct, frozen=True, kw_only=True):
    """Outcomes in the order of `ids`, or newest first. If `more`, further open items match; request them with
    `next_cursor`, which skips refused items."""

    results: list[ReviewOutcome]
    applied: int
    refused: int
    more: bool = False
    next_cursor: str | None = None


class ChainBreak(Struct, frozen=True):
    """Position at which a job's hash chain is broken, and the reason."""

    seq: int
    what: str


class AuditView(Struct, frozen=True, kw_only=True):
    """Result of verifying the hash chain of a job's events. `unsealed` counts events older than hash chains."""

    jobId: str
    valid: bool
    events: int
    breaks: list[ChainBreak]
    unsealed: int = 0


class WebhookSecretList(Struct, frozen=True, kw_only=True):
    """Secrets that sign a tenant's webhooks (`whsec_…`), newest first. During a rotation there are several."""

    tenant_id: str
    secrets: list[str]
