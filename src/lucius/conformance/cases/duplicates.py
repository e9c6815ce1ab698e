"""The same directive again: a bus may deliver it twice, and an attempt must be executed once."""

from lucius.conformance.book import Answer, Attempt, Said, answer, now
from lucius.conformance.cases import Case
from lucius.conformance.directives import soon
from lucius.conformance.evidence import IN_FLIGHT, Marks, executed_again, marks, require_slow
from lucius.conformance.model import Failed
from lucius.conformance.stage import Stage, require_not_refused, words

LEASE = 1.0  # heartbeats tell of work, so they should come often
MARGIN = 0.6


async def while_running(stage: Stage) -> str:
    await stage.start(slow=2.0)
    attempt = stage.send(_encouraged(stage))
    await stage.acked(attempt)
    await stage.watch(0.4 * stage.slow)
    stage.send(attempt)
    await stage.ended(attempt)
    before = marks(attempt)
    first = _executed_once(stage, attempt)
    # A service that does one step after the other pulls the second copy only now.
    again_at = await stage.taken_again(attempt)
    await stage.watch(again_at + first + MARGIN - now())
    _check(attempt, again_at, before, first)
    return f"one execution of {first:.1f} s; {_answered(attempt)}"


async def when_finished(stage: Stage) -> str:
    await stage.start(slow=1.5)
    attempt = stage.send(_encouraged(stage))
    await stage.ended(attempt)
    first = _executed_once(stage, attempt)
    await stage.watch(2 * IN_FLIGHT)  # the answer to its RESULT must reach it
    return await _comes_again(stage, attempt, first)


async def when_restarted(stage: Stage) -> str:
    await stage.start(slow=1.5)
    attempt = stage.send(_encouraged(stage))
    await stage.ended(attempt)
    first = _executed_once(stage, attempt)
    await stage.watch(2 * IN_FLIGHT)  # the answer to its RESULT must reach it
    await stage.restart()
    return await _comes_again(stage, attempt, first)


def _encouraged(stage: Stage) -> Attempt:
    """Its heartbeats are welcome after its end too: a second execution must not be stopped by how we answer."""
    attempt = stage.make(lease=LEASE)

    def welcome(said: Said) -> Answer | None:
        if said.kind == "heartbeat" and attempt.ended_by is not None:
            return answer(attempt, "APPLIED", soon(LEASE))
        return None

    attempt.answers = welcome
    return attempt


def _executed_once(stage: Stage, attempt: Attempt) -> float:
    require_not_refused(attempt)
    return require_slow(attempt, stage.slow)


async def _comes_again(stage: Stage, attempt: Attempt, first: float) -> str:
    before = marks(attempt)
    stage.send(attempt)
    stage.send(attempt)
    again_at = await stage.taken_again(attempt, times=3)
    await stage.watch(first + MARGIN)
    _check(attempt, again_at, before, first)
    return f"not executed again; {_answered(attempt)}"


def _check(attempt: Attempt, asked_at: float, before: Marks, seconds: float) -> None:
    if signs := executed_again(attempt, asked_at, before, seconds):
        raise Failed(
            f"that {words(attempt)} is executed once, and its RESULT repeated at most",
            f"it was executed again: {' and '.join(signs)}",
        )


def _answered(attempt: Attempt) -> str:
    repeats = len(attempt.results) - 1
    return "the copy was answered by the same RESULT" if repeats else "the copy was ignored"


CASES = [
    Case(
        id="duplicate-running",
        title="A directive that comes again while it is worked on is executed once",
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
