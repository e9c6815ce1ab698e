"""The orchestrator is slow, ill, or away: nothing that was done may be lost, and nobody may be hammered."""

from collections.abc import Sequence
from itertools import pairwise

from lucius.conformance.book import Attempt, Said, now
from lucius.conformance.cases import Case
from lucius.conformance.evidence import require_slow
from lucius.conformance.model import Failed, NotShown
from lucius.conformance.server import Mood, Pull
from lucius.conformance.stage import Stage, heard_of, require_not_refused, words

HEEDED = 0.9  # of a Retry-After; clocks and networks may differ by the rest
AWAY = 3.0
SLOW_ANSWER = 1.5
ILL = 1.5
PER_SECOND = 20  # full jitter makes some pauses short; who does not pause at all comes far more often
PULLS_ILL = 4.0
RETRY_AFTER = 2


async def slow_orchestrator(stage: Stage) -> str:
    await stage.start()
    seconds = min(SLOW_ANSWER, stage.options.ack_seconds / 2)
    stage.server.on_callbacks = lambda _: Mood(delay=seconds)
    stage.server.on_pull = lambda _: Mood(delay=seconds)
    attempts = [stage.send(stage.make()) for _ in range(4)]
    for attempt in attempts:
        await stage.ended(attempt)
    for attempt in attempts:
        first = attempt.heard[0]
        if first.at > attempt.ack_due:
            raise Failed(
                f"an ACK within {attempt.ack_seconds:g} s of hand-over, though other callbacks are answered slowly",
                f"it came after {first.at - attempt.first_handed_over:.1f} s; an ACK must not queue behind others",
            )
    stage.server.on_callbacks = lambda _: None
    stage.server.on_pull = lambda _: None
    await stage.watch(1.0)
    repeats = sum(len(attempt.results) - 1 for attempt in attempts)
    return f"{len(attempts)} done with every answer {seconds:g} s late, {repeats} RESULTs repeated"


async def orchestrator_errors(stage: Stage) -> str:
    """A RESULT is answered 503 and 429 with a Retry-After, then 500 for a while."""
    await stage.start()
    attempt = stage.make()
    stage.server.on_callbacks = _Illness(attempt).mood
    stage.send(attempt)
    await stage.taken(attempt)
    takes = ILL + 4 * RETRY_AFTER + stage.work
    expected = f"that the RESULT of {words(attempt)} is repeated until it is taken"
    await stage.must(lambda: attempt.ended_by is not None, expected, lambda: heard_of(attempt), takes)
    _check_pauses(attempt.results)
    return f"RESULT taken at try {len(attempt.results)}; Retry-After heeded"


class _Illness:
    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._since = 0.0
        self._told = [Mood(status=429, retry_after=1), Mood(status=503, retry_after=RETRY_AFTER)]

    def mood(self, said: Sequence[Said]) -> Mood | None:
        if not any(one.token == self._attempt.token and one.kind == "result" for one in said):
            return None
        if self._told:
            return self._told.pop()  # while the service's own pauses are still short
        self._since = self._since or now()
        return Mood(status=500) if now() < self._since + ILL else None


def _check_pauses(tries: Sequence[Said]) -> None:
    ill = [said for said in tries if said.status == 500]
    if len(ill) > PER_SECOND * ILL:
        raise Failed(
            f"growing pauses between tries when the answer is 500, and at most {PER_SECOND} tries a second",
            f"{len(ill)} came in {ILL:g} s",
        )
    for said, following in pairwise(tries):
        asked = said.answer.retry_after if said.answer else None
        waited = following.at - (said.answered_at or said.at)
        if asked is not None and waited < asked * HEEDED:
            raise Failed(
                f"no try within the {asked:g} s that Retry-After asked for with {said.status}",
                f"the next came after {waited:.2f} s",
            )


async def ack_repeated(stage: Stage) -> str:
    """The first ACK is answered 503, and the work outlasts the ACK deadline: only another ACK can save the attempt."""
    await stage.start(slow=stage.options.ack_seconds + 1)
    attempt = stage.make()
    moods = [Mood(status=503, retry_after=1)]
    stage.server.on_callbacks = lambda _: moods.pop() if moods else None
    stage.send(attempt)
    await stage.taken(attempt)
    await stage.until(lambda: attempt.acked_at is not None, attempt.ack_due - now())
    if attempt.acked_at is None:
        raise Failed("that an ACK answered 503 is repeated before its deadline", heard_of(attempt))
    if attempt.results:
        require_slow(attempt, stage.slow)
    _check_pauses(attempt.acks)
    return f"ACK taken at try {len(attempt.acks)}, {attempt.ack_due - attempt.acked_at:.1f} s before its deadline"


