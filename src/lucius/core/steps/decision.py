"""Decision steps: the first choice that is true selects the next step."""

from msgspec.structs import replace

from lucius.core.decide import step_completion
from lucius.core.decide.changeset import Changeset
from lucius.core.decide.values import evaluate
from lucius.core.model.records import ErrorInfo, Failure, Token
from lucius.core.model.statuses import AttemptOutcome, FailureClass, StepStatus
from lucius.core.model.tools import ToolError
from lucius.core.protocol.definition import FAIL, Decide, Place
from lucius.core.steps.new_step import new_step


def begin(changes: Changeset, place: Place, token: Token) -> None:
    step = new_step(changes, place, token, StepStatus.SUCCEEDED)
    assert place.spec.decision is not None, "a decision has choices"
    try:
        chosen = _choose(changes, place.spec.decision, place.spec.step_id, token.items)
    except ToolError as error:
        step_completion.fail_at_start(changes, step, ErrorInfo("EXPRESSION_FAILED", str(error)))
        return
    number, target = chosen
    attempt = replace(step.attempt, ended_at=changes.now, outcome=AttemptOutcome.SUCCEEDED)
    result = {"then": target, "choice": number}
    done = replace(step, attempt=attempt, result=result, completed_at=changes.now)
    changes.start_step(done)
    changes.emit("STEP_SUCCEEDED", done, then=target)
    if target == FAIL:
        failure = Failure(done.step_id, step_completion.flow_error(done), FailureClass.NON_RETRYABLE)
        changes.change_job(failure=failure)
        step_completion.add_token(changes, done, FAIL, failure=failure)
    else:
        step_completion.follow_success(changes, done, target)


def _choose(changes: Changeset, spec: Decide, step_id: str, items: tuple[int, ...]) -> tuple[int | None, str]:
    """Return number and target of the choice taken; the number is None for `otherwise`. Raises ToolError."""
    for number, choice in enumerate(spec.choices):
        value = evaluate(changes, choice.when, step_id, items)
        if not isinstance(value, bool):
            raise ToolError(f"choice {number} must be true or false: {choice.when}")
        if value:
            return number, choice.then
    return None, spec.otherwise
