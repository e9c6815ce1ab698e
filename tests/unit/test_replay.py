"""What a new run would do, where no story gets easily: told from records that are made for it."""

from typing import Any

from lucius.core.decision import Applied, Decision, JobView
from lucius.core.model import Event, StepStatus, Token
from lucius.core.protocol import Choice, Decide, Protocol, StepSpec
from lucius.service.replay import Effect, effect_of
from tests.conformance.builders import job, step


def spec(step_id: str, **fields: Any) -> StepSpec:
    return StepSpec(step_id=step_id, step_type="X", service="svc", **fields)


FORKED = Protocol(
    protocol_id="p",
    version=1,
    request_type="P",
    steps=(
        StepSpec(
            step_id="big",
            kind="decision",
            decision=Decide(choices=(Choice(when="true", then="split"),), otherwise="read"),
        ),
        spec("split", on_success="file"),
        spec("read", on_success="file"),
        spec("file"),
    ),
)


def view(resume_from: Token | None, *done: str) -> JobView:
    places = FORKED.plan.places
    results = {"big": {"then": "read"}}
    steps = {
        name: step(
            "j",
            name,
            index=places[name].index,
            kind=places[name].spec.kind,
            status=StepStatus.SUCCEEDED,
            result=results.get(name),
        )
        for name in done
    }
    return JobView(job("j", pinned=FORKED, resume_from=resume_from), FORKED, steps)


def opened(before: JobView, start: str) -> Decision:
    event = Event("j", 9, "RUN_STARTED", 1, data={"from_step": start})
    return Decision(job=before.job, replies=(Applied(),), protocol=FORKED, events=(event,))


def test_a_cancelled_run_that_kept_goes_on_keeping_along_the_way_that_was_taken() -> None:
    before = view(Token("big", keeps=True), "big", "read")
    assert effect_of(before, opened(before, "big")) == Effect(first=("file",), kept=("big", "read"))


def test_one_that_did_not_keep_does_it_again_whichever_way() -> None:
    before = view(Token("big"), "big", "read")
    assert effect_of(before, opened(before, "big")) == Effect(again=("big", "read"), first=("split", "file"))


def test_with_only_the_end_left_nothing_runs() -> None:
    before = view(Token("SUCCEED"), "big", "read", "file")
    assert effect_of(before, opened(before, "SUCCEED")) == Effect(kept=("big", "read", "file"))


def test_what_opens_no_run_does_nothing_but_settle_a_step() -> None:
    before = view(None, "big")
    nothing = Decision(job=before.job, replies=(Applied(),), protocol=FORKED)
    assert effect_of(before, nothing) == Effect()
    adopted = Event("j", 9, "RESULT_ADOPTED", 1, "read", 3)
    assert effect_of(
        before, Decision(job=before.job, replies=(Applied(),), protocol=FORKED, events=(adopted,))
    ) == Effect(kept=("read",))
