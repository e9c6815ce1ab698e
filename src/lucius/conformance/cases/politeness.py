"""Cases about load: how much a service pulls, and how often."""

from itertools import pairwise

from lucius.conformance.attempt_log import PlayedAttempt, now
from lucius.conformance.case import Case
from lucius.conformance.case_env import CaseEnv, describe, summarize_callbacks
from lucius.conformance.evidence import IN_FLIGHT_SECONDS, require_slow
from lucius.conformance.model import CaseFailed, NotShown
from lucius.conformance.process import describe_exit
from lucius.conformance.server import ResponseOverride

BURST_DIRECTIVES = 100
IDLE_SECONDS = 2.5
MAX_PULLS_PER_SECOND = 30
REFUSED_SECONDS = 4.0
MAX_REFUSED_PULLS_PER_SECOND = 5


async def backpressure(env: CaseEnv) -> str:
    """Send many more directives than it can work on; each one pulled has an ACK deadline and a lease."""
    await env.start(slow=1.5)
    lease = 2.0
    burst = [env.send(env.make(lease=lease)) for _ in range(BURST_DIRECTIVES)]
    await env.wait_for_hand_over(burst[0])
    await env.watch(env.options.ack_seconds + env.slow)
    seen_until = now() - IN_FLIGHT_SECONDS
    taken = [attempt for attempt in burst if attempt.handed_over]
    for attempt in taken:
        _check_ack(attempt, seen_until, len(taken))
        _check_lease(attempt, seen_until)
    done = sum(1 for attempt in taken if attempt.results)
    if burst[0].results:
        require_slow(burst[0], env.slow)
    return (
        f"of {BURST_DIRECTIVES} directives it pulled {len(taken)}, acknowledged them in time and has completed {done}"
    )


def _check_ack(attempt: PlayedAttempt, seen_until: float, taken: int) -> None:
    first = attempt.callbacks[0].at if attempt.callbacks else seen_until
    if first > attempt.ack_due:
        raise CaseFailed(
            "that the service pulls no more than it can acknowledge before the ACK deadline",
            f"it pulled {taken}, and for one of them {summarize_callbacks(attempt)} in"
            f" {first - attempt.first_handed_over:.1f} s; set `max` to the free capacity",
        )


def _check_lease(attempt: PlayedAttempt, seen_until: float) -> None:
    """Check that an acknowledged attempt gets heartbeats, even while it is queued. Raises CaseFailed."""
    if not attempt.callbacks:
        return
    instants = [callback.at for callback in attempt.callbacks]
    if not attempt.results:
        instants.append(seen_until)
    longest = max((later - earlier for earlier, later in pairwise(instants)), default=0.0)
    if longest > attempt.lease_seconds:
        raise CaseFailed(
            f"heartbeats under a lease of {attempt.lease_seconds:g} s for all that was acknowledged",
            f"{longest:.1f} s passed without one for {describe(attempt)}",
        )


async def idle(env: CaseEnv) -> str:
    await env.start()
    waiting = await _pulls(env)
    env.server.answers_at_once = True
    at_once = await _pulls(env)
    for count, when in ((waiting, "are answered after wait_seconds"), (at_once, "are answered at once")):
        if count > MAX_PULLS_PER_SECOND * IDLE_SECONDS:
            raise CaseFailed(
                f"at most {MAX_PULLS_PER_SECOND} pulls a second without work, when pulls {when}",
                f"{count} came in {IDLE_SECONDS:g} s; set wait_seconds, and pause after an immediate empty answer",
            )
    if not at_once:
        raise NotShown(f"no pull came in {IDLE_SECONDS:g} s")
    return f"{waiting} pulls in {IDLE_SECONDS:g} s with waits, {at_once} without"


async def _pulls(env: CaseEnv) -> int:
    before = len(env.server.pulls)
    await env.watch(IDLE_SECONDS)
    return len(env.server.pulls) - before


async def refused_key(env: CaseEnv) -> str:
    env.server.on_pull = lambda _: ResponseOverride(status=401)
    env.may_end = True
    await env.start()
    assert env.process is not None
    began = now()
    code = await env.process.wait(REFUSED_SECONDS)
    count = len(env.server.pulls)
    if count > MAX_REFUSED_PULLS_PER_SECOND * REFUSED_SECONDS:
        raise CaseFailed(
            "an exit, or pauses, when the key is refused: a retry cannot help",
            f"{count} pulls came in {now() - began:.1f} s",
        )
    if code == 0:
        raise CaseFailed("an exit code other than 0 when the key is refused", f"the process {describe_exit(0)}")
    return f"{count} pull{'s' if count != 1 else ''}, then it {describe_exit(code)}"


CASES = [
    Case(
        id="backpressure",
        title="The service pulls no more than it can acknowledge and keep alive",
        play=backpressure,
        seconds=5.5,
    ),
    Case(id="idle", title="Pulls are paced when there is no work", play=idle, seconds=5.5, about_pulls=True),
    Case(
        id="refused-key",
        title="The service exits or backs off when its key is refused",
        play=refused_key,
        seconds=2.0,
        about_pulls=True,
    ),
]