async def pull_errors(stage: Stage) -> str:
    await stage.start()
    ill_from = now()

    def ill(pull: Pull) -> Mood | None:
        return Mood(status=503, retry_after=RETRY_AFTER) if now() < ill_from + PULLS_ILL else None

    stage.server.on_pull = ill
    stage.server.answers_at_once = True  # ends the poll that waits now
    await stage.watch(PULLS_ILL)
    stage.server.answers_at_once = False
    refused = [pull for pull in stage.server.pulls if pull.status == 503]
    attempt = stage.send(stage.make())
    await stage.ended(attempt)
    if not refused:
        raise NotShown(f"no pull came within {PULLS_ILL:g} s: nothing was seen of how errors are taken")
    if len(refused) > PER_SECOND * PULLS_ILL:
        raise Failed(
            f"pauses after pulls that are answered 503 with Retry-After: {RETRY_AFTER}",
            f"{len(refused)} pulls came in {PULLS_ILL:g} s",
        )
    if len(refused) > PULLS_ILL / (RETRY_AFTER * HEEDED) + 1:
        stage.warn(f"{len(refused)} pulls in {PULLS_ILL:g} s, though Retry-After asked for {RETRY_AFTER} s between two")
    return f"{len(refused)} refused pulls in {PULLS_ILL:g} s, then work went on"


async def answer_lost(stage: Stage) -> str:
    """The RESULT is taken and the connection breaks: the service can't know, so it must ask again."""
    await stage.start()
    attempt = stage.make()
    lost: list[Said] = []

    def lose(said: Sequence[Said]) -> Mood | None:
        mine = [one for one in said if one.token == attempt.token and one.kind == "result"]
        if lost or not mine:
            return None
        lost.extend(mine)
        return Mood(lose_answer=True)

    stage.server.on_callbacks = lose
    stage.send(attempt)
    await stage.ended(attempt)
    expected = "that a RESULT is sent again when the connection broke before its answer came"
    await stage.must(lambda: len(attempt.results) > 1, expected, lambda: "it was not", takes=2.0)
    await stage.watch(1.0)
    if len(attempt.results) > 2:
        raise Failed("two RESULTs: the second was answered 200 DUPLICATE", f"{len(attempt.results)} came")
    return f"sent again after {attempt.results[1].at - attempt.results[0].at:.1f} s, word by word"


async def orchestrator_restart(stage: Stage) -> str:
    await stage.start(slow=2.0)
    attempt = stage.send(stage.make(lease=3 * stage.slow + stage.work))
    await stage.acked(attempt)
    await stage.watch(0.5)
    if attempt.results:
        require_slow(attempt, stage.slow)
    await stage.server.away()
    await stage.watch(stage.slow - 0.5 + stage.work + AWAY - 1)
    await stage.server.back()
    back_at = now()
    await stage.ended(attempt)
    require_not_refused(attempt)
    later = stage.send(stage.make())
    await stage.ended(later)
    waited = attempt.results[0].at - back_at
    return f"the RESULT of a step that ended meanwhile came {waited:.1f} s after the return, and work went on"


async def orchestrator_away(stage: Stage) -> str:
    """So long that whoever gives up soon has given up."""
    await stage.start(slow=2.0)
    attempt = stage.send(stage.make())
    await stage.acked(attempt)
    await stage.watch(0.5)
    if attempt.results:
        require_slow(attempt, stage.slow)
    await stage.server.away()
    await stage.watch(stage.slow + stage.work + stage.options.away_seconds)
    await stage.server.back()
    back_at = now()
    expected = f"the RESULT of {words(attempt)}, however long the orchestrator was away"
    # The pauses between tries have grown by now.
    takes = stage.options.patience
    await stage.must(lambda: attempt.ended_by is not None, expected, lambda: heard_of(attempt), takes)
    require_not_refused(attempt)
    return f"the RESULT came {attempt.results[0].at - back_at:.1f} s after {stage.options.away_seconds:g} s of silence"


CASES = [
    Case(
        id="slow-orchestrator",
        title="Slow answers delay nobody's ACK and double nothing",
        play=slow_orchestrator,
        seconds=7.0,
    ),
    Case(
        id="orchestrator-errors",
        title="A callback answered 429 or 5xx is repeated, with pauses and after Retry-After",
        play=orchestrator_errors,
        seconds=8.0,
    ),
    Case(
        id="ack-repeated", title="An ACK answered 503 is repeated before its deadline", play=ack_repeated, seconds=1.5
    ),
    Case(
        id="pull-errors",
        title="A pull answered 503 is repeated, with pauses",
        play=pull_errors,
        seconds=6.0,
        about_pulls=True,
    ),
    Case(id="answer-lost", title="A RESULT whose answer was lost is sent again", play=answer_lost, seconds=2.5),
    Case(
        id="orchestrator-restart",
        title="A step that ends while the orchestrator is away is reported when it is back",
        play=orchestrator_restart,
        seconds=7.0,
    ),
    Case(
        id="orchestrator-away",
        title="A finished RESULT is kept and tried for as long as the orchestrator is away",
        play=orchestrator_away,
        seconds=32.0,
        mostly_waits=True,
    ),
]
