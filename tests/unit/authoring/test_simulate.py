"""A rehearsal does what the real thing would, and the same thing every time."""

import msgspec
import pytest

from lucius.authoring.script import (
    Answers,
    Asked,
    Ballot,
    Fails,
    Script,
    ScriptError,
    Silent,
    Told,
    check,
)
from lucius.authoring.simulate import Limits
from lucius.core.model import FailureClass
from tests.unit.authoring.support import (
    approval,
    call,
    decision,
    protocol,
    rehearsed,
    statuses,
    task,
    told,
    wait,
    walked,
)

TRANSIENT, FINAL = Fails(FailureClass.TRANSIENT), Fails(FailureClass.NON_RETRYABLE)


def test_services_acknowledge_and_succeed_unless_told_otherwise() -> None:
    report = rehearsed(protocol(task("a"), task("b")))
    assert (report.status, report.ended, report.took_ms, report.attempts_total) == ("SUCCEEDED", True, 2_000, 2)
    assert told(report, "a") == ["attempt 1 goes to service x", "succeeded"]


def test_failures_are_retried_after_the_delays_of_the_policy() -> None:
    policy = {"backoff_strategy": "exponential", "initial_delay_ms": 2_000}
    report = rehearsed(protocol(task("a", retry_policy=policy)), Script(troubles={"a": (TRANSIENT, TRANSIENT)}))
    assert [attempt.outcome for attempt in report.steps[0].attempts] == ["FAILED", "FAILED", "SUCCEEDED"]
    assert report.took_ms == 1_000 + 2_000 + 1_000 + 4_000 + 1_000
    assert "attempt 1 failed with TRANSIENT (SIMULATED); tried again in 2 s" in told(report, "a")
    assert any(entry.event == "WAITS" and "attempt 1 of 3" in entry.text for entry in report.timeline)


def test_jitter_comes_from_the_seed_alone() -> None:
    made, script = protocol(task("a")), Script(troubles={"a": (TRANSIENT,)})
    encoded = [msgspec.json.encode(rehearsed(made, script, seed=seed)) for seed in (1, 1, 2)]
    assert encoded[0] == encoded[1]
    assert encoded[0] != encoded[2]


@pytest.mark.parametrize(
    ("silent", "outcome", "took"),
    [
        (Silent("ack"), "ACK_TIMEOUT", 30_000 + 60_000 + 1_000),
        (Silent("lease"), "LEASE_EXPIRED", 120_000 + 5_000 + 1_000),
        (Silent("step"), "STEP_TIMEOUT", 600_000 + 5_000 + 1_000),
    ],
)
def test_each_of_a_tasks_clocks_can_run_out(silent: Silent, outcome: str, took: int) -> None:
    fixed = {"backoff_strategy": "fixed"}
    made = protocol(task("a", lease_ms=120_000, timeout_ms=600_000, retry_policy=fixed))
    report = rehearsed(made, Script(troubles={"a": (silent,)}))
    assert [attempt.outcome for attempt in report.steps[0].attempts] == [outcome, "SUCCEEDED"]
    assert report.took_ms == took


def test_a_long_task_keeps_its_lease_by_heartbeats() -> None:
    report = rehearsed(protocol(task("a", lease_ms=60_000)), Script(durations={"a": 3_600_000}))
    assert (report.status, report.took_ms) == ("SUCCEEDED", 3_600_000)


def test_a_call_without_a_limit_is_given_up_by_the_engine() -> None:
    report = rehearsed(protocol(call("a")), Script(troubles={"a": (Silent("step"),)}))
    first = report.steps[0].attempts[0]
    assert (first.outcome, first.error and first.error.code, first.to_ms) == ("FAILED", "TIMEOUT", 30_000)


def test_what_is_answered_is_mapped_as_the_engine_maps_it() -> None:
    rule = {"when": "response.body.state == 'GONE'", "failure_class": "NON_RETRYABLE", "code": "IT_IS_GONE"}
    made = protocol(call("a", result="response.body.id", errors=[rule]))
    assert rehearsed(made, Script(answers={"a": (Answers({"id": 7}),)})).steps[0].result == 7
    gone = rehearsed(made, Script(answers={"a": (Answers({"state": "GONE"}),)}))
    assert gone.error is not None
    assert gone.error.code == "IT_IS_GONE"
    busy = rehearsed(made, Script(answers={"a": (Answers(None, 503), Answers({"id": 8}))}))
    assert [attempt.failure_class for attempt in busy.steps[0].attempts] == ["TRANSIENT", None]


