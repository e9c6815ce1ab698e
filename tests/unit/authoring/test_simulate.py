"""A simulation behaves like the real engine and is deterministic."""

import msgspec
import pytest

from lucius.authoring.script import (
    Ballot,
    Script,
    ScriptedAct,
    ScriptedAnswer,
    ScriptedFailure,
    ScriptedSignal,
    ScriptedSilence,
    ScriptError,
    check,
)
from lucius.authoring.simulate import SimulationLimits
from lucius.core.model.statuses import FailureClass
from tests.unit.authoring.support import (
    approval,
    call,
    decision,
    path_of,
    protocol,
    simulate,
    statuses,
    task,
    timeline_of,
    wait,
)

TRANSIENT, FINAL = ScriptedFailure(FailureClass.TRANSIENT), ScriptedFailure(FailureClass.NON_RETRYABLE)


def test_services_acknowledge_and_succeed_by_default() -> None:
    report = simulate(protocol(task("a"), task("b")))
    assert (report.status, report.ended, report.took_ms, report.attempts_total) == ("SUCCEEDED", True, 2_000, 2)
    assert timeline_of(report, "a") == ["attempt 1 goes to service x", "succeeded"]


def test_failures_are_retried_after_the_delays_of_the_policy() -> None:
    policy = {"backoff_strategy": "exponential", "initial_delay_ms": 2_000}
    report = simulate(protocol(task("a", retry_policy=policy)), Script(failures={"a": (TRANSIENT, TRANSIENT)}))
    assert [attempt.outcome for attempt in report.steps[0].attempts] == ["FAILED", "FAILED", "SUCCEEDED"]
    assert report.took_ms == 1_000 + 2_000 + 1_000 + 4_000 + 1_000
    assert "attempt 1 failed with TRANSIENT (SIMULATED); tried again in 2 s" in timeline_of(report, "a")
    assert any(entry.event == "WAITS" and "attempt 1 of 3" in entry.text for entry in report.timeline)


def test_jitter_comes_from_the_seed_alone() -> None:
    made, script = protocol(task("a")), Script(failures={"a": (TRANSIENT,)})
    encoded = [msgspec.json.encode(simulate(made, script, seed=seed)) for seed in (1, 1, 2)]
    assert encoded[0] == encoded[1]
    assert encoded[0] != encoded[2]


@pytest.mark.parametrize(
    ("silent", "outcome", "took"),
    [
        (ScriptedSilence("ack"), "ACK_TIMEOUT", 30_000 + 60_000 + 1_000),
        (ScriptedSilence("lease"), "LEASE_EXPIRED", 120_000 + 5_000 + 1_000),
        (ScriptedSilence("step"), "STEP_TIMEOUT", 600_000 + 5_000 + 1_000),
    ],
)
def test_silent_service_causes_each_kind_of_timeout(silent: ScriptedSilence, outcome: str, took: int) -> None:
    fixed = {"backoff_strategy": "fixed"}
    made = protocol(task("a", lease_ms=120_000, timeout_ms=600_000, retry_policy=fixed))
    report = simulate(made, Script(failures={"a": (silent,)}))
    assert [attempt.outcome for attempt in report.steps[0].attempts] == [outcome, "SUCCEEDED"]
    assert report.took_ms == took


def test_a_long_task_keeps_its_lease_by_heartbeats() -> None:
    report = simulate(protocol(task("a", lease_ms=60_000)), Script(durations={"a": 3_600_000}))
    assert (report.status, report.took_ms) == ("SUCCEEDED", 3_600_000)


def test_unanswered_call_without_a_timeout_fails_after_the_default() -> None:
    report = simulate(protocol(call("a")), Script(failures={"a": (ScriptedSilence("step"),)}))
    first = report.steps[0].attempts[0]
    assert (first.outcome, first.error and first.error.code, first.to_ms) == ("FAILED", "TIMEOUT", 30_000)


def test_answer_of_a_call_is_mapped_by_result_and_error_rules() -> None:
    rule = {"when": "response.body.state == 'GONE'", "failure_class": "NON_RETRYABLE", "code": "IT_IS_GONE"}
    made = protocol(call("a", result="response.body.id", errors=[rule]))
    assert simulate(made, Script(answers={"a": (ScriptedAnswer({"id": 7}),)})).steps[0].result == 7
    gone = simulate(made, Script(answers={"a": (ScriptedAnswer({"state": "GONE"}),)}))
    assert gone.error is not None
    assert gone.error.code == "IT_IS_GONE"
    busy = simulate(made, Script(answers={"a": (ScriptedAnswer(None, 503), ScriptedAnswer({"id": 8}))}))
    assert [attempt.failure_class for attempt in busy.steps[0].attempts] == ["TRANSIENT", None]


