"""Makes the requests of one attempt at an external call or webhook, and maps the response to an outcome."""

import asyncio
import re
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lucius.core.decide.changeset import Changeset
from lucius.core.decide.values import MAX_VALUE_BYTES, values
from lucius.core.model.decision import Decision, Env, MissingSteps
from lucius.core.model.inputs import Failed, Succeeded
from lucius.core.model.records import ErrorInfo, Job, Millis, Request, Step
from lucius.core.model.statuses import FailureClass
from lucius.core.model.tools import ToolError
from lucius.core.policies.failure_classes import CODES, class_of_status
from lucius.core.protocol.definition import Call, Guard, items_of, spec_id
from lucius.core.steps.external_call import DEFAULT_TIMEOUT_MS
from lucius.ports.clock import Clock
from lucius.ports.errors import CallFailed, CallRefused
from lucius.ports.http import Caller, HttpResponse, Outgoing
from lucius.ports.ledger import Ledger
from lucius.usecases.json_values import MAX_DEPTH, too_deep

SLACK_MS: Millis = 2_000  # the core enforces a step's timeout_ms; this only ends requests that it has given up
MAX_MESSAGE_CHARS = 500
MAX_LOADS = 20

KNOWING = frozenset({404, 410})  # with these and 2xx, the response to a guard request is evaluated

_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

AttemptResult = Succeeded | Failed


class CallOutcome(Struct, frozen=True):
    """Outcome of the attempt, before it becomes an input of the core."""

    result: Any = None
    failure_class: FailureClass | None = None
    code: str = ""
    message: str = ""
    retry_after_ms: Millis | None = None
    sent: bool = True


class HttpAttempt:
    """Makes the requests of single attempts, without queueing."""

    def __init__(self, *, caller: Caller, ledger: Ledger, clock: Clock, env: Env) -> None:
        self._caller = caller
        self._ledger = ledger
        self._clock = clock
        self._env = env

    async def outcome(self, decision: Decision, step: Step) -> AttemptResult:
        """Make the attempt's requests and return the outcome; failures of the call are outcomes, too.

        `decision` is the one that handed the attempt over.
        """
        try:
            outcome = await self._make(decision, step)
        except CallRefused as refused:
            cause = FailureClass.NON_RETRYABLE
            outcome = CallOutcome(failure_class=cause, code=refused.code, message=refused.message, sent=False)
        except CallFailed as failed:
            cause = CODES.get(failed.code, FailureClass.TRANSIENT)
            outcome = CallOutcome(failure_class=cause, code=failed.code, message=failed.message, sent=failed.sent)
        except ToolError as error:
            outcome = CallOutcome(
                failure_class=FailureClass.NON_RETRYABLE, code="EXPRESSION_FAILED", message=str(error)
            )
        return _to_input(step, outcome)

    async def _make(self, decision: Decision, step: Step) -> CallOutcome:
        spec = decision.protocol.step(step.step_id)
        if spec is None or step.request is None:
            raise CallRefused("BAD_URL", "the step has no request")
        budget = _Budget(spec.timeout_ms + SLACK_MS if spec.timeout_ms else DEFAULT_TIMEOUT_MS)
        if spec.notify is not None:
            call = self._outgoing(decision.job, step, step.request, budget, sign_with=spec.notify.secret)
            answer = await self._caller.send(call)
            return CallOutcome({"status": answer.status}) if _is_fine(answer) else _by_status(answer, step.request)
        assert spec.external_call is not None, "only calls and webhooks are for lucius.http"
        guard = spec.external_call.guard
        if guard is not None and step.guard_request is not None and may_have_run(step):
            done = await self._guarded(decision.job, step, step.guard_request, guard, budget)
            if done is not None:
                return done
        answer = await self._caller.send(self._outgoing(decision.job, step, step.request, budget))
        return await self._mapped(step, spec.external_call, step.request, answer)

    def _outgoing(
        self, job: Job, step: Step, request: Request, budget: "_Budget", sign_with: str | None = None
    ) -> Outgoing:
        return Outgoing(
            method=request.method,
            url=request.url,
            headers=request.headers,
            body=request.body,
            timeout_ms=budget.left_ms(),
            idempotency_key=step.idempotency_key,
            fills_secrets=True,
            sign_with=sign_with,
            traceparent=job.command.traceparent,
            tracestate=job.command.tracestate,
            correlation_id=job.command.correlation_id,
        )

    async def _guarded(
        self, job: Job, step: Step, request: Request, guard: Guard, budget: "_Budget"
    ) -> CallOutcome | None:
        """Return the result of an earlier attempt; None if there is none, a failure if the guard can't tell."""
        asked = self._outgoing(job, step, request, budget)
        asked = replace(asked, idempotency_key=f"{asked.idempotency_key}-guard")  # not the call itself
        answer = await self._caller.send(asked)
        if not _is_fine(answer) and answer.status not in KNOWING:
            return _by_status(answer, request, "the guard request")
        if not await self._is_true(step, guard.done_when, answer):
            return None
        result = answer.body if guard.result is None else await self._evaluate(step, guard.result, answer)
        return _bounded(result)

    async def _mapped(self, step: Step, call: Call, request: Request, answer: HttpResponse) -> CallOutcome:
        for rule in call.errors:
            if await self._matches(step, rule.when, answer):
                return _failure(answer, request, rule.failure_class, rule.code)
        if not _is_fine(answer):
            return _by_status(answer, request)
        return _bounded(answer.body if call.result is None else await self._evaluate(step, call.result, answer))

    async def _matches(self, step: Step, expression: str, answer: HttpResponse) -> bool:
        """Return whether a rule matches. One that reads members which the response lacks does not."""
        try:
            return await self._evaluate(step, expression, answer) is True
        except ToolError:
            return False

    async def _is_true(self, step: Step, expression: str, answer: HttpResponse) -> bool:
        value = await self._evaluate(step, expression, answer)
        if not isinstance(value, bool):
            raise ToolError(f"must be true or false: {expression}")
        return value

    async def _evaluate(self, step: Step, expression: str, answer: HttpResponse) -> Any:
        """Evaluate an expression over the response and the values of the job. Raises ToolError."""
        tools = self._env.tools
        names = tools.names(expression) - {"response"}
        visible = await self._visible(step, names) if names else {}
        response = {"status": answer.status, "headers": answer.headers, "body": answer.body}
        return tools.evaluate(expression, {**visible, "response": response})

    async def _visible(self, step: Step, names: frozenset[str]) -> dict[str, Any]:
        """Return the values of the job that the expression names; only steps that these need are loaded."""
        wanted: set[str] = {step.step_id}
        for _ in range(MAX_LOADS):
            view = await self._ledger.load(step.job_id, wanted)
            assert view is not None, "a job does not vanish while it runs"
            changes = Changeset(view, self._clock.now(), self._env)
            try:
                return dict(values(changes, names, spec_id(step.step_id), items_of(step.step_id)))
            except MissingSteps as missing:
                wanted |= missing.step_ids
        raise ToolError("reads too many steps")


