"""Approvals: enough different people say yes, one says no, or time runs out."""

from typing import Any

from msgspec.structs import replace

from lucius.core import flow
from lucius.core.decision import Applied, Refused, Reply
from lucius.core.draft import Draft
from lucius.core.inputs import CastVote
from lucius.core.model import (
    AttemptOutcome,
    ErrorInfo,
    FailureClass,
    Step,
    StepStatus,
    Token,
    Vote,
)
from lucius.core.protocol import Approval, Place
from lucius.core.steps import new_step
from lucius.core.tools import ToolError
from lucius.core.values import plain, render, too_large


def begin(draft: Draft, place: Place, token: Token) -> None:
    spec = place.spec
    step = new_step(draft, place, token, StepStatus.AWAITING_APPROVAL)
    assert spec.human_approval is not None, "an approval says who may give it"
    try:
        prompt = _prompt(draft, spec.human_approval, spec.step_id, token.items)
    except ToolError as error:
        flow.fail_at_start(draft, step, ErrorInfo("TEMPLATE_FAILED", str(error)))
        return
    wake_at = draft.now + spec.timeout_ms if spec.timeout_ms else None
    step = replace(step, wake_at=wake_at, result={"prompt": prompt} if prompt else None)
    draft.start_step(step)
    draft.emit("APPROVAL_REQUESTED", step, approvers=list(spec.human_approval.approvers), until=wake_at)


def _prompt(draft: Draft, approval: Approval, step_id: str, items: tuple[int, ...]) -> Any:
    """Raises ToolError."""
    prompt = plain(render(draft, approval.prompt, step_id, items))
    if size := too_large(prompt):
        raise ToolError(f"the prompt has {size} bytes; name what is large instead of showing it")
    return prompt


def receive(draft: Draft, vote: CastVote) -> Reply:
    step = draft.current(vote.step_id) if vote.step_id.partition(".")[0] in draft.protocol.plan.places else None
    if step is None or step.kind != "human_approval":
        return Refused("STEP_NOT_FOUND", f"job {draft.job.job_id} has no approval {vote.step_id} that was asked for")
    if step.status is not StepStatus.AWAITING_APPROVAL or draft.cancelling:
        return Refused("APPROVAL_ENDED", f"approval {vote.step_id} is {step.status} already")
    approval = draft.spec(step).human_approval
    assert approval is not None, "a step of this kind has its member"
    if _is_decided(step, approval):
        return Refused("APPROVAL_ENDED", f"approval {vote.step_id} is decided already, and takes effect on resume")
    if refused := _may_not(draft, step, approval, vote):
        return refused
    cast = Vote(vote.by, vote.approves, draft.now, vote.comment)
    changed = draft.change_step(step, votes=(*step.votes, cast))
    name = "APPROVED" if vote.approves else "REJECTED"
    draft.emit(f"STEP_{name}", changed, by=vote.by, comment=vote.comment)
    if draft.job.paused is None:
        count(draft, changed)
    return Applied()


def _may_not(draft: Draft, step: Step, approval: Approval, vote: CastVote) -> Refused | None:
    if not {vote.by, *vote.groups} & set(approval.approvers):
        wanted = ", ".join(approval.approvers)
        return Refused("NOT_AN_APPROVER", f"{vote.by} is none of those who may approve {step.step_id}: {wanted}")
    if approval.four_eyes and vote.by == draft.job.command.submitted_by:
        return Refused("NOT_AN_APPROVER", f"{vote.by} submitted this job and may not approve it too")
    if any(earlier.by == vote.by for earlier in step.votes):
        return Refused("ALREADY_VOTED", f"{vote.by} has voted on {step.step_id} already")
    return None


def _is_decided(step: Step, approval: Approval) -> bool:
    return len(step.votes) >= approval.quorum or not all(vote.approves for vote in step.votes)


def count(draft: Draft, step: Step) -> bool:
    """Whether the votes so far decide it; if so, the job goes on."""
    approval = draft.spec(step).human_approval
    assert approval is not None, "a step of this kind has its member"
    rejected = next((vote for vote in step.votes if not vote.approves), None)
    if rejected is not None:
        message = f"rejected by {rejected.by}" + (f": {rejected.comment}" if rejected.comment else "")
        _fail(draft, step, AttemptOutcome.REJECTED, ErrorInfo("REJECTED", message))
        return True
    if len(step.votes) < approval.quorum:
        return False
    said = [{"by": vote.by, "comment": vote.comment, "at": vote.at} for vote in step.votes]
    flow.complete(draft, step, {**(step.result or {}), "approvals": said})
    return True


def time_out(draft: Draft, step: Step) -> None:
    _fail(draft, step, AttemptOutcome.STEP_TIMEOUT, ErrorInfo("APPROVAL_TIMEOUT", "nobody decided in time"))


def _fail(draft: Draft, step: Step, outcome: AttemptOutcome, error: ErrorInfo) -> None:
    flow.fail(draft, step, outcome, FailureClass.NON_RETRYABLE, error)