def test_a_call_that_nothing_is_said_about_succeeds_and_its_missing_result_is_noted_where_it_is_read() -> None:
    made = protocol(call("a", result="response.body.id"), decision("d", "FAIL", b="steps.a.result.x > 1"), task("b"))
    report = rehearsed(made)
    assert statuses(report) == {"a": "SUCCEEDED", "d": "FAILED_FINAL", "b": "SKIPPED"}
    assert report.notes == ["an expression reads the result of a, and --result says nothing about it"]
    assert rehearsed(protocol(task("a"), task("b"))).notes == []


GUARD = {"url": "https://a.example/by-key", "done_when": "response.status == 200", "result": "response.body.id"}


def test_a_guard_is_asked_before_the_second_attempt_and_can_make_it_needless() -> None:
    made = protocol(call("a", guard=GUARD, retry_safety="SAFE_TO_RETRY_WITH_GUARD"))
    troubles = {"a": (TRANSIENT,)}
    done = rehearsed(made, Script(troubles=troubles, guards={"a": (Answers({"id": 4}),)}))
    assert done.steps[0].result == 4
    assert "the guard is asked first and answers 200, so that the call is not made again" in told(done, "a")
    anew = rehearsed(made, Script(troubles=troubles, answers={"a": (Answers({"id": 5}),)}))
    assert anew.steps[0].result == {"id": 5}
    assert "the guard is asked first and answers 404, so that the call is made" in told(anew, "a")


def test_nobody_approves_unless_told_and_without_a_timeout_that_lasts_for_ever() -> None:
    report = rehearsed(protocol(approval("a", "finance")))
    assert (report.ended, report.status) == (False, "WAITING_APPROVAL")
    assert report.stands_still is not None
    assert report.stands_still.startswith("waiting for approval by finance")


def test_a_yes_without_a_name_is_that_of_as_many_as_are_needed() -> None:
    made = protocol(approval("a", "finance", "cfo", quorum=3))
    report = rehearsed(made, Script(ballots={"a": (Ballot(True),)}))
    assert report.status == "SUCCEEDED"
    assert [t for t in told(report, "a") if t.startswith("approved")] == [
        "approved by finance",
        "approved by cfo",
        "approved by finance-2",
    ]


def test_who_may_not_vote_is_refused_as_in_earnest() -> None:
    report = rehearsed(protocol(approval("a", "finance")), Script(ballots={"a": (Ballot(True, "mallory"),)}))
    assert report.stands_still is not None
    assert any("NOT_AN_APPROVER" in text for text in told(report, "a"))


def test_of_a_loops_visits_each_gets_the_next_ballot() -> None:
    made = protocol(approval("a", "x", quorum=2, on_failure="b", on_success="SUCCEED"), task("b", on_success="a"))
    report = rehearsed(made, Script(ballots={"a": (Ballot(False), Ballot(True))}))
    assert (report.status, walked(report)) == ("SUCCEEDED", ["a", "b", "a"])
    assert [leg.because for leg in report.path] == ["", "on_failure of a", ""]
    assert report.took_ms == 60_000 + 1_000 + 2 * 60_000


def test_a_signal_comes_when_it_is_awaited_or_when_the_script_says() -> None:
    made = protocol(task("t"), wait("a", signal="go", timeout_ms=3_600_000, on_timeout="late"), task("late"))
    assert rehearsed(made, Script(signals=(Told("go", 1),))).steps[1].result["payload"] == 1
    early = rehearsed(made, Script(signals=(Told("go", 2, at=0),)))
    assert (early.steps[1].result["payload"], early.took_ms) == (2, 2_000)
    late = rehearsed(made, Script(signals=(Told("go", 3, at=7_200_000),)))
    assert [leg.because for leg in late.path] == ["", "", "on_timeout of a"]


def test_a_signal_is_given_once() -> None:
    made = protocol(wait("a", signal="go"), wait("b", signal="go"))
    report = rehearsed(made, Script(signals=(Told("go"),)))
    assert statuses(report) == {"a": "SUCCEEDED", "b": "WAITING"}
    assert rehearsed(made, Script(signals=(Told("go"), Told("go")))).status == "SUCCEEDED"


def test_what_is_stopped_is_not_heard_of_again() -> None:
    branches = {"one": [task("a")], "two": [task("b")]}
    made = protocol(
        {"step_id": "p", "kind": "parallel", "parallel": {"branches": branches}, "on_failure": "z"}, task("z")
    )
    report = rehearsed(made, Script(troubles={"a": (FINAL,)}, durations={"b": 1_500}))
    assert told(report, "b") == ["attempt 1 goes to service x", "stopped (FENCED)"]


