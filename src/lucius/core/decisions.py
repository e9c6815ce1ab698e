"""A decision: the first choice that holds says where the job goes."""

from msgspec.structs import replace

from lucius.core import flow
from lucius.core.draft import Draft
from lucius.core.model import AttemptOutcome, ErrorInfo, Failure, FailureClass, StepStatus, Token
from lucius.core.protocol import FAIL, Decide, Place
from lucius.core.steps import new_step
from lucius.core.tools import ToolError
from lucius.core.values import evaluate


def begin(draft: Draft, place: Place, token: Token) -> None:
    step = new_step(draft, place, token, StepStatus.SUCCEEDED)
    assert place.spec.decision is not None, "a decision has choices"
    try:
        chosen = _choose(draft, place.spec.decision, place.spec.step_id, token.items)
    except ToolError as error:
        flow.fail_at_start(draft, step, ErrorInfo("EXPRESSION_FAILED", str(error)))
        return
    number, target = chosen
    attempt = replace(step.attempt, ended_at=draft.now, outcome=AttemptOutcome.SUCCEEDED)
    result = {"then": target, "choice": number}
    done = replace(step, attempt=attempt, result=result, completed_at=draft.now)
    draft.start_step(done)
    draft.emit("STEP_SUCCEEDED", done, then=target)
    if target == FAIL:
        failure = Failure(done.step_id, flow.said_so(done), FailureClass.NON_RETRYABLE)
        draft.change_job(failure=failure)
        flow.go(draft, done, FAIL, failure=failure)
    else:
        flow.succeeded(draft, done, target)


def _choose(draft: Draft, spec: Decide, step_id: str, items: tuple[int, ...]) -> tuple[int | None, str]:
    """The number of the choice taken, None for `otherwise`, and its target. Raises ToolError."""
    for number, choice in enumerate(spec.choices):
        value = evaluate(draft, choice.when, step_id, items)
        if not isinstance(value, bool):
            raise ToolError(f"choice {number} must be true or false: {choice.when}")
        if value:
            return number, choice.then
    return None, spec.otherwise
