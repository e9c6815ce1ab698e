"""What a service must survive: callbacks that are refused, and directives that are none."""

import msgspec

from lucius.conformance.book import Answer, Attempt, Said, problem
from lucius.conformance.cases import Case
from lucius.conformance.directives import spoiled
from lucius.conformance.feed import Parcel
from lucius.conformance.model import Failed
from lucius.conformance.server import Mood, Pull
from lucius.conformance.stage import Stage, heard_of

MOST_REFUSED = 3
REFUSED_FOR = 3.0


async def refused_callbacks(stage: Stage) -> str:
    """As if one directive's token had been spoilt on its way."""
    await stage.start()
    refused = [_refusing(stage, 401), _refusing(stage, 403)]
    good = [stage.make() for _ in range(3)]
    for attempt in (good[0], refused[0], good[1], refused[1], good[2]):
        stage.send(attempt)
    for attempt in good:
        await stage.ended(attempt)
    await stage.watch(REFUSED_FOR)
    afterwards = stage.send(stage.make())
    await stage.ended(afterwards)
    for attempt in refused:
        for kind in ("ack", "heartbeat", "result"):
            said = [one for one in attempt.heard if one.kind == kind]
            if len(said) > MOST_REFUSED:
                raise Failed(
                    f"that a callback answered {said[0].status} is not said over and over: it never gets better",
                    f"{len(said)} times the same {kind.upper()} in {said[-1].at - said[0].at:.1f} s",
                )
    heard = "; ".join(f"{attempt.heard[0].status}: {len(attempt.heard)} tries" for attempt in refused if attempt.heard)
    return f"{len(good) + 1} others done, each with its own token; {heard}"


def _refusing(stage: Stage, status: int) -> Attempt:
    code = "INVALID_CALLBACK_TOKEN" if status == 401 else "CALLBACK_TOKEN_MISMATCH"

    def refuse(said: Said) -> Answer:
        return problem(status, code, "a rehearsed refusal")

    attempt = stage.make()
    attempt.answers = refuse
    return attempt


async def malformed(stage: Stage) -> str:
    await stage.start()
    good = [stage.make() for _ in range(3)]
    template = stage.make()
    template.disowned = True
    others = _of_another_service(stage)
    unknown = _of_unknown_type(stage)
    stage.send(good[0])
    for _, message in spoiled(template.directive):
        stage.feed.send(Parcel(message))
    stage.send(others)
    stage.send(unknown)
    stage.send(good[1])
    await stage.ended(good[0])
    await stage.ended(good[1])
    if stage.feed.pulled_over_http:
        await _garbage(stage)
    good[2].directive |= {"x_new": {"nested": [1, 2]}, "x_flag": True}
    stage.send(good[2])
    await stage.ended(good[2])
    if _succeeded(others):
        raise Failed("that a directive meant for another service is not worked on", f"it was: {heard_of(others)}")
    if _succeeded(template):
        stage.warn("a directive that does not fit the contract was worked on")
    count = sum(1 for _ in spoiled(template.directive))
    return f"{count} spoilt directives and a page of HTML survived, {len(good)} good ones done"


def _succeeded(attempt: Attempt) -> bool:
    return any(said.body.get("status") == "SUCCEEDED" for said in attempt.results)


def _of_another_service(stage: Stage) -> Attempt:
    attempt = stage.make()
    attempt.directive["service"] = f"not-{attempt.directive['service']}"
    return attempt


def _of_unknown_type(stage: Stage) -> Attempt:
    """May be ignored, failed, or done by a service that does whatever it is asked for."""
    attempt = stage.make()
    attempt.directive["step_type"] = "NO_SUCH_STEP_TYPE"
    return attempt


async def _garbage(stage: Stage) -> None:
    """One pull is answered by something in between, with 200 and a page; the next ones are normal."""
    pages = [b"<html><body>Welcome to the hotel's network</body></html>", msgspec.json.encode({"directives": 7})]
    seen = len(stage.server.pulls)

    def interrupt(pull: Pull) -> Mood | None:
        return Mood(body=pages.pop()) if pages else None

    stage.server.on_pull = interrupt
    stage.server.answers_at_once = True  # ends the poll that waits now

    def went_on() -> bool:
        return not pages and len(stage.server.pulls) > seen

    await stage.must(went_on, "that the service goes on pulling", lambda: "it does not", takes=0.0)
    stage.server.answers_at_once = False


CASES = [
    Case(
        id="refused-callbacks",
        title="Callbacks carry their own attempt's token, and are not repeated when it is refused",
        play=refused_callbacks,
        seconds=4.5,
    ),
    Case(
        id="malformed",
        title="Directives that can't be read harm neither the good ones nor the process",
        play=malformed,
        seconds=3.0,
    ),
]