def test_why_a_step_waits_is_told_once_while_others_go_on() -> None:
    branches = {"one": [wait("a", duration_ms=60_000)], "two": [task("b"), task("c")]}
    report = rehearsed(protocol({"step_id": "p", "kind": "parallel", "parallel": {"branches": branches}}))
    assert [entry.step_id for entry in report.timeline if entry.event == "WAITS"] == ["a"]


def test_a_pause_stops_what_comes_next_and_a_cancel_all() -> None:
    made = protocol(task("a"), task("b"))
    paused = rehearsed(made, Script(asked=(Asked("pause", 500), Asked("resume", 60_000))))
    assert (paused.status, paused.took_ms) == ("SUCCEEDED", 61_000)
    cancelled = rehearsed(made, Script(asked=(Asked("cancel", 500),)))
    assert (cancelled.status, statuses(cancelled)) == ("CANCELLED", {"a": "SUCCEEDED", "b": "CANCELLED"})
    for_ever = rehearsed(made, Script(asked=(Asked("pause", 500),)))
    assert for_ever.stands_still is not None
    assert "paused by operator" in for_ever.stands_still


def test_items_of_a_map_are_told_apart() -> None:
    mapped = {"step_id": "m", "kind": "map", "map": {"items": "input.list", "steps": [task("t")], "join": "collect"}}
    report = rehearsed(protocol(mapped), Script(troubles={"t.1": (FINAL,)}), {"list": [1, 2, 3]})
    assert statuses(report) == {"m": "SUCCEEDED", "t.0": "SUCCEEDED", "t.1": "FAILED_FINAL", "t.2": "SUCCEEDED"}
    every = rehearsed(protocol(mapped), Script(troubles={"t": (FINAL,)}), {"list": [1, 2]})
    assert every.steps[0].result["failed"] == 2


def test_a_map_over_a_thousand_items_is_rehearsed() -> None:
    mapped = {"step_id": "m", "kind": "map", "map": {"items": "input.list", "steps": [task("t")]}}
    report = rehearsed(protocol(mapped), None, {"list": list(range(1_000))})
    assert (report.status, len(report.steps)) == ("SUCCEEDED", 1_001)


def test_what_is_undone_is_told_in_its_order_and_what_is_left_too() -> None:
    made = protocol(
        task("a", compensation=task("undo-a")),
        task("b", compensation=task("undo-b")),
        task("c", retry_safety="NOT_SAFE_TO_RETRY"),
        policies={"compensation": "auto"},
    )
    report = rehearsed(made, Script(troubles={"c": (TRANSIENT,)}))
    assert (report.status, report.undone, report.not_undone) == ("FAILED_FINAL", ["b", "a"], [])
    assert [item.kind for item in report.reviews] == ["COMPENSATION"]
    assert walked(report) == ["a", "b", "c"]
    assert told(report, "undo-b")[0] == "attempt 1 goes to service x (undoes b)"
    halted = rehearsed(made, Script(troubles={"c": (TRANSIENT,), "undo-b": (FINAL,)}))
    assert (halted.undone, halted.not_undone) == ([], ["b", "a"])
    assert halted.stands_still is not None
    assert halted.stands_still.endswith("after SIMULATED in step undo-b")


def test_a_simulation_is_bounded_in_time_and_in_work() -> None:
    made = protocol(task("a", max_visits=1000), wait("w", duration_ms=3_600_000, on_success="a", max_visits=1000))
    late = rehearsed(made, limits=Limits(max_time=86_400_000))
    assert late.cut_off is not None
    assert late.cut_off.startswith("it would take longer than 1 d: step w waits")
    busy = rehearsed(made, limits=Limits(max_decisions=50))
    assert busy.cut_off is not None
    assert "50 decisions" in busy.cut_off


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (Script(troubles={"nix": (TRANSIENT,)}), "there is no step nix; there are a, s, c"),
        (Script(troubles={"a.1": (TRANSIENT,)}), "there is no step a.1"),
        (Script(troubles={"s": (TRANSIENT,)}), "can't fail or time out by itself"),
        (Script(troubles={"a": (Silent("step"),)}), "step a has no timeout_ms"),
        (Script(troubles={"c": (Silent("ack"),)}), "is done by the engine itself, without an ACK"),
        (Script(answers={"s": (Answers(),)}), "is not answered by anybody"),
        (Script(guards={"c": (Answers(),)}), "step c has no guard"),
        (Script(durations={"s": 1}), "takes no time of its own"),
        (Script(ballots={"a": (Ballot(True),)}), "is not voted on"),
        (Script(signals=(Told("go"),)), "no step waits for a signal go; known: none"),
    ],
)
def test_a_script_that_can_not_happen_is_refused(script: Script, why: str) -> None:
    made = protocol(task("a"), approval("s", "x"), call("c"))
    with pytest.raises(ScriptError, match=why):
        check(script, made)
