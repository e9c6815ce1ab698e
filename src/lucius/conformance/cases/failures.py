"""Cases about failed steps: the next attempt must be executed, and a failure remembered like a success.

An attempt is made to fail by the author's --bad-payload, or by cancelling it while it runs.
"""

from collections.abc import Sequence

from lucius.conformance.attempt_log import CallbackResponse, PlayedAttempt, ReceivedCallback, answer
from lucius.conformance.case import Case
from lucius.conformance.case_env import CaseEnv, describe, require_not_refused, summarize_callbacks
from lucius.conformance.cases.fencing import wait_for_heartbeat
from lucius.conformance.directives import timestamp_in
from lucius.conformance.evidence import IN_FLIGHT_SECONDS, MIN_SLOW_RATIO, executed_again, marks, require_slow, took
from lucius.conformance.model import CaseFailed, Skipped
from lucius.conformance.server import ResponseOverride

LEASE_SECONDS = 1.0
QUIET_SECONDS = 1.5
MARGIN_SECONDS = 0.6


async def retried(env: CaseEnv) -> str:
    """Check that attempt 2 is executed although it carries the same idempotency_key as attempt 1."""
    first = await _start_failing(env)
    callback = await _fail(env, first)
    await env.watch(2 * IN_FLIGHT_SECONDS)  # the answer to its RESULT must reach it
    second = env.send(env.make(after=first))
    await env.wait_for_result(second)
    again = second.results[0]
    if again.content == callback.content:
        raise CaseFailed(
            f"that {describe(second)} is executed, though attempt 1 has failed",
            "it returned attempt 1's RESULT; an attempt is identified by jobId, stepId, attempt_no and lease_id, while"
            " idempotency_key is the same in all attempts of a step",
        )
    require_not_refused(second)
    return f"attempt 1 ended {_outcome(callback)}, attempt 2 {_outcome(again)} after {took(second):.1f} s"


async def duplicate_failed(env: CaseEnv) -> str:
    """Check that a failed attempt is not repeated. It is cancelled, so a repeat would take longer and end otherwise."""
    await env.start(slow=2.0)
    attempt = env.make(lease=LEASE_SECONDS)
    attempt.answers = lambda callback: _apply_heartbeat(attempt, callback)
    callback = await _cancel(env, attempt)
    attempt.cancel_requested = False
    await env.watch(2 * IN_FLIGHT_SECONDS)
    before = marks(attempt)
    for copies, restart in ((2, False), (3, True)):
        if restart:
            await env.restart()
        env.send(attempt)
        await env.wait_for_redelivery(attempt, copies)
        await env.watch(max(QUIET_SECONDS, 0.75 * env.slow))
        if signs := executed_again(attempt, attempt.handed_over[copies - 1], before, env.slow):
            when = "after a restart" if restart else "after its end"
            raise CaseFailed(
                f"that {describe(attempt)}, which failed, is not executed when its directive comes again {when}",
                f"it was: {' and '.join(signs)}",
            )
    return f"{_outcome(callback)}, and not executed again, before and after a restart"


async def killed_failed(env: CaseEnv) -> str:
    """Check that a failure RESULT survives a kill. It is answered 503 until then, so it must be on disk."""
    attempt = await _start_failing(env)

    def refuse(callbacks: Sequence[ReceivedCallback]) -> ResponseOverride | None:
        mine = any(callback.token == attempt.token and callback.kind == "result" for callback in callbacks)
        return ResponseOverride(status=503, retry_after=1) if mine else None

    env.server.on_callbacks = refuse
    callback = await _fail(env, attempt)
    attempt.lease_until = None  # the duration of the restart must not count
    await env.kill()
    env.server.on_callbacks = lambda _: None
    await env.start(slow=env.slow)
    expected = f"the RESULT of {describe(attempt)}, which failed before the kill, from the data folder"
    await env.require(lambda: attempt.ended_by is not None, expected, lambda: summarize_callbacks(attempt), takes=0.0)
    env.send(attempt)
    await env.wait_for_redelivery(attempt)
    await env.watch(QUIET_SECONDS)
    return f"{_outcome(callback)}, sent again unchanged after the restart"


