"""Previews of new runs in rare situations, from records built for the test."""

from typing import Any

from msgspec.structs import replace

from lucius.core.model.decision import Applied, Decision, JobSnapshot
from lucius.core.model.records import Compensation, Event, Token
from lucius.core.model.statuses import StepStatus
from lucius.core.protocol.definition import Choice, Decide, ProtocolDefinition, StepSpec
from lucius.usecases.operations.rerun_preview import Effect, effect_of
from tests.conformance.builders import job, step


def spec(step_id: str, **fields: Any) -> StepSpec:
    return StepSpec(step_id=step_id, step_type="X", service="svc", **fields)


FORKED = ProtocolDefinition(
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


def view(resume_from: Token | None, *done: str) -> JobSnapshot:
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
    return JobSnapshot(job("j", pinned=FORKED, resume_from=resume_from), FORKED, steps)


def opened(before: JobSnapshot, start: str) -> Decision:
    event = Event("j", 9, "RUN_STARTED", 1, data={"from_step": start})
    return Decision(job=before.job, replies=(Applied(),), protocol=FORKED, events=(event,))


def test_retry_of_a_cancelled_run_that_kept_results_keeps_those_on_the_taken_path() -> None:
    before = view(Token("big", keeps=True), "big", "read")
    assert effect_of(before, opened(before, "big")) == Effect(first=("file",), kept=("big", "read"))


def test_retry_of_a_run_that_kept_no_results_repeats_the_steps_of_both_paths() -> None:
    before = view(Token("big"), "big", "read")
    assert effect_of(before, opened(before, "big")) == Effect(again=("big", "read"), first=("split", "file"))


def test_retry_with_only_the_end_left_runs_no_step() -> None:
    before = view(Token("SUCCEED"), "big", "read", "file")
    assert effect_of(before, opened(before, "SUCCEED")) == Effect(kept=("big", "read", "file"))


def test_decision_that_opens_no_run_only_keeps_the_adopted_step() -> None:
    before = view(None, "big")
    nothing = Decision(job=before.job, replies=(Applied(),), protocol=FORKED)
    assert effect_of(before, nothing) == Effect()
    adopted = Event("j", 9, "RESULT_ADOPTED", 1, "read", 3)
    assert effect_of(
        before, Decision(job=before.job, replies=(Applied(),), protocol=FORKED, events=(adopted,))
    ) == Effect(kept=("read",))


def test_compensation_includes_steps_stopped_while_a_service_had_them() -> None:
    before = view(None, "big", "read")
    event = Event("j", 9, "COMPENSATION_STARTED", 1, data={"by": "ada", "steps": ["read"]})
    after = replace(before.job, compensation=Compensation(("split", "read"), 1, "ada", cleared=True))
    decision = Decision(job=after, replies=(Applied(),), protocol=FORKED, events=(event,))
    assert effect_of(before, decision) == Effect(undone=("split", "read"))
