"""Cases about attempts that are no longer current: fenced by a newer one, ended otherwise, or cancelled."""

from lucius.conformance.attempt_log import CallbackResponse, PlayedAttempt, ReceivedCallback, answer, now, stale
from lucius.conformance.case import Case
from lucius.conformance.case_env import LONG_LEASE_SECONDS, CaseEnv, describe, summarize_callbacks
from lucius.conformance.directives import timestamp_in
from lucius.conformance.evidence import ADVICE, IN_FLIGHT_SECONDS, MIN_SLOW_RATIO
from lucius.conformance.model import CaseFailed, NotShown

LEASE_SECONDS = 1.0
QUIET_SECONDS = 2.0
EARLY_STOP_RATIO = 0.8


async def stale_lease(env: CaseEnv) -> str:
    """Fence one attempt while it runs, and another before its ACK arrives."""
    await env.start(slow=3.0)
    unwanted = env.make(lease=LEASE_SECONDS)
    unwanted.answers = lambda _: stale(unwanted)
    env.send(unwanted)
    first = env.send(env.make(lease=LEASE_SECONDS))
    await wait_for_heartbeat(env, first)
    second = env.send(env.make(lease=LEASE_SECONDS, after=first))
    fenced_at = now()
    await env.wait_for_result(second)
    await env.watch(max(QUIET_SECONDS, fenced_at + env.slow + 0.5 - now()))
    for attempt, since in ((first, _answered_at(first, 409)), (unwanted, _answered_at(unwanted, 409))):
        _check_no_heartbeats(attempt, since, "409 STALE")
        if len(attempt.results) > 1:
            raise CaseFailed(
                f"no RESULT of {describe(attempt)}, whose lease was lost, or one that is not repeated",
                f"{len(attempt.results)} came; 409 STALE means: discard the work",
            )
        if attempt.results:
            env.warn(f"{describe(attempt)} was completed although it had been fenced")
    return f"it stopped after 409 STALE, and attempt 2 ended {second.results[0].body['status']}"


async def late(env: CaseEnv) -> str:
    """End one job while its step runs, let another's RESULT come too late, and let a third one's lease only lapse."""
    await env.start(slow=3.0)
    ended = env.send(env.make(lease=LEASE_SECONDS))
    await wait_for_heartbeat(env, ended)
    ended.answers = lambda _: answer(ended, "LATE", None)
    late_at = now()
    too_late = env.make(lease=LEASE_SECONDS)
    too_late.answers = lambda callback: answer(too_late, "LATE", None) if callback.kind == "result" else None
    env.send(too_late)
    lapsed = _make_lapsing(env)
    env.send(lapsed)
    await env.wait_for_hand_over(too_late)
    expected = f"a RESULT of {describe(too_late)}"
    takes = 2 * (env.slow + env.work)
    await env.require(lambda: bool(too_late.results), expected, lambda: summarize_callbacks(too_late), takes)
    await _check_lapsed(env, lapsed)
    await env.watch(max(QUIET_SECONDS, late_at + env.slow + 0.5 - now()))
    _check_no_heartbeats(ended, _answered_at(ended, 200, "LATE"), "200 LATE without lease_expires_at")
    for attempt in (ended, too_late):
        if len(attempt.results) > 1:
            raise CaseFailed(
                "that a RESULT answered 200 LATE is not sent again", f"it was sent {len(attempt.results)} times"
            )
    return "a LATE heartbeat ended the work unless a success still counted, and a LATE RESULT was not repeated"


def _make_lapsing(env: CaseEnv) -> PlayedAttempt:
    """Create an attempt whose heartbeats are answered LATE while a success is still accepted."""
    attempt = env.make(lease=LEASE_SECONDS)

    def too_late(callback: ReceivedCallback) -> CallbackResponse | None:
        return answer(attempt, "LATE", timestamp_in(LONG_LEASE_SECONDS)) if callback.kind == "heartbeat" else None

    attempt.answers = too_late
    return attempt


async def _check_lapsed(env: CaseEnv, attempt: PlayedAttempt) -> None:
    await env.wait_for_hand_over(attempt)
    expected = f"a RESULT of {describe(attempt)}: 200 LATE with lease_expires_at means that a success until then counts"
    takes = env.slow + env.work
    await env.require(lambda: attempt.ended_by is not None, expected, lambda: summarize_callbacks(attempt), takes)
    body = attempt.results[0].body
    if body["status"] != "SUCCEEDED":
        raise CaseFailed(expected, f"it was {body['status']} {(body.get('error') or {}).get('code')}")


async def cancel(env: CaseEnv) -> str:
    await env.start(slow=4.0)
    attempt = env.send(env.make(lease=LEASE_SECONDS))
    await wait_for_heartbeat(env, attempt)
    attempt.cancel_requested = True
    asked_at = now()
    await env.wait_for_result(attempt)
    callback = attempt.results[0]
    seconds = callback.at - attempt.first_handed_over
    if seconds >= env.slow * EARLY_STOP_RATIO:
        env.warn(
            f"the work was completed, {callback.at - asked_at:.1f} s after heartbeats were answered"
            " cancel_requested: true; it may stop earlier"
        )
    return f"ended by {callback.body['status']} {callback.at - asked_at:.1f} s after the job was cancelled"


async def wait_for_heartbeat(env: CaseEnv, attempt: PlayedAttempt) -> None:
    """Wait for the first heartbeat. Raises NotShown if the step ends before it, CaseFailed if none comes."""
    await env.wait_for_ack(attempt)
    await env.wait_until(lambda: attempt.heartbeats or attempt.results, env.slow + env.options.patience)
    if attempt.heartbeats:
        return
    if attempt.results and attempt.results[0].at - attempt.first_handed_over < MIN_SLOW_RATIO * env.slow:
        raise NotShown(f"the step ended before its first heartbeat: {ADVICE}")
    raise CaseFailed(f"heartbeats of {describe(attempt)} while it runs", "none came")


def _answered_at(attempt: PlayedAttempt, status: int, disposition: str = "") -> float:
    """Return the time of the first such answer to the service. Raises NotShown if there was none."""
    answered = [callback for callback in attempt.callbacks if _matches(callback.answer, status, disposition)]
    if not answered:
        raise NotShown(
            f"no callback of {describe(attempt)} came after it had lost its lease, so none could be answered"
        )
    return answered[0].answered_at or answered[0].at


def _matches(given: CallbackResponse | None, status: int, disposition: str) -> bool:
    return given is not None and given.status == status and (not disposition or given.disposition == disposition)


def _check_no_heartbeats(attempt: PlayedAttempt, since: float, how: str) -> None:
    late_heartbeats: list[ReceivedCallback] = [
        callback for callback in attempt.heartbeats if callback.at > since + IN_FLIGHT_SECONDS
    ]
    if late_heartbeats:
        raise CaseFailed(
            f"no more heartbeats of {describe(attempt)} once one was answered {how}",
            f"{len(late_heartbeats)} more came, the last {late_heartbeats[-1].at - since:.1f} s later",
        )


CASES = [
    Case(id="stale", title="A fenced attempt is abandoned, and the next one executed", play=stale_lease, seconds=6.0),
    Case(id="late", title="Work stops after a final LATE, and a LATE RESULT is not repeated", play=late, seconds=6.5),
    Case(id="cancel", title="A cancelled job's step ends early with a RESULT", play=cancel, seconds=3.0),
]
