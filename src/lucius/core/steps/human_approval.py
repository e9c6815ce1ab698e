"""Approval steps: decided by enough different approvers, by one rejection, or by a timeout."""

from typing import Any

from msgspec.structs import replace

from lucius.core.decide import step_completion
from lucius.core.decide.changeset import Changeset
from lucius.core.decide.values import render, render_redacted, too_large, unescape_template
from lucius.core.model.decision import Applied, Refused, Reply
from lucius.core.model.inputs import CastVote
from lucius.core.model.records import ErrorInfo, Step, Token, Vote
from lucius.core.model.statuses import AttemptOutcome, FailureClass, StepStatus
from lucius.core.model.tools import ToolError
from lucius.core.protocol.definition import Approval, Place
from lucius.core.protocol.redaction import MASK
from lucius.core.steps.new_step import new_step


def begin(changes: Changeset, place: Place, token: Token) -> None:
    spec = place.spec
    step = new_step(changes, place, token, StepStatus.AWAITING_APPROVAL)
    assert spec.human_approval is not None, "an approval has its approvers"
    try:
        prompt = _prompt(changes, spec.human_approval, spec.step_id, token.items)
    except ToolError as error:
        step_completion.fail_at_start(changes, step, ErrorInfo("TEMPLATE_FAILED", str(error)))
        return
    wake_at = changes.now + spec.timeout_ms if spec.timeout_ms else None
    step = replace(step, wake_at=wake_at, result={"prompt": prompt} if prompt else None)
    changes.start_step(step)
    changes.emit("APPROVAL_REQUESTED", step, approvers=list(spec.human_approval.approvers), until=wake_at)


def _prompt(changes: Changeset, approval: Approval, step_id: str, items: tuple[int, ...]) -> Any:
    """Render the prompt with the redacted payload, since views and archives show it. Raises ToolError."""
    prompt = unescape_template(render(changes, approval.prompt, step_id, items))
    if changes.protocol.redact:
        try:
            prompt = unescape_template(render_redacted(changes, approval.prompt, step_id, items))
        except ToolError:  # it computes with a redacted value
            prompt = MASK
    if size := too_large(prompt):
        raise ToolError(f"the prompt has {size} bytes; name what is large instead of showing it")
    return prompt


def receive(changes: Changeset, vote: CastVote) -> Reply:
    step = changes.current(vote.step_id) if vote.step_id.partition(".")[0] in changes.protocol.plan.places else None
    if step is None or step.kind != "human_approval":
        return Refused("STEP_NOT_FOUND", f"job {changes.job.job_id} has no approval {vote.step_id} that was asked for")
    if step.status is not StepStatus.AWAITING_APPROVAL or changes.cancelling:
        return Refused("APPROVAL_ENDED", f"approval {vote.step_id} is {step.status} already")
    approval = changes.spec(step).human_approval
    assert approval is not None, "a step of this kind has its member"
    if _is_decided(step, approval):
        return Refused("APPROVAL_ENDED", f"approval {vote.step_id} is decided already, and takes effect on resume")
    if refused := _refuse_voter(changes, step, approval, vote):
        return refused
    cast = Vote(vote.by, vote.approves, changes.now, vote.comment)
    changed = changes.change_step(step, votes=(*step.votes, cast))
    name = "APPROVED" if vote.approves else "REJECTED"
    changes.emit(f"STEP_{name}", changed, by=vote.by, comment=vote.comment)
    if changes.job.paused is None:
        count_votes(changes, changed)
    return Applied()


def _refuse_voter(changes: Changeset, step: Step, approval: Approval, vote: CastVote) -> Refused | None:
    if not {vote.by, *vote.groups} & set(approval.approvers):
        wanted = ", ".join(approval.approvers)
        return Refused("NOT_AN_APPROVER", f"{vote.by} is none of those who may approve {step.step_id}: {wanted}")
    if approval.four_eyes and vote.by == changes.job.command.submitted_by:
        return Refused("NOT_AN_APPROVER", f"{vote.by} submitted this job and may not approve it too")
    if any(earlier.by == vote.by for earlier in step.votes):
        return Refused("ALREADY_VOTED", f"{vote.by} has voted on {step.step_id} already")
    return None


def _is_decided(step: Step, approval: Approval) -> bool:
    return len(step.votes) >= approval.quorum or not all(vote.approves for vote in step.votes)


def count_votes(changes: Changeset, step: Step) -> bool:
    """Complete or fail the step if the votes decide it; return whether they did."""
    approval = changes.spec(step).human_approval
    assert approval is not None, "a step of this kind has its member"
    rejected = next((vote for vote in step.votes if not vote.approves), None)
    if rejected is not None:
        message = f"rejected by {rejected.by}" + (f": {rejected.comment}" if rejected.comment else "")
        _fail(changes, step, AttemptOutcome.REJECTED, ErrorInfo("REJECTED", message))
        return True
    if len(step.votes) < approval.quorum:
        return False
    approvals = [{"by": vote.by, "comment": vote.comment, "at": vote.at} for vote in step.votes]
    step_completion.complete(changes, step, {**(step.result or {}), "approvals": approvals})
    return True


def time_out(changes: Changeset, step: Step) -> None:
    # Error messages of attempts are part of the event hash: a change breaks replays of running workflows.
    _fail(changes, step, AttemptOutcome.STEP_TIMEOUT, ErrorInfo("APPROVAL_TIMEOUT", "nobody decided in time"))


def _fail(changes: Changeset, step: Step, outcome: AttemptOutcome, error: ErrorInfo) -> None:
    step_completion.fail(changes, step, outcome, FailureClass.NON_RETRYABLE, error)
