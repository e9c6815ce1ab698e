"""Cases with a slow, failing or unreachable orchestrator: no work may be lost, and retries must pause."""

from collections.abc import Sequence
from itertools import pairwise

from lucius.conformance.attempt_log import PlayedAttempt, ReceivedCallback, now
from lucius.conformance.case import Case
from lucius.conformance.case_env import CaseEnv, describe, require_not_refused, summarize_callbacks
from lucius.conformance.evidence import require_slow
from lucius.conformance.model import CaseFailed, NotShown
from lucius.conformance.server import Pull, ResponseOverride

MIN_RETRY_AFTER_RATIO = 0.9  # of a Retry-After, to allow for clocks and networks
OUTAGE_SECONDS = 3.0
SLOW_ANSWER_SECONDS = 1.5
ERRORS_SECONDS = 1.5
MAX_TRIES_PER_SECOND = 20  # full jitter makes some pauses short; without pauses there are far more requests
PULL_ERRORS_SECONDS = 4.0
RETRY_AFTER_SECONDS = 2


async def slow_orchestrator(env: CaseEnv) -> str:
    await env.start()
    seconds = min(SLOW_ANSWER_SECONDS, env.options.ack_seconds / 2)
    env.server.on_callbacks = lambda _: ResponseOverride(delay=seconds)
    env.server.on_pull = lambda _: ResponseOverride(delay=seconds)
    attempts = [env.send(env.make()) for _ in range(4)]
    for attempt in attempts:
        await env.wait_for_result(attempt)
    for attempt in attempts:
        first = attempt.callbacks[0]
        if first.at > attempt.ack_due:
            raise CaseFailed(
                f"an ACK within {attempt.ack_seconds:g} s of hand-over, though other callbacks are answered slowly",
                f"it came after {first.at - attempt.first_handed_over:.1f} s; an ACK must not queue behind others",
            )
    env.server.on_callbacks = lambda _: None
    env.server.on_pull = lambda _: None
    await env.watch(1.0)
    repeats = sum(len(attempt.results) - 1 for attempt in attempts)
    return f"{len(attempts)} succeeded with every answer {seconds:g} s late, {repeats} RESULTs repeated"


async def orchestrator_errors(env: CaseEnv) -> str:
    """Answer a RESULT with 503 and 429 with a Retry-After, then 500 for a while."""
    await env.start()
    attempt = env.make()
    env.server.on_callbacks = _ErrorPlan(attempt).next_override
    env.send(attempt)
    await env.wait_for_hand_over(attempt)
    takes = ERRORS_SECONDS + 4 * RETRY_AFTER_SECONDS + env.work
    expected = f"that the RESULT of {describe(attempt)} is repeated until it is accepted"
    await env.require(lambda: attempt.ended_by is not None, expected, lambda: summarize_callbacks(attempt), takes)
    _check_pauses(attempt.results)
    return f"RESULT accepted at try {len(attempt.results)}; Retry-After respected"


class _ErrorPlan:
    """Answers to the tries of one RESULT: 503 and 429 with Retry-After, then 500 for `ERRORS_SECONDS`."""

    def __init__(self, attempt: PlayedAttempt) -> None:
        self._attempt = attempt
        self._since = 0.0
        self._planned = [
            ResponseOverride(status=429, retry_after=1),
            ResponseOverride(status=503, retry_after=RETRY_AFTER_SECONDS),
        ]

    def next_override(self, callbacks: Sequence[ReceivedCallback]) -> ResponseOverride | None:
        if not any(callback.token == self._attempt.token and callback.kind == "result" for callback in callbacks):
            return None
        if self._planned:
            return self._planned.pop()  # first, while the service's own pauses are still short
        self._since = self._since or now()
        return ResponseOverride(status=500) if now() < self._since + ERRORS_SECONDS else None


def _check_pauses(tries: Sequence[ReceivedCallback]) -> None:
    failed = [callback for callback in tries if callback.status == 500]
    if len(failed) > MAX_TRIES_PER_SECOND * ERRORS_SECONDS:
        raise CaseFailed(
            f"growing pauses between tries when the answer is 500, and at most {MAX_TRIES_PER_SECOND} tries a second",
            f"{len(failed)} came in {ERRORS_SECONDS:g} s",
        )
    for callback, following in pairwise(tries):
        asked = callback.answer.retry_after if callback.answer else None
        waited = following.at - (callback.answered_at or callback.at)
        if asked is not None and waited < asked * MIN_RETRY_AFTER_RATIO:
            raise CaseFailed(
                f"no try within the {asked:g} s that Retry-After asked for with {callback.status}",
                f"the next came after {waited:.2f} s",
            )


async def ack_repeated(env: CaseEnv) -> str:
    """Answer the first ACK with 503; as the work outlasts the ACK deadline, only another ACK can save the attempt."""
    await env.start(slow=env.options.ack_seconds + 1)
    attempt = env.make()
    overrides = [ResponseOverride(status=503, retry_after=1)]
    env.server.on_callbacks = lambda _: overrides.pop() if overrides else None
    env.send(attempt)
    await env.wait_for_hand_over(attempt)
    await env.wait_until(lambda: attempt.acked_at is not None, attempt.ack_due - now())
    if attempt.acked_at is None:
        raise CaseFailed("that an ACK answered 503 is repeated before its deadline", summarize_callbacks(attempt))
    if attempt.results:
        require_slow(attempt, env.slow)
    _check_pauses(attempt.acks)
    return f"ACK accepted at try {len(attempt.acks)}, {attempt.ack_due - attempt.acked_at:.1f} s before its deadline"


