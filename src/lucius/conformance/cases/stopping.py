"""The service itself stops: killed in the middle of a step, killed with a result in hand, or asked to go."""

from lucius.conformance.book import Attempt, now
from lucius.conformance.cases import Case
from lucius.conformance.evidence import ADVICE, IN_FLIGHT, Marks, executed_again, marks
from lucius.conformance.model import Failed, NotShown
from lucius.conformance.process import exit_words
from lucius.conformance.stage import Stage, heard_of, words

QUIET = 1.5
REACTS_WITHIN = 0.5


async def killed_mid_step(stage: Stage) -> str:
    await stage.start(slow=2.5)
    attempt = stage.send(stage.make())
    await stage.acked(attempt)
    await stage.watch(0.3 * stage.slow)
    if attempt.results:
        raise NotShown(f"the step ended before it could be interrupted: {ADVICE}")
    await stage.kill()
    await stage.start(slow=stage.slow)
    stage.send(attempt)
    expected = f"a RESULT of {words(attempt)}, delivered again after a kill"
    takes = 2 * stage.slow + stage.work
    await stage.must(lambda: attempt.ended_by is not None, expected, lambda: heard_of(attempt), takes)
    again_at = await stage.taken_again(attempt)
    await stage.watch(max(QUIET, again_at + stage.slow + stage.work + 1 - now()))
    said = attempt.results[0].body
    error = f" {said['error'].get('code')}" if said.get("error") else ""
    return f"one RESULT after the restart: {said['status']}{error}"


async def killed_finished(stage: Stage) -> str:
    """The work is done, nobody listens, and the process is killed: the RESULT must be on disk by then."""
    await stage.start(slow=2.0)
    # Long enough not to run out before the work is done, and short enough for heartbeats if it is done again.
    attempt = stage.send(stage.make(lease=1.5 * stage.slow))
    await stage.acked(attempt)
    await stage.watch(0.25 * stage.slow)
    if attempt.results:
        raise NotShown(f"the step ended before the orchestrator could go away: {ADVICE}")
    await stage.server.away()
    await stage.watch(0.75 * stage.slow + 2 * stage.work + 1.0)
    before = marks(attempt)
    await stage.kill()
    await stage.server.back()
    heard, restarted_at = len(attempt.heard), now()
    await stage.start(slow=stage.slow)
    expected = f"the RESULT of {words(attempt)}, which was done before the kill, from the data folder"
    await stage.must(lambda: bool(attempt.results), expected, lambda: "none came", takes=stage.slow)
    said = attempt.results[0]
    if said.body["status"] != "SUCCEEDED":
        raise Failed(expected, f"it said {said.body['status']} {(said.body.get('error') or {}).get('code')}")
    _check_not_done_again(attempt, heard, before)
    stage.send(attempt)
    again_at = await stage.taken_again(attempt)
    await stage.watch(stage.slow + stage.work + IN_FLIGHT)
    if signs := executed_again(attempt, again_at, before, stage.slow):
        raise Failed("that the directive is not executed when it comes again", "; ".join(signs))
    return f"RESULT {said.at - restarted_at:.1f} s after the restart, without working again"


def _check_not_done_again(attempt: Attempt, heard: int, before: Marks) -> None:
    """After the first `heard` callbacks, and beyond the files of `before`."""
    beats = [said for said in attempt.heard[heard:] if said.kind == "heartbeat"]
    rewritten = [path.name for path, mark in marks(attempt).items() if before.get(path) != mark]
    if beats or rewritten:
        sign = f"{len(beats)} heartbeats came" if beats else f"{', '.join(rewritten)} was written again"
        raise Failed(
            "that the RESULT comes from the data folder, without another execution", f"after the restart {sign}"
        )


async def graceful_stop(stage: Stage) -> str:
    await stage.start(slow=2.5)
    attempt = stage.send(stage.make())
    await stage.acked(attempt)
    await stage.watch(0.2 * stage.slow)
    if attempt.results:
        raise NotShown(f"the step ended before the service was asked to stop: {ADVICE}")
    assert stage.process is not None
    stage.may_end = True
    stage.process.terminate()
    asked_at = now()
    await stage.watch(REACTS_WITHIN)
    second = stage.send(stage.make())
    within = stage.slow + stage.work + stage.options.patience
    code = await stage.process.wait(within)
    took = now() - asked_at
    if code is None:
        raise Failed(f"an end within {within:.0f} s of SIGTERM", "the process still runs")
    _check_stop(stage, asked_at, attempt, second)
    if code != 0:
        raise Failed("exit code 0 after SIGTERM", f"the process {exit_words(code)}")
    return f"{attempt.results[0].body['status']}, then exit code 0 {took:.1f} s after SIGTERM"


def _check_stop(stage: Stage, asked_at: float, attempt: Attempt, second: Attempt) -> None:
    late = [pull for pull in stage.server.pulls if pull.at > asked_at + REACTS_WITHIN]
    if late:
        raise Failed("no pull after SIGTERM", f"{len(late)} came, the first {late[0].at - asked_at:.1f} s later")
    if not attempt.results:
        raise Failed(f"a RESULT of {words(attempt)} (SUCCEEDED, or FAILED if it must be cut short)", heard_of(attempt))
    if second.handed_over and not second.results:
        raise Failed(
            "that a service which stops takes nothing more, or does it",
            "the poll that was open took a directive and nothing was heard of it; close the connection at SIGTERM",
        )


CASES = [
    Case(
        id="killed-mid-step",
        title="After kill -9 in the middle of a step, its attempt has one RESULT",
        play=killed_mid_step,
        seconds=6.0,
    ),
    Case(
        id="killed-finished",
        title="A finished RESULT survives kill -9 while the orchestrator is away",
        play=killed_finished,
        seconds=7.0,
    ),
    Case(
        id="graceful-stop",
        title="SIGTERM lets the step end or reports it, and ends the process with 0",
        play=graceful_stop,
        seconds=3.5,
    ),
]