def test_call_without_a_scripted_answer_succeeds_and_reading_its_result_adds_a_note() -> None:
    made = protocol(call("a", result="response.body.id"), decision("d", "FAIL", b="steps.a.result.x > 1"), task("b"))
    report = simulate(made)
    assert statuses(report) == {"a": "SUCCEEDED", "d": "FAILED_FINAL", "b": "SKIPPED"}
    assert report.notes == ["an expression reads the result of a, which --result does not give"]
    assert simulate(protocol(task("a"), task("b"))).notes == []


GUARD = {"url": "https://a.example/by-key", "done_when": "response.status == 200", "result": "response.body.id"}


def test_guard_is_called_before_the_second_attempt_and_can_replace_it() -> None:
    made = protocol(call("a", guard=GUARD, retry_safety="SAFE_TO_RETRY_WITH_GUARD"))
    failures = {"a": (TRANSIENT,)}
    done = simulate(made, Script(failures=failures, guards={"a": (ScriptedAnswer({"id": 4}),)}))
    assert done.steps[0].result == 4
    assert "the guard is called first and answers 200, so that the call is not made again" in timeline_of(done, "a")
    anew = simulate(made, Script(failures=failures, answers={"a": (ScriptedAnswer({"id": 5}),)}))
    assert anew.steps[0].result == {"id": 5}
    assert "the guard is called first and answers 404, so that the call is made" in timeline_of(anew, "a")


def test_approval_without_a_scripted_vote_and_timeout_never_ends() -> None:
    report = simulate(protocol(approval("a", "finance")))
    assert (report.ended, report.status) == (False, "WAITING_APPROVAL")
    assert report.stands_still is not None
    assert report.stands_still.startswith("waiting for approval by finance")


def test_anonymous_approval_fills_the_quorum() -> None:
    made = protocol(approval("a", "finance", "cfo", quorum=3))
    report = simulate(made, Script(ballots={"a": (Ballot(True),)}))
    assert report.status == "SUCCEEDED"
    assert [t for t in timeline_of(report, "a") if t.startswith("approved")] == [
        "approved by finance",
        "approved by cfo",
        "approved by finance-2",
    ]


def test_vote_of_an_unlisted_person_is_refused() -> None:
    report = simulate(protocol(approval("a", "finance")), Script(ballots={"a": (Ballot(True, "mallory"),)}))
    assert report.stands_still is not None
    assert any("NOT_AN_APPROVER" in text for text in timeline_of(report, "a"))


def test_each_visit_of_a_loop_uses_the_next_ballot() -> None:
    made = protocol(approval("a", "x", quorum=2, on_failure="b", on_success="SUCCEED"), task("b", on_success="a"))
    report = simulate(made, Script(ballots={"a": (Ballot(False), Ballot(True))}))
    assert (report.status, path_of(report)) == ("SUCCEEDED", ["a", "b", "a"])
    assert [leg.because for leg in report.path] == ["", "on_failure of a", ""]
    assert report.took_ms == 60_000 + 1_000 + 2 * 60_000


def test_signal_arrives_when_awaited_or_at_the_scripted_time() -> None:
    made = protocol(task("t"), wait("a", signal="go", timeout_ms=3_600_000, on_timeout="late"), task("late"))
    assert simulate(made, Script(signals=(ScriptedSignal("go", 1),))).steps[1].result["payload"] == 1
    early = simulate(made, Script(signals=(ScriptedSignal("go", 2, at=0),)))
    assert (early.steps[1].result["payload"], early.took_ms) == (2, 2_000)
    late = simulate(made, Script(signals=(ScriptedSignal("go", 3, at=7_200_000),)))
    assert [leg.because for leg in late.path] == ["", "", "on_timeout of a"]


def test_scripted_signal_is_delivered_once() -> None:
    made = protocol(wait("a", signal="go"), wait("b", signal="go"))
    report = simulate(made, Script(signals=(ScriptedSignal("go"),)))
    assert statuses(report) == {"a": "SUCCEEDED", "b": "WAITING"}
    assert simulate(made, Script(signals=(ScriptedSignal("go"), ScriptedSignal("go")))).status == "SUCCEEDED"


def test_stopped_step_reports_nothing_more() -> None:
    branches = {"one": [task("a")], "two": [task("b")]}
    made = protocol(
        {"step_id": "p", "kind": "parallel", "parallel": {"branches": branches}, "on_failure": "z"}, task("z")
    )
    report = simulate(made, Script(failures={"a": (FINAL,)}, durations={"b": 1_500}))
    assert timeline_of(report, "b") == ["attempt 1 goes to service x", "stopped (FENCED)"]


