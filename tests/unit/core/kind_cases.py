"""Transitions that other kinds of steps, pauses and new runs add, each with a story that takes them."""

from collections.abc import Callable
from typing import Any

from lucius.core.model.statuses import JobStatus, StepStatus
from lucius.core.protocol.definition import StepSpec
from tests.unit.core.builders import MINUTE, Story
from tests.unit.core.shapes import approval, call, decision, parallel, protocol, risky, task, wait_for
from tests.unit.core.transition_cases import Case, queued

J, S = JobStatus, StepStatus


def begun(*steps: StepSpec, **policies: Any) -> Story:
    return Story(protocol(*steps, **policies)).dispatched()


def paused(story: Story) -> Story:
    story.pause()
    return story


def asked() -> Story:
    return begun(approval("ocr"), task("sis"))


def awaiting(name: str = "go") -> Story:
    return begun(wait_for("ocr", name, timeout_ms=MINUTE), task("sis"))


def stale(story: Story) -> Story:
    """Let the first attempt lose its lease, the second run, and then the first succeed."""
    story.hand_over()
    story.ack()
    fenced = story.lease
    story.tick_when_due()
    story.tick_when_due()
    story.succeed(fenced)
    return story


def acted_on(story: Story, *acts: Callable[[Story], object]) -> Story:
    for act in acts:
        act(story)
    return story


PAUSES = [
    Case("a queued job is paused", lambda: queued(Story()), Story.pause, job=((J.QUEUED, J.PAUSED),)),
    Case("a dispatching job is paused", lambda: Story().dispatched(), Story.pause, job=((J.DISPATCHING, J.PAUSED),)),
    Case("a running job is paused", lambda: Story().processing(), Story.pause, job=((J.IN_PROGRESS, J.PAUSED),)),
    Case("a job that waits for people is paused", asked, Story.pause, job=((J.WAITING_APPROVAL, J.PAUSED),)),
    Case(
        "a job is resumed before its first hand-over",
        lambda: paused(queued(Story())),
        Story.resume,
        job=((J.PAUSED, J.DISPATCHING),),
        step=((S.PENDING, S.DISPATCHING),),
    ),
    Case("a job is resumed", lambda: paused(Story().processing()), Story.resume, job=((J.PAUSED, J.IN_PROGRESS),)),
    Case(
        "a job is resumed to wait for people",
        lambda: paused(asked()),
        Story.resume,
        job=((J.PAUSED, J.IN_PROGRESS), (J.IN_PROGRESS, J.WAITING_APPROVAL)),
    ),
    Case(
        "a paused job is cancelled", lambda: paused(Story().processing()), Story.cancel, job=((J.PAUSED, J.CANCELLING),)
    ),
    Case(
        "a step that must not be repeated fails: the job is held",
        lambda: begun(risky("ocr"), task("sis")),
        lambda story: story.botch("ocr"),
        job=((J.IN_PROGRESS, J.PAUSED),),
        step=((S.PROCESSING, S.FAILED_FINAL),),
    ),
]

PEOPLE = [
    Case(
        "a job begins by asking",
        lambda: queued(Story(protocol(approval("ocr"), task("sis")))),
        Story.start,
        job=((J.QUEUED, J.DISPATCHING), (J.DISPATCHING, J.IN_PROGRESS), (J.IN_PROGRESS, J.WAITING_APPROVAL)),
        step=((S.PENDING, S.AWAITING_APPROVAL),),
    ),
    Case(
        "somebody approves",
        asked,
        lambda story: story.approve("ocr"),
        job=((J.WAITING_APPROVAL, J.IN_PROGRESS),),
        step=((S.AWAITING_APPROVAL, S.SUCCEEDED),),
    ),
    Case(
        "somebody rejects",
        asked,
        lambda story: story.reject("ocr"),
        job=((J.WAITING_APPROVAL, J.IN_PROGRESS), (J.IN_PROGRESS, J.FAILED_FINAL)),
        step=((S.AWAITING_APPROVAL, S.FAILED_FINAL), (S.PENDING, S.SKIPPED)),
    ),
    Case(
        "a job that waits for people is cancelled",
        asked,
        Story.cancel,
        job=((J.WAITING_APPROVAL, J.CANCELLING), (J.CANCELLING, J.CANCELLED)),
        step=((S.AWAITING_APPROVAL, S.CANCELLED),),
    ),
]

WAITS = [
    Case(
        "a signal is awaited",
        lambda: queued(Story(protocol(wait_for("ocr", "go")))),
        Story.start,
        job=((J.QUEUED, J.DISPATCHING), (J.DISPATCHING, J.IN_PROGRESS)),
        step=((S.PENDING, S.WAITING),),
    ),
    Case("a signal comes", awaiting, lambda story: story.signal("go"), step=((S.WAITING, S.SUCCEEDED),)),
    Case(
        "a signal does not come",
        awaiting,
        Story.tick_when_due,
        job=((J.IN_PROGRESS, J.FAILED_FINAL),),
        step=((S.WAITING, S.FAILED_FINAL),),
    ),
    Case(
        "a job is cancelled while it waits",
        awaiting,
        Story.cancel,
        job=((J.IN_PROGRESS, J.CANCELLING), (J.CANCELLING, J.CANCELLED)),
        step=((S.WAITING, S.CANCELLED),),
    ),
]