async def guarded(env: CaseEnv) -> str:
    """Check that attempt 2 with a guard detects attempt 1's success, or fails as NON_RETRYABLE."""
    await env.start(slow=2.0)
    first = env.make()
    first.directive["retry_safety"] = "SAFE_TO_RETRY_WITH_GUARD"
    env.send(first)
    await env.wait_for_result(first)
    require_not_refused(first)
    require_slow(first, env.slow)
    await env.watch(2 * IN_FLIGHT_SECONDS)
    second = env.make(after=first, lease=LEASE_SECONDS)
    second.directive |= {"retry_safety": "SAFE_TO_RETRY_WITH_GUARD", "guard": {"previous_attempts": 1}}
    before = marks(second)
    env.send(second)
    await env.wait_for_result(second)
    callback = second.results[0]
    if callback.body["status"] != "SUCCEEDED":
        if callback.body.get("failure_class") != "NON_RETRYABLE":
            env.warn(f"a guarded attempt ended {_outcome(callback)}: fail it as NON_RETRYABLE, or it is retried")
        return f"refused: {_outcome(callback)}"
    if took(second) > MIN_SLOW_RATIO * env.slow and marks(second) != before:
        env.warn(
            "a guarded attempt was executed though attempt 1 had succeeded: if the directive has a `guard`, first check"
            " for the effect, or fail with NON_RETRYABLE; otherwise the effect happens twice"
        )
    return f"SUCCEEDED after {took(second):.1f} s"


async def _start_failing(env: CaseEnv) -> PlayedAttempt:
    """Start the service and create an attempt that `_fail` can make fail."""
    bad = env.options.bad_payload
    await env.start(slow=2.0 if bad is None else 0.0)
    return env.make(payload=bad, lease=LEASE_SECONDS if bad is None else 60.0)


async def _fail(env: CaseEnv, attempt: PlayedAttempt) -> ReceivedCallback:
    if env.options.bad_payload is None:
        return await _cancel(env, attempt)
    env.send(attempt)
    return await _first_result(env, attempt)


async def _cancel(env: CaseEnv, attempt: PlayedAttempt) -> ReceivedCallback:
    env.send(attempt)
    await wait_for_heartbeat(env, attempt)
    attempt.cancel_requested = True
    return await _first_result(env, attempt)


async def _first_result(env: CaseEnv, attempt: PlayedAttempt) -> ReceivedCallback:
    """Return the first RESULT, accepted or not. Raises Skipped if it is a success, as the case needs a failure."""
    await env.wait_for_hand_over(attempt)
    expected = f"a RESULT of {describe(attempt)}"
    takes = env.slow + env.work
    await env.require(lambda: bool(attempt.results), expected, lambda: summarize_callbacks(attempt), takes)
    callback = attempt.results[0]
    if callback.body["status"] == "SUCCEEDED":
        raise Skipped("no step failed: give a --bad-payload, and stop cancelled steps early")
    return callback


def _apply_heartbeat(attempt: PlayedAttempt, callback: ReceivedCallback) -> CallbackResponse | None:
    """Return APPLIED to heartbeats after the end, so that no answer stops a second execution."""
    if callback.kind == "heartbeat" and attempt.ended_by is not None:
        return answer(attempt, "APPLIED", timestamp_in(LEASE_SECONDS))
    return None


def _outcome(callback: ReceivedCallback) -> str:
    code = (callback.body.get("error") or {}).get("code")
    return " ".join(word for word in (callback.body["status"], callback.body.get("failure_class"), code) if word)


CASES = [
    Case(id="retried", title="After a failed attempt the step's next one is executed", play=retried, seconds=2.5),
    Case(
        id="duplicate-failed",
        title="A directive that comes again after it failed is not executed again",
        play=duplicate_failed,
        seconds=6.5,
    ),
    Case(
        id="killed-failed",
        title="The RESULT of a failure survives kill -9",
        play=killed_failed,
        seconds=4.0,
    ),
    Case(
        id="guarded",
        title="A guarded attempt detects completed work, or fails",
        play=guarded,
        seconds=5.5,
    ),
]