def test_reason_of_a_wait_is_in_the_timeline_once() -> None:
    branches = {"one": [wait("a", duration_ms=60_000)], "two": [task("b"), task("c")]}
    report = simulate(protocol({"step_id": "p", "kind": "parallel", "parallel": {"branches": branches}}))
    assert [entry.step_id for entry in report.timeline if entry.event == "WAITS"] == ["a"]


def test_pause_delays_the_next_step_and_cancel_ends_the_job() -> None:
    made = protocol(task("a"), task("b"))
    paused = simulate(made, Script(acts=(ScriptedAct("pause", 500), ScriptedAct("resume", 60_000))))
    assert (paused.status, paused.took_ms) == ("SUCCEEDED", 61_000)
    cancelled = simulate(made, Script(acts=(ScriptedAct("cancel", 500),)))
    assert (cancelled.status, statuses(cancelled)) == ("CANCELLED", {"a": "SUCCEEDED", "b": "CANCELLED"})
    for_ever = simulate(made, Script(acts=(ScriptedAct("pause", 500),)))
    assert for_ever.stands_still is not None
    assert "paused by operator" in for_ever.stands_still


def test_troubles_can_name_one_item_of_a_map() -> None:
    mapped = {"step_id": "m", "kind": "map", "map": {"items": "input.list", "steps": [task("t")], "join": "collect"}}
    report = simulate(protocol(mapped), Script(failures={"t.1": (FINAL,)}), {"list": [1, 2, 3]})
    assert statuses(report) == {"m": "SUCCEEDED", "t.0": "SUCCEEDED", "t.1": "FAILED_FINAL", "t.2": "SUCCEEDED"}
    every = simulate(protocol(mapped), Script(failures={"t": (FINAL,)}), {"list": [1, 2]})
    assert every.steps[0].result["failed"] == 2


def test_map_over_a_thousand_items_is_simulated() -> None:
    mapped = {"step_id": "m", "kind": "map", "map": {"items": "input.list", "steps": [task("t")]}}
    report = simulate(protocol(mapped), None, {"list": list(range(1_000))})
    assert (report.status, len(report.steps)) == ("SUCCEEDED", 1_001)


def test_undone_steps_are_listed_in_order_and_with_those_not_undone() -> None:
    made = protocol(
        task("a", compensation=task("undo-a")),
        task("b", compensation=task("undo-b")),
        task("c", retry_safety="NOT_SAFE_TO_RETRY"),
        policies={"compensation": "auto"},
    )
    report = simulate(made, Script(failures={"c": (TRANSIENT,)}))
    assert (report.status, report.undone, report.not_undone) == ("FAILED_FINAL", ["b", "a"], [])
    assert [item.kind for item in report.reviews] == ["COMPENSATION"]
    assert path_of(report) == ["a", "b", "c"]
    assert timeline_of(report, "undo-b")[0] == "attempt 1 goes to service x (undoes b)"
    halted = simulate(made, Script(failures={"c": (TRANSIENT,), "undo-b": (FINAL,)}))
    assert (halted.undone, halted.not_undone) == ([], ["b", "a"])
    assert halted.stands_still is not None
    assert halted.stands_still.endswith("after SIMULATED in step undo-b")


def test_a_simulation_is_bounded_in_time_and_in_work() -> None:
    made = protocol(task("a", max_visits=1000), wait("w", duration_ms=3_600_000, on_success="a", max_visits=1000))
    late = simulate(made, limits=SimulationLimits(max_time_ms=86_400_000))
    assert late.cut_off is not None
    assert late.cut_off.startswith("it would take longer than 1 d: step w waits")
    busy = simulate(made, limits=SimulationLimits(max_decisions=50))
    assert busy.cut_off is not None
    assert "50 decisions" in busy.cut_off


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (Script(failures={"nix": (TRANSIENT,)}), "there is no step nix; there are a, s, c"),
        (Script(failures={"a.1": (TRANSIENT,)}), "there is no step a.1"),
        (Script(failures={"s": (TRANSIENT,)}), "can't fail or time out by itself"),
        (Script(failures={"a": (ScriptedSilence("step"),)}), "step a has no timeout_ms"),
        (Script(failures={"c": (ScriptedSilence("ack"),)}), "is done by the engine itself, without an ACK"),
        (Script(answers={"s": (ScriptedAnswer(),)}), "takes no answer"),
        (Script(guards={"c": (ScriptedAnswer(),)}), "step c has no guard"),
        (Script(durations={"s": 1}), "takes no time of its own"),
        (Script(ballots={"a": (Ballot(True),)}), "is not voted on"),
        (Script(signals=(ScriptedSignal("go"),)), "no step waits for a signal go; known: none"),
    ],
)
def test_impossible_script_is_refused(script: Script, why: str) -> None:
    made = protocol(task("a"), approval("s", "x"), call("c"))
    with pytest.raises(ScriptError, match=why):
        check(script, made)
