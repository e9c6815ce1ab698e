"""Cases in which the service stops: killed during a step, killed with an undelivered RESULT, or stopped by SIGTERM."""

from collections.abc import Sequence

from lucius.conformance.attempt_log import PlayedAttempt, ReceivedCallback, now
from lucius.conformance.case import Case
from lucius.conformance.case_env import CaseEnv, describe, summarize_callbacks
from lucius.conformance.evidence import ADVICE, IN_FLIGHT_SECONDS, Marks, executed_again, marks
from lucius.conformance.model import CaseFailed, NotShown
from lucius.conformance.process import describe_exit
from lucius.conformance.server import ResponseOverride

QUIET_SECONDS = 1.5
OUTAGE_BEFORE_KILL_SECONDS = 1.0
STOP_REACTION_SECONDS = 0.5


async def killed_mid_step(env: CaseEnv) -> str:
    await env.start(slow=2.5)
    attempt = env.send(env.make())
    await env.wait_for_ack(attempt)
    await env.watch(0.3 * env.slow)
    if attempt.results:
        raise NotShown(f"the step ended before it could be interrupted: {ADVICE}")
    await env.kill()
    await env.start(slow=env.slow)
    env.send(attempt)
    expected = f"a RESULT of {describe(attempt)}, delivered again after a kill"
    takes = 2 * env.slow + env.work
    await env.require(lambda: attempt.ended_by is not None, expected, lambda: summarize_callbacks(attempt), takes)
    again_at = await env.wait_for_redelivery(attempt)
    await env.watch(max(QUIET_SECONDS, again_at + env.slow + env.work + 1 - now()))
    body = attempt.results[0].body
    error = f" {body['error'].get('code')}" if body.get("error") else ""
    return f"one RESULT after the restart: {body['status']}{error}"


async def killed_finished(env: CaseEnv) -> str:
    """Kill the process once its RESULT was refused and the orchestrator is unreachable: it must be on disk by then."""
    await env.start(slow=2.0)
    # Long enough not to expire before the work is done, and short enough for heartbeats if it is repeated.
    attempt = env.make(lease=1.5 * env.slow)

    def refuse(callbacks: Sequence[ReceivedCallback]) -> ResponseOverride | None:
        mine = any(callback.token == attempt.token and callback.kind == "result" for callback in callbacks)
        return ResponseOverride(status=503, retry_after=1) if mine else None

    env.server.on_callbacks = refuse
    env.send(attempt)
    await env.wait_for_ack(attempt)
    await env.watch(0.25 * env.slow)
    if attempt.results:
        raise NotShown(f"the step ended before the orchestrator could become unreachable: {ADVICE}")
    expected = f"a RESULT of {describe(attempt)}"
    takes = env.slow + env.work
    await env.require(lambda: bool(attempt.results), expected, lambda: summarize_callbacks(attempt), takes)
    await env.server.go_offline()
    await env.watch(OUTAGE_BEFORE_KILL_SECONDS)
    before = marks(attempt)
    await env.kill()
    env.server.on_callbacks = lambda _: None
    await env.server.go_online()
    callbacks_before, restarted_at = len(attempt.callbacks), now()
    await env.start(slow=env.slow)
    expected = f"the RESULT of {describe(attempt)}, which had ended before the kill, from the data folder"
    await env.require(lambda: len(attempt.results) > 1, expected, lambda: "none came", takes=env.slow)
    callback = attempt.results[1]
    if callback.body["status"] != "SUCCEEDED":
        raise CaseFailed(expected, f"it was {callback.body['status']} {(callback.body.get('error') or {}).get('code')}")
    _check_not_executed_again(attempt, callbacks_before, before)
    env.send(attempt)
    again_at = await env.wait_for_redelivery(attempt)
    await env.watch(env.slow + env.work + IN_FLIGHT_SECONDS)
    if signs := executed_again(attempt, again_at, before, env.slow):
        raise CaseFailed("that the directive is not executed when it comes again", "; ".join(signs))
    return f"RESULT {callback.at - restarted_at:.1f} s after the restart, without another execution"


def _check_not_executed_again(attempt: PlayedAttempt, callbacks_before: int, before: Marks) -> None:
    """Raise CaseFailed for heartbeats after the first `callbacks_before` callbacks, or files that are not `before`."""
    heartbeats = [callback for callback in attempt.callbacks[callbacks_before:] if callback.kind == "heartbeat"]
    rewritten = [path.name for path, mark in marks(attempt).items() if before.get(path) != mark]
    if heartbeats or rewritten:
        sign = f"{len(heartbeats)} heartbeats came" if heartbeats else f"{', '.join(rewritten)} was written again"
        raise CaseFailed(
            "that the RESULT comes from the data folder, without another execution", f"after the restart {sign}"
        )


async def graceful_stop(env: CaseEnv) -> str:
    await env.start(slow=2.5)
    attempt = env.send(env.make())
    await env.wait_for_ack(attempt)
    await env.watch(0.2 * env.slow)
    if attempt.results:
        raise NotShown(f"the step ended before the service was asked to stop: {ADVICE}")
    assert env.process is not None
    env.may_end = True
    env.process.terminate()
    asked_at = now()
    await env.watch(STOP_REACTION_SECONDS)
    second = env.send(env.make())
    within = env.slow + env.work + env.options.patience
    code = await env.process.wait(within)
    took = now() - asked_at
    if code is None:
        raise CaseFailed(f"an end within {within:.0f} s of SIGTERM", "the process still runs")
    _check_stop(env, asked_at, attempt, second)
    if code != 0:
        raise CaseFailed("exit code 0 after SIGTERM", f"the process {describe_exit(code)}")
    return f"{attempt.results[0].body['status']}, then exit code 0 {took:.1f} s after SIGTERM"


def _check_stop(env: CaseEnv, asked_at: float, attempt: PlayedAttempt, second: PlayedAttempt) -> None:
    late = [pull for pull in env.server.pulls if pull.at > asked_at + STOP_REACTION_SECONDS]
    if late:
        raise CaseFailed("no pull after SIGTERM", f"{len(late)} came, the first {late[0].at - asked_at:.1f} s later")
    if not attempt.results:
        raise CaseFailed(
            f"a RESULT of {describe(attempt)} (SUCCEEDED, or FAILED if it is interrupted)",
            summarize_callbacks(attempt),
        )
    if second.handed_over and not second.results:
        raise CaseFailed(
            "that a stopping service takes no more directives, or completes them",
            "the pending poll took a directive for which no callback came; close its connection at SIGTERM",
        )


CASES = [
    Case(
        id="killed-mid-step",
        title="After kill -9 during a step, its attempt has exactly one RESULT",
        play=killed_mid_step,
        seconds=6.0,
    ),
    Case(
        id="killed-finished",
        title="A RESULT survives kill -9 while the orchestrator is unreachable",
        play=killed_finished,
        seconds=7.0,
    ),
    Case(
        id="graceful-stop",
        title="On SIGTERM the step is completed or reported FAILED, and the process exits with 0",
        play=graceful_stop,
        seconds=3.5,
    ),
]
