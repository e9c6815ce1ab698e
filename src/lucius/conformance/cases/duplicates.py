"""Cases about repeated directives: a bus may deliver one twice, and its attempt must be executed once."""

from lucius.conformance.attempt_log import CallbackResponse, PlayedAttempt, ReceivedCallback, answer, now
from lucius.conformance.case import Case
from lucius.conformance.case_env import CaseEnv, describe, require_not_refused
from lucius.conformance.directives import timestamp_in
from lucius.conformance.evidence import IN_FLIGHT_SECONDS, Marks, executed_again, marks, require_slow
from lucius.conformance.model import CaseFailed

LEASE_SECONDS = 1.0  # short, as frequent heartbeats show that work is going on
MARGIN_SECONDS = 0.6


async def while_running(env: CaseEnv) -> str:
    await env.start(slow=2.0)
    attempt = env.send(_attempt_answered_applied(env))
    await env.wait_for_ack(attempt)
    await env.watch(0.4 * env.slow)
    env.send(attempt)
    await env.wait_for_result(attempt)
    before = marks(attempt)
    first = _executed_once(env, attempt)
    # A service that does one step at a time pulls the second copy only now.
    again_at = await env.wait_for_redelivery(attempt)
    await env.watch(again_at + first + MARGIN_SECONDS - now())
    _check(attempt, again_at, before, first)
    return f"one execution of {first:.1f} s; {_answered(attempt)}"


async def when_finished(env: CaseEnv) -> str:
    await env.start(slow=1.5)
    attempt = env.send(_attempt_answered_applied(env))
    await env.wait_for_result(attempt)
    first = _executed_once(env, attempt)
    await env.watch(2 * IN_FLIGHT_SECONDS)  # the answer to its RESULT must reach it
    return await _redeliver(env, attempt, first)


async def when_restarted(env: CaseEnv) -> str:
    await env.start(slow=1.5)
    attempt = env.send(_attempt_answered_applied(env))
    await env.wait_for_result(attempt)
    first = _executed_once(env, attempt)
    await env.watch(2 * IN_FLIGHT_SECONDS)  # the answer to its RESULT must reach it
    await env.restart()
    return await _redeliver(env, attempt, first)


def _attempt_answered_applied(env: CaseEnv) -> PlayedAttempt:
    """Create an attempt whose heartbeats are APPLIED even after its end, so that no answer stops a second execution."""
    attempt = env.make(lease=LEASE_SECONDS)

    def apply_heartbeat(callback: ReceivedCallback) -> CallbackResponse | None:
        if callback.kind == "heartbeat" and attempt.ended_by is not None:
            return answer(attempt, "APPLIED", timestamp_in(LEASE_SECONDS))
        return None

    attempt.answers = apply_heartbeat
    return attempt


def _executed_once(env: CaseEnv, attempt: PlayedAttempt) -> float:
    require_not_refused(attempt)
    return require_slow(attempt, env.slow)


async def _redeliver(env: CaseEnv, attempt: PlayedAttempt, first: float) -> str:
    before = marks(attempt)
    env.send(attempt)
    env.send(attempt)
    again_at = await env.wait_for_redelivery(attempt, times=3)
    await env.watch(first + MARGIN_SECONDS)
    _check(attempt, again_at, before, first)
    return f"not executed again; {_answered(attempt)}"


def _check(attempt: PlayedAttempt, asked_at: float, before: Marks, seconds: float) -> None:
    if signs := executed_again(attempt, asked_at, before, seconds):
        raise CaseFailed(
            f"that {describe(attempt)} is executed once, and its RESULT at most repeated",
            f"it was executed again: {' and '.join(signs)}",
        )


def _answered(attempt: PlayedAttempt) -> str:
    repeats = len(attempt.results) - 1
    return "the copy was answered with the same RESULT" if repeats else "the copy was ignored"


CASES = [
    Case(
        id="duplicate-running",
        title="A directive that comes again during its execution is executed once",
        play=while_running,
        seconds=5.0,
    ),
    Case(
        id="duplicate-finished",
        title="A directive that comes again after its end is not executed again",
        play=when_finished,
        seconds=4.0,
    ),
    Case(
        id="duplicate-restarted",
        title="A directive that comes again after a restart of the service is not executed again",
        play=when_restarted,
        seconds=4.5,
    ),
]