async def pull_errors(env: CaseEnv) -> str:
    await env.start()
    ill_from = now()

    def fail(pull: Pull) -> ResponseOverride | None:
        return (
            ResponseOverride(status=503, retry_after=RETRY_AFTER_SECONDS)
            if now() < ill_from + PULL_ERRORS_SECONDS
            else None
        )

    env.server.on_pull = fail
    env.server.answers_at_once = True  # ends the pending long poll
    await env.watch(PULL_ERRORS_SECONDS)
    env.server.answers_at_once = False
    refused = [pull for pull in env.server.pulls if pull.status == 503]
    attempt = env.send(env.make())
    await env.wait_for_result(attempt)
    if not refused:
        raise NotShown(f"no pull came within {PULL_ERRORS_SECONDS:g} s, so the reaction to errors was not observed")
    if len(refused) > MAX_TRIES_PER_SECOND * PULL_ERRORS_SECONDS:
        raise CaseFailed(
            f"pauses after pulls that are answered 503 with Retry-After: {RETRY_AFTER_SECONDS}",
            f"{len(refused)} pulls came in {PULL_ERRORS_SECONDS:g} s",
        )
    if len(refused) > PULL_ERRORS_SECONDS / (RETRY_AFTER_SECONDS * MIN_RETRY_AFTER_RATIO) + 1:
        env.warn(
            f"{len(refused)} pulls in {PULL_ERRORS_SECONDS:g} s, though Retry-After asked for pauses of"
            f" {RETRY_AFTER_SECONDS} s"
        )
    return f"{len(refused)} refused pulls in {PULL_ERRORS_SECONDS:g} s, then work continued"


async def answer_lost(env: CaseEnv) -> str:
    """Apply the RESULT and break the connection: the service can't know the outcome, so it must send it again."""
    await env.start()
    attempt = env.make()
    lost: list[ReceivedCallback] = []

    def lose(callbacks: Sequence[ReceivedCallback]) -> ResponseOverride | None:
        mine = [callback for callback in callbacks if callback.token == attempt.token and callback.kind == "result"]
        if lost or not mine:
            return None
        lost.extend(mine)
        return ResponseOverride(lose_answer=True)

    env.server.on_callbacks = lose
    env.send(attempt)
    await env.wait_for_result(attempt)
    expected = "that a RESULT is sent again when the connection broke before its answer came"
    await env.require(lambda: len(attempt.results) > 1, expected, lambda: "it was not", takes=2.0)
    await env.watch(1.0)
    if len(attempt.results) > 2:
        raise CaseFailed("two RESULTs: the second was answered 200 DUPLICATE", f"{len(attempt.results)} came")
    return f"sent again after {attempt.results[1].at - attempt.results[0].at:.1f} s, unchanged"


async def orchestrator_restart(env: CaseEnv) -> str:
    await env.start(slow=2.0)
    attempt = env.send(env.make(lease=3 * env.slow + env.work))
    await env.wait_for_ack(attempt)
    await env.watch(0.5)
    if attempt.results:
        require_slow(attempt, env.slow)
    await env.server.go_offline()
    await env.watch(env.slow - 0.5 + env.work + OUTAGE_SECONDS - 1)
    await env.server.go_online()
    back_at = now()
    await env.wait_for_result(attempt)
    require_not_refused(attempt)
    later = env.send(env.make())
    await env.wait_for_result(later)
    waited = attempt.results[0].at - back_at
    return f"the RESULT of a step that ended meanwhile came {waited:.1f} s after the return, and work continued"


async def orchestrator_away(env: CaseEnv) -> str:
    """Keep the orchestrator unreachable long enough to detect services that give up too soon."""
    await env.start(slow=2.0)
    attempt = env.send(env.make())
    await env.wait_for_ack(attempt)
    await env.watch(0.5)
    if attempt.results:
        require_slow(attempt, env.slow)
    await env.server.go_offline()
    await env.watch(env.slow + env.work + env.options.away_seconds)
    await env.server.go_online()
    back_at = now()
    expected = f"the RESULT of {describe(attempt)}, however long the orchestrator was unreachable"
    # The pauses between tries have grown by now.
    takes = env.options.patience
    await env.require(lambda: attempt.ended_by is not None, expected, lambda: summarize_callbacks(attempt), takes)
    require_not_refused(attempt)
    return f"the RESULT came {attempt.results[0].at - back_at:.1f} s after {env.options.away_seconds:g} s of outage"


CASES = [
    Case(
        id="slow-orchestrator",
        title="Slow answers do not delay other ACKs or duplicate RESULTs",
        play=slow_orchestrator,
        seconds=7.0,
    ),
    Case(
        id="orchestrator-errors",
        title="A callback answered 429 or 5xx is retried with pauses, after Retry-After",
        play=orchestrator_errors,
        seconds=8.0,
    ),
    Case(
        id="ack-repeated", title="An ACK answered 503 is repeated before its deadline", play=ack_repeated, seconds=1.5
    ),
    Case(
        id="pull-errors",
        title="A pull answered 503 is retried with pauses",
        play=pull_errors,
        seconds=6.0,
        about_pulls=True,
    ),
    Case(id="answer-lost", title="A RESULT whose answer was lost is sent again", play=answer_lost, seconds=2.5),
    Case(
        id="orchestrator-restart",
        title="The RESULT of a step that ends during an outage is delivered afterwards",
        play=orchestrator_restart,
        seconds=7.0,
    ),
    Case(
        id="orchestrator-away",
        title="A RESULT is kept and retried until the outage ends",
        play=orchestrator_away,
        seconds=32.0,
        mostly_waits=True,
    ),
]
