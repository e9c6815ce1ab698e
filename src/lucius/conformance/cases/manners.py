"""How much a service takes, and how often it asks."""

from itertools import pairwise

from lucius.conformance.book import Attempt, now
from lucius.conformance.cases import Case
from lucius.conformance.evidence import IN_FLIGHT, require_slow
from lucius.conformance.model import Failed, NotShown
from lucius.conformance.process import exit_words
from lucius.conformance.server import Mood
from lucius.conformance.stage import Stage, heard_of, words

BURST = 100
IDLE = 2.5
PULLS_PER_SECOND = 30
REFUSED_FOR = 4.0
REFUSED_PER_SECOND = 5


async def backpressure(stage: Stage) -> str:
    """Many more directives than it can work on. What it has pulled is its own, with ACK deadline and lease."""
    await stage.start(slow=1.5)
    lease = 2.0
    burst = [stage.send(stage.make(lease=lease)) for _ in range(BURST)]
    await stage.taken(burst[0])
    await stage.watch(stage.options.ack_seconds + stage.slow)
    seen_until = now() - IN_FLIGHT
    taken = [attempt for attempt in burst if attempt.handed_over]
    for attempt in taken:
        _check_ack(attempt, seen_until, len(taken))
        _check_lease(attempt, seen_until)
    done = sum(1 for attempt in taken if attempt.results)
    if burst[0].results:
        require_slow(burst[0], stage.slow)
    return f"of {BURST} directives it took {len(taken)}, acknowledged them in time and did {done} so far"


def _check_ack(attempt: Attempt, seen_until: float, taken: int) -> None:
    first = attempt.heard[0].at if attempt.heard else seen_until
    if first > attempt.ack_due:
        raise Failed(
            "that a service pulls no more than it can acknowledge before the ACK deadline",
            f"it pulled {taken}, and of one {heard_of(attempt)} in {first - attempt.first_handed_over:.1f} s;"
            " ask for as many as there is room for in `max`",
        )


def _check_lease(attempt: Attempt, seen_until: float) -> None:
    """What was acknowledged must be kept alive, though it may have to wait for its turn."""
    if not attempt.heard:
        return
    instants = [said.at for said in attempt.heard]
    if not attempt.results:
        instants.append(seen_until)
    longest = max((later - earlier for earlier, later in pairwise(instants)), default=0.0)
    if longest > attempt.lease_seconds:
        raise Failed(
            f"heartbeats under a lease of {attempt.lease_seconds:g} s for all that was acknowledged",
            f"{longest:.1f} s passed without one of {words(attempt)}",
        )


async def idle(stage: Stage) -> str:
    await stage.start()
    waiting = await _pulls(stage)
    stage.server.answers_at_once = True
    at_once = await _pulls(stage)
    for count, when in ((waiting, "are answered after the wait they ask for"), (at_once, "are answered at once")):
        if count > PULLS_PER_SECOND * IDLE:
            raise Failed(
                f"at most {PULLS_PER_SECOND} pulls a second when there is nothing to do and pulls {when}",
                f"{count} came in {IDLE:g} s; ask with wait_seconds, and pause after an empty answer that came at once",
            )
    if not at_once:
        raise NotShown(f"no pull came in {IDLE:g} s")
    return f"{waiting} pulls in {IDLE:g} s with waits, {at_once} without"


async def _pulls(stage: Stage) -> int:
    before = len(stage.server.pulls)
    await stage.watch(IDLE)
    return len(stage.server.pulls) - before


async def refused_key(stage: Stage) -> str:
    stage.server.on_pull = lambda _: Mood(status=401)
    stage.may_end = True
    await stage.start()
    assert stage.process is not None
    began = now()
    code = await stage.process.wait(REFUSED_FOR)
    count = len(stage.server.pulls)
    if count > REFUSED_PER_SECOND * REFUSED_FOR:
        raise Failed(
            "an end, or pauses, when the key is refused: it does not get better by asking",
            f"{count} pulls came in {now() - began:.1f} s",
        )
    if code == 0:
        raise Failed("an exit code that tells of the trouble when the key is refused", f"the process {exit_words(0)}")
    return f"{count} pull{'s' if count != 1 else ''}, then it {exit_words(code)}"


CASES = [
    Case(
        id="backpressure",
        title="It pulls no more than it can acknowledge and keep alive",
        play=backpressure,
        seconds=5.5,
    ),
    Case(id="idle", title="It asks politely when there is nothing to do", play=idle, seconds=5.5, about_pulls=True),
    Case(
        id="refused-key",
        title="It ends or backs off when its key is refused",
        play=refused_key,
        seconds=2.0,
        about_pulls=True,
    ),
]