AT_ONCE = [
    Case(
        "a decision is made",
        lambda: queued(Story(protocol(decision("ocr", {"True": "sis"}), task("sis")))),
        Story.start,
        job=((J.QUEUED, J.DISPATCHING),),
        step=((S.PENDING, S.SUCCEEDED), (S.PENDING, S.DISPATCHING)),
    ),
    Case(
        "an expression can't be evaluated",
        lambda: queued(Story(protocol(decision("ocr", {"nonsense": "SUCCEED"})))),
        Story.start,
        job=((J.QUEUED, J.DISPATCHING), (J.DISPATCHING, J.IN_PROGRESS), (J.IN_PROGRESS, J.FAILED_FINAL)),
        step=((S.PENDING, S.FAILED_FINAL),),
    ),
    Case(
        "branches are made",
        lambda: queued(Story(protocol(parallel("ocr", task("sis"))))),
        Story.start,
        job=((J.QUEUED, J.DISPATCHING), (J.DISPATCHING, J.IN_PROGRESS)),
        step=((S.PENDING, S.PROCESSING), (S.PENDING, S.DISPATCHING)),
    ),
]

ADOPTED = [
    Case(
        "a result is adopted before hand-over",
        lambda: stale(Story().dispatched()),
        Story.adopt,
        step=((S.DISPATCHING, S.SUCCEEDED),),
    ),
    Case(
        "a result is adopted before the ACK",
        lambda: acted_on(stale(Story().dispatched()), Story.hand_over),
        Story.adopt,
        step=((S.INITIATED, S.SUCCEEDED),),
    ),
]


# Steps that have ended and begin again, in another visit or a new run


def again(ended: StepStatus, spec: StepSpec) -> Story:
    """Return a job whose step `ocr` has ended with this status; a retry from it begins it again."""
    fits = {"type": "object", "required": ["never"]}
    if ended is S.CANCELLED:
        story = begun(spec, task("sis"))
        story.cancel()
        return story
    if ended is S.FAILED_FINAL:
        story = begun(spec, task("sis"))
        _fail(story)
        return story
    story = Story(protocol(spec, output_schema=fits)).dispatched()
    if ended is S.SKIPPED:
        (_succeed if spec.kind == "parallel" else _fail)(story)
        story.skip({})
    else:
        _succeed(story)
    assert (story.status, story.status_of("ocr")) == (J.FAILED_FINAL, ended)
    return story


def _fail(story: Story) -> None:
    match story.protocol.steps[0].kind:
        case "wait":
            story.tick_when_due()
        case "human_approval":
            story.reject("ocr")
        case "parallel":
            story.botch("inside")
        case "decision":
            assert not story.job.live
        case _:
            story.botch("ocr")


def _succeed(story: Story) -> None:
    match story.protocol.steps[0].kind:
        case "wait":
            story.signal("go")
        case "human_approval":
            story.approve("ocr")
        case "parallel":
            story.do("inside")
        case "decision":
            assert not story.job.live
        case _:
            story.do("ocr")


FIRST_RUNS = {S.SUCCEEDED: 1, S.FAILED_FINAL: 1, S.CANCELLED: 1, S.SKIPPED: 2}


def _fine_at_first(ended: StepStatus) -> StepSpec:
    """Return a call whose template renders until the run that begins it again."""
    return call("ocr", {"n": f"${{1 / (job.run_no <= {FIRST_RUNS[ended]})}}"})


def _wrong_at_first(ended: StepStatus) -> StepSpec:
    """Return a decision that fails, if the status requires it, until the run that repeats it."""
    fails = ended is not S.SUCCEEDED
    return decision("ocr", {f"1 / (job.run_no > {FIRST_RUNS[ended]}) > 0" if fails else "True": "SUCCEED"})


STARTS: dict[StepStatus, Callable[[StepStatus], StepSpec]] = {
    S.DISPATCHING: lambda ended: task("ocr"),
    S.WAITING: lambda ended: wait_for("ocr", "go", timeout_ms=MINUTE),
    S.AWAITING_APPROVAL: lambda ended: approval("ocr"),
    S.PROCESSING: lambda ended: parallel("ocr", task("inside")),
    S.SUCCEEDED: _wrong_at_first,
    S.FAILED_FINAL: _fine_at_first,
}


def _again_case(ended: StepStatus, start: StepStatus) -> Case:
    if (ended, start) == (S.CANCELLED, S.SUCCEEDED):
        return Case(
            "a cancelled step gets an adopted result",
            lambda: acted_on(stale(Story().dispatched()), Story.cancel),
            Story.adopt,
            step=((S.CANCELLED, S.SUCCEEDED),),
        )
    return Case(
        f"a step that ended {ended} begins again in a new run: {start}",
        lambda: again(ended, STARTS[start](ended)),
        lambda story: story.retry("ocr"),
        step=((ended, start),),
    )


ENDS = (S.SUCCEEDED, S.FAILED_FINAL, S.CANCELLED, S.SKIPPED)
AGAIN = [_again_case(ended, start) for ended in ENDS for start in STARTS]
SKIPPED = [
    Case(
        f"a person skips a step that had ended {ended}",
        lambda ended=ended: again(ended, task("ocr")),  # type: ignore[misc]
        lambda story: story.skip({}),
        step=((ended, S.SKIPPED),),
    )
    for ended in ENDS
]

RUNS = [
    Case(
        "a failed job is run again",
        lambda: Story().dispatched().botch("ocr"),
        Story.retry,
        job=((J.FAILED_FINAL, J.QUEUED), (J.QUEUED, J.DISPATCHING)),
        step=((S.FAILED_FINAL, S.DISPATCHING),),
    ),
    Case(
        "a cancelled job is run again",
        lambda: acted_on(Story().dispatched(), Story.cancel),
        Story.retry,
        job=((J.CANCELLED, J.QUEUED), (J.QUEUED, J.DISPATCHING)),
        step=((S.CANCELLED, S.DISPATCHING),),
    ),
]

KIND_CASES = [*PAUSES, *PEOPLE, *WAITS, *AT_ONCE, *ADOPTED, *AGAIN, *SKIPPED, *RUNS]
