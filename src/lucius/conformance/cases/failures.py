"""Steps that fail: what comes after must be done, and what was said must be remembered as well as a success.

An attempt is made to fail by the author's --bad-payload, or by cancelling it at its work.
"""

from collections.abc import Sequence

from lucius.conformance.book import Answer, Attempt, Said, answer
from lucius.conformance.cases import Case
from lucius.conformance.cases.fencing import beating
from lucius.conformance.directives import soon
from lucius.conformance.evidence import IN_FLIGHT, SLOW_ENOUGH, executed_again, marks, require_slow, took
from lucius.conformance.model import Failed, Skipped
from lucius.conformance.server import Mood
from lucius.conformance.stage import Stage, heard_of, require_not_refused, words

LEASE = 1.0
QUIET = 1.5
MARGIN = 0.6


async def retried(stage: Stage) -> str:
    """Attempt 2 carries the same idempotency_key, and is another attempt all the same."""
    first = await _start_failing(stage)
    said = await _fail(stage, first)
    await stage.watch(2 * IN_FLIGHT)  # the answer to its RESULT must reach it
    second = stage.send(stage.make(after=first))
    await stage.ended(second)
    again = second.results[0]
    if again.says == said.says:
        raise Failed(
            f"that {words(second)} is worked on, though attempt 1 has failed",
            "it was answered by what attempt 1 said; an attempt is jobId, stepId, attempt_no and lease_id, and"
            " idempotency_key is the same in all attempts of a step",
        )
    require_not_refused(second)
    return f"attempt 1 ended {_outcome(said)}, attempt 2 {_outcome(again)} after {took(second):.1f} s"


async def duplicate_failed(stage: Stage) -> str:
    """Cancelled at its work, so that doing it again would take longer and end otherwise."""
    await stage.start(slow=2.0)
    attempt = stage.make(lease=LEASE)
    attempt.answers = lambda said: _welcome(attempt, said)
    said = await _cancel(stage, attempt)
    attempt.cancel_requested = False
    await stage.watch(2 * IN_FLIGHT)
    before = marks(attempt)
    for copies, restart in ((2, False), (3, True)):
        if restart:
            await stage.restart()
        stage.send(attempt)
        await stage.taken_again(attempt, copies)
        await stage.watch(max(QUIET, 0.75 * stage.slow))
        if signs := executed_again(attempt, attempt.handed_over[copies - 1], before, stage.slow):
            when = "after a restart" if restart else "after its end"
            raise Failed(
                f"that {words(attempt)}, which failed, is not worked on when its directive comes again {when}",
                f"it was: {' and '.join(signs)}",
            )
    return f"{_outcome(said)}, and not done again, before and after a restart"


async def killed_failed(stage: Stage) -> str:
    """Its RESULT is answered 503 until the kill, so it was there, and must be on disk."""
    attempt = await _start_failing(stage)

    def refuse(said: Sequence[Said]) -> Mood | None:
        mine = any(one.token == attempt.token and one.kind == "result" for one in said)
        return Mood(status=503, retry_after=1) if mine else None

    stage.server.on_callbacks = refuse
    said = await _fail(stage, attempt)
    attempt.lease_until = None  # how long a restart takes is not what this is about
    await stage.kill()
    stage.server.on_callbacks = lambda _: None
    await stage.start(slow=stage.slow)
    expected = f"the RESULT of {words(attempt)}, which failed before the kill, from the data folder"
    await stage.must(lambda: attempt.ended_by is not None, expected, lambda: heard_of(attempt), takes=0.0)
    stage.send(attempt)
    await stage.taken_again(attempt)
    await stage.watch(QUIET)
    return f"{_outcome(said)}, said again word by word after the restart"


async def guarded(stage: Stage) -> str:
    """Attempt 1 has done it, and attempt 2 asks for it again, with a guard: find out, or refuse."""
    await stage.start(slow=2.0)
    first = stage.make()
    first.directive["retry_safety"] = "SAFE_TO_RETRY_WITH_GUARD"
    stage.send(first)
    await stage.ended(first)
    require_not_refused(first)
    require_slow(first, stage.slow)
    await stage.watch(2 * IN_FLIGHT)
    second = stage.make(after=first, lease=LEASE)
    second.directive |= {"retry_safety": "SAFE_TO_RETRY_WITH_GUARD", "guard": {"previous_attempts": 1}}
    before = marks(second)
    stage.send(second)
    await stage.ended(second)
    said = second.results[0]
    if said.body["status"] != "SUCCEEDED":
        if said.body.get("failure_class") != "NON_RETRYABLE":
            stage.warn(f"a guarded attempt ended {_outcome(said)}: refuse it as NON_RETRYABLE, or it comes again")
        return f"refused: {_outcome(said)}"
    if took(second) > SLOW_ENOUGH * stage.slow and marks(second) != before:
        stage.warn(
            "a guarded attempt was worked on though attempt 1 had succeeded: with `guard` in the directive find out"
            " first whether it was done, or fail with NON_RETRYABLE, or the effect comes twice"
        )
    return f"SUCCEEDED after {took(second):.1f} s"


async def _start_failing(stage: Stage) -> Attempt:
    """Start the service, and make an attempt that `_fail` can bring down."""
    bad = stage.options.bad_payload
    await stage.start(slow=2.0 if bad is None else 0.0)
    return stage.make(payload=bad, lease=LEASE if bad is None else 60.0)


async def _fail(stage: Stage, attempt: Attempt) -> Said:
    if stage.options.bad_payload is None:
        return await _cancel(stage, attempt)
    stage.send(attempt)
    return await _first_result(stage, attempt)


async def _cancel(stage: Stage, attempt: Attempt) -> Said:
    stage.send(attempt)
    await beating(stage, attempt)
    attempt.cancel_requested = True
    return await _first_result(stage, attempt)


async def _first_result(stage: Stage, attempt: Attempt) -> Said:
    """Its RESULT, accepted or not. Raises Skipped for a success: then there is no failure to look at."""
    await stage.taken(attempt)
    expected = f"a RESULT of {words(attempt)}"
    takes = stage.slow + stage.work
    await stage.must(lambda: bool(attempt.results), expected, lambda: heard_of(attempt), takes)
    said = attempt.results[0]
    if said.body["status"] == "SUCCEEDED":
        raise Skipped("no step failed: give a --bad-payload, and end early what is cancelled")
    return said


def _welcome(attempt: Attempt, said: Said) -> Answer | None:
    """A second execution must not be stopped by how we answer."""
    if said.kind == "heartbeat" and attempt.ended_by is not None:
        return answer(attempt, "APPLIED", soon(LEASE))
    return None


def _outcome(said: Said) -> str:
    code = (said.body.get("error") or {}).get("code")
    return " ".join(word for word in (said.body["status"], said.body.get("failure_class"), code) if word)


CASES = [
    Case(id="retried", title="After a failed attempt the step's next one is worked on", play=retried, seconds=2.5),
    Case(
        id="duplicate-failed",
        title="A directive that comes again after it failed is not executed again",
        play=duplicate_failed,
        seconds=6.5,
    ),
    Case(
        id="killed-failed",
        title="A RESULT that tells of a failure survives kill -9 too",
        play=killed_failed,
        seconds=4.0,
    ),
    Case(
        id="guarded",
        title="A guarded attempt finds out what was done, or refuses",
        play=guarded,
        seconds=5.5,
    ),
]
