"""Attempts that no longer count: fenced by a newer one, ended otherwise, or cancelled."""

from lucius.conformance.book import Answer, Attempt, Said, answer, now, stale
from lucius.conformance.cases import Case
from lucius.conformance.directives import soon
from lucius.conformance.evidence import ADVICE, IN_FLIGHT, SLOW_ENOUGH
from lucius.conformance.model import Failed, NotShown
from lucius.conformance.stage import LONG_LEASE, Stage, heard_of, words

LEASE = 1.0
QUIET = 2.0
EARLY = 0.8


async def stale_lease(stage: Stage) -> str:
    """One attempt is fenced in the middle of its work, another before its ACK arrives."""
    await stage.start(slow=3.0)
    unwanted = stage.make(lease=LEASE)
    unwanted.answers = lambda _: stale(unwanted)
    stage.send(unwanted)
    first = stage.send(stage.make(lease=LEASE))
    await beating(stage, first)
    second = stage.send(stage.make(lease=LEASE, after=first))
    fenced_at = now()
    await stage.ended(second)
    await stage.watch(max(QUIET, fenced_at + stage.slow + 0.5 - now()))
    for attempt, since in ((first, _told(first, 409)), (unwanted, _told(unwanted, 409))):
        _check_silence(attempt, since, "409 STALE")
        if len(attempt.results) > 1:
            raise Failed(
                f"no RESULT of {words(attempt)}, whose lease was lost, and surely no repeated one",
                f"{len(attempt.results)} came; 409 STALE means: throw the work away",
            )
        if attempt.results:
            stage.warn(f"{words(attempt)} was worked to its end although it had been fenced")
    return f"it stopped when told STALE, and attempt 2 ended {second.results[0].body['status']}"


async def late(stage: Stage) -> str:
    """One job ends behind its service's back; another's RESULT comes too late; a third one's lease only lapses."""
    await stage.start(slow=3.0)
    ended = stage.send(stage.make(lease=LEASE))
    await beating(stage, ended)
    ended.answers = lambda _: answer(ended, "LATE", None)
    told_at = now()
    too_late = stage.make(lease=LEASE)
    too_late.answers = lambda said: answer(too_late, "LATE", None) if said.kind == "result" else None
    stage.send(too_late)
    lapsed = _lapsing(stage)
    stage.send(lapsed)
    await stage.taken(too_late)
    expected = f"a RESULT of {words(too_late)}"
    takes = 2 * (stage.slow + stage.work)
    await stage.must(lambda: bool(too_late.results), expected, lambda: heard_of(too_late), takes)
    await _lapsed(stage, lapsed)
    await stage.watch(max(QUIET, told_at + stage.slow + 0.5 - now()))
    _check_silence(ended, _told(ended, 200, "LATE"), "200 LATE without lease_expires_at")
    for attempt in (ended, too_late):
        if len(attempt.results) > 1:
            raise Failed(
                "that a RESULT answered 200 LATE is not sent again", f"it was sent {len(attempt.results)} times"
            )
    return "a LATE heartbeat ended the work unless a success still counted, and a LATE RESULT was not repeated"


def _lapsing(stage: Stage) -> Attempt:
    """Its heartbeats come too late, they are told; a success would still be in time."""
    attempt = stage.make(lease=LEASE)

    def too_late(said: Said) -> Answer | None:
        return answer(attempt, "LATE", soon(LONG_LEASE)) if said.kind == "heartbeat" else None

    attempt.answers = too_late
    return attempt


async def _lapsed(stage: Stage, attempt: Attempt) -> None:
    await stage.taken(attempt)
    expected = f"a RESULT of {words(attempt)}: 200 LATE with lease_expires_at means that a success until then counts"
    takes = stage.slow + stage.work
    await stage.must(lambda: attempt.ended_by is not None, expected, lambda: heard_of(attempt), takes)
    said = attempt.results[0].body
    if said["status"] != "SUCCEEDED":
        raise Failed(expected, f"it said {said['status']} {(said.get('error') or {}).get('code')}")


async def cancel(stage: Stage) -> str:
    await stage.start(slow=4.0)
    attempt = stage.send(stage.make(lease=LEASE))
    await beating(stage, attempt)
    attempt.cancel_requested = True
    asked_at = now()
    await stage.ended(attempt)
    said = attempt.results[0]
    whole = said.at - attempt.first_handed_over
    if whole >= stage.slow * EARLY:
        stage.warn(
            f"the work went on to its end, {said.at - asked_at:.1f} s after heartbeats were answered"
            " cancel_requested: true; it may stop early"
        )
    return f"ended by {said.body['status']} {said.at - asked_at:.1f} s after the job was cancelled"


async def beating(stage: Stage, attempt: Attempt) -> None:
    """Until its first heartbeat. Raises NotShown if it ends before: then there is nothing to interrupt."""
    await stage.acked(attempt)
    await stage.until(lambda: attempt.beats or attempt.results, stage.slow + stage.options.patience)
    if attempt.beats:
        return
    if attempt.results and attempt.results[0].at - attempt.first_handed_over < SLOW_ENOUGH * stage.slow:
        raise NotShown(f"the step ended before its first heartbeat: {ADVICE}")
    raise Failed(f"heartbeats of {words(attempt)} while it runs", "none came")


def _told(attempt: Attempt, status: int, disposition: str = "") -> float:
    """When the service was first told so. Raises NotShown if it never gave an occasion."""
    told = [said for said in attempt.heard if _is(said.answer, status, disposition)]
    if not told:
        raise NotShown(f"nothing was heard of {words(attempt)} after it had lost its lease; it could not be told")
    return told[0].answered_at or told[0].at


def _is(given: Answer | None, status: int, disposition: str) -> bool:
    return given is not None and given.status == status and (not disposition or given.disposition == disposition)


def _check_silence(attempt: Attempt, since: float, told: str) -> None:
    late_beats: list[Said] = [said for said in attempt.beats if said.at > since + IN_FLIGHT]
    if late_beats:
        raise Failed(
            f"no more heartbeats of {words(attempt)} once one was answered {told}",
            f"{len(late_beats)} more came, the last {late_beats[-1].at - since:.1f} s later",
        )


CASES = [
    Case(id="stale", title="A fenced attempt is given up, and the next one done", play=stale_lease, seconds=6.0),
    Case(id="late", title="What is answered LATE is neither repeated nor worked on", play=late, seconds=6.5),
    Case(id="cancel", title="A cancelled job's step ends by a RESULT, and early", play=cancel, seconds=3.0),
]