class _Budget:
    """Time limit that all requests of an attempt share."""

    def __init__(self, millis: Millis) -> None:
        self._ends_at = asyncio.get_running_loop().time() + millis / 1000

    def left_ms(self) -> Millis:
        return max(1, round((self._ends_at - asyncio.get_running_loop().time()) * 1000))


def may_have_run(step: Step) -> bool:
    """Return whether the same work was attempted before, in this visit or in a run that gave it up."""
    return step.tries > 1 or step.repeats


def _is_fine(answer: HttpResponse) -> bool:
    return 200 <= answer.status < 300


def _by_status(answer: HttpResponse, request: Request, what: str = "") -> CallOutcome:
    """Map the response by the table of statuses. A JSON body may have its own code, as problem documents do."""
    told = answer.body.get("code") if isinstance(answer.body, dict) else None
    code = told if isinstance(told, str) and _CODE.fullmatch(told) else f"HTTP_{answer.status}"
    return _failure(answer, request, class_of_status(answer.status, code), code, what)


def _is_problem(answer: HttpResponse) -> bool:
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media_type == "application/problem+json" and isinstance(answer.body, dict)


def _failure(answer: HttpResponse, request: Request, cause: FailureClass, code: str, what: str = "") -> CallOutcome:
    return CallOutcome(
        failure_class=cause,
        code=code,
        message=_summary(answer, what or request.method),
        retry_after_ms=answer.retry_after_ms,
    )


def _summary(answer: HttpResponse, what: str) -> str:
    """Describe the response: its status and, of a problem document, title and detail. Other bodies are kept private."""
    text = f"{what} was answered with {answer.status}"
    if _is_problem(answer):
        told = (answer.body.get(member) for member in ("title", "detail"))
        text = ": ".join([text, *(part for part in told if isinstance(part, str) and part)])
    return text[:MAX_MESSAGE_CHARS]


def _bounded(result: Any) -> CallOutcome:
    size = len(msgspec.json.encode(result))
    if size <= MAX_VALUE_BYTES and not too_deep(result):
        return CallOutcome(result)
    message = f"a result may have {MAX_VALUE_BYTES} bytes of JSON and {MAX_DEPTH} levels; this one has {size} bytes"
    return CallOutcome(failure_class=FailureClass.NON_RETRYABLE, code="RESULT_TOO_LARGE", message=message)


def failed_by(step: Step, error: Exception) -> AttemptResult:
    """Return the outcome for an unexpected error. The request may have been sent."""
    message = f"the call failed ({type(error).__name__})"
    return _to_input(step, CallOutcome(failure_class=FailureClass.TRANSIENT, code="CALL_FAILED", message=message))


def _to_input(step: Step, outcome: CallOutcome) -> AttemptResult:
    attempt = step.attempt
    if outcome.failure_class is None:
        return Succeeded(
            step_id=step.step_id, attempt_no=attempt.attempt_no, lease_id=attempt.lease_id, result=outcome.result
        )
    return Failed(
        step_id=step.step_id,
        attempt_no=attempt.attempt_no,
        lease_id=attempt.lease_id,
        failure_class=outcome.failure_class,
        error=ErrorInfo(outcome.code, outcome.message),
        retry_after_ms=outcome.retry_after_ms,
        extra={} if outcome.sent else {"sent": False},
    )
