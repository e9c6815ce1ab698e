"""Cases that a service must survive: refused callbacks and malformed directives."""

import msgspec

from lucius.conformance.attempt_log import CallbackResponse, PlayedAttempt, ReceivedCallback, problem
from lucius.conformance.case import Case
from lucius.conformance.case_env import CaseEnv, summarize_callbacks
from lucius.conformance.directives import malformed_messages
from lucius.conformance.feed import QueuedMessage
from lucius.conformance.model import CaseFailed
from lucius.conformance.server import Pull, ResponseOverride

MAX_TRIES_WHEN_REFUSED = 3
REFUSED_SECONDS = 3.0


async def refused_callbacks(env: CaseEnv) -> str:
    """Refuse the tokens of two attempts, as if they had been corrupted in transit."""
    await env.start()
    refused = [_refusing(env, 401), _refusing(env, 403)]
    good = [env.make() for _ in range(3)]
    for attempt in (good[0], refused[0], good[1], refused[1], good[2]):
        env.send(attempt)
    for attempt in good:
        await env.wait_for_result(attempt)
    await env.watch(REFUSED_SECONDS)
    afterwards = env.send(env.make())
    await env.wait_for_result(afterwards)
    for attempt in refused:
        for kind in ("ack", "heartbeat", "result"):
            tries = [callback for callback in attempt.callbacks if callback.kind == kind]
            if len(tries) > MAX_TRIES_WHEN_REFUSED:
                raise CaseFailed(
                    f"that a callback answered {tries[0].status} is not repeated: a retry cannot help",
                    f"{len(tries)} times the same {kind.upper()} in {tries[-1].at - tries[0].at:.1f} s",
                )
    refusals = "; ".join(
        f"{attempt.callbacks[0].status}: {len(attempt.callbacks)} tries" for attempt in refused if attempt.callbacks
    )
    return f"{len(good) + 1} others succeeded, each with its own token; {refusals}"


def _refusing(env: CaseEnv, status: int) -> PlayedAttempt:
    code = "INVALID_CALLBACK_TOKEN" if status == 401 else "CALLBACK_TOKEN_MISMATCH"

    def refuse(callback: ReceivedCallback) -> CallbackResponse:
        return problem(status, code, "a simulated refusal")

    attempt = env.make()
    attempt.answers = refuse
    return attempt


async def malformed(env: CaseEnv) -> str:
    await env.start()
    good = [env.make() for _ in range(3)]
    template = env.make()
    template.is_malformed = True
    others = _of_another_service(env)
    unknown = _of_unknown_type(env)
    env.send(good[0])
    for _, message in malformed_messages(template.directive):
        env.feed.send(QueuedMessage(message))
    env.send(others)
    env.send(unknown)
    env.send(good[1])
    await env.wait_for_result(good[0])
    await env.wait_for_result(good[1])
    if env.feed.pulled_over_http:
        await _garbage(env)
    good[2].directive |= {"x_new": {"nested": [1, 2]}, "x_flag": True}
    env.send(good[2])
    await env.wait_for_result(good[2])
    if _succeeded(others):
        raise CaseFailed(
            "that a directive for another service is not executed", f"it was: {summarize_callbacks(others)}"
        )
    if _succeeded(template):
        env.warn("a directive that does not fit the contract was executed")
    count = sum(1 for _ in malformed_messages(template.directive))
    return f"{count} malformed directives and an HTML page survived, {len(good)} valid ones executed"


def _succeeded(attempt: PlayedAttempt) -> bool:
    return any(callback.body.get("status") == "SUCCEEDED" for callback in attempt.results)


def _of_another_service(env: CaseEnv) -> PlayedAttempt:
    attempt = env.make()
    attempt.directive["service"] = f"not-{attempt.directive['service']}"
    return attempt


def _of_unknown_type(env: CaseEnv) -> PlayedAttempt:
    """Create an attempt with an unknown step type, which may be ignored, failed or executed."""
    attempt = env.make()
    attempt.directive["step_type"] = "NO_SUCH_STEP_TYPE"
    return attempt


async def _garbage(env: CaseEnv) -> None:
    """Answer two pulls with 200 and an unusable body, one as an intermediary would; the next ones are normal."""
    pages = [b"<html><body>Welcome to the hotel's network</body></html>", msgspec.json.encode({"directives": 7})]
    seen = len(env.server.pulls)

    def interrupt(pull: Pull) -> ResponseOverride | None:
        return ResponseOverride(body=pages.pop()) if pages else None

    env.server.on_pull = interrupt
    env.server.answers_at_once = True  # ends the pending long poll

    def went_on() -> bool:
        return not pages and len(env.server.pulls) > seen

    await env.require(went_on, "that the service continues to pull", lambda: "it did not", takes=0.0)
    env.server.answers_at_once = False


CASES = [
    Case(
        id="refused-callbacks",
        title="Callbacks carry their own attempt's token, and are not repeated when it is refused",
        play=refused_callbacks,
        seconds=4.5,
    ),
    Case(
        id="malformed",
        title="Malformed directives affect neither valid ones nor the process",
        play=malformed,
        seconds=3.0,
    ),
]
