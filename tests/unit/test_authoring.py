"""The example protocols: valid, drawn, and simulated along their main path and their failure paths."""

import json
import re
import shlex
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from lucius.authoring.edges import outgoing_edges
from lucius.authoring.graph import graph_of
from lucius.authoring.mermaid import mermaid
from lucius.authoring.report import Report
from lucius.authoring.script import (
    Ballot,
    Script,
    ScriptedAct,
    ScriptedAnswer,
    ScriptedFailure,
    ScriptedSignal,
    ScriptedSilence,
    check,
    default_silence,
)
from lucius.authoring.svg import svg
from lucius.bootstrap.authoring import read_protocol_file
from lucius.cli.main import app
from lucius.cli.simulation import simulate_protocol
from lucius.core.model.statuses import FailureClass
from lucius.core.protocol.definition import FAIL, SUCCEED, ProtocolDefinition
from tests.unit.authoring.support import path_of, simulate, statuses

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "protocols").glob("*.yaml"))
COMMAND = re.compile(r"^#   lucius (.+)$", re.MULTILINE)
COMMANDS = [(path, found) for path in EXAMPLES for found in COMMAND.findall(path.read_text())]

examples = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def read(path: Path) -> ProtocolDefinition:
    return read_protocol_file(path).protocol


def example(name: str) -> ProtocolDefinition:
    return read(ROOT / "examples" / "protocols" / f"{name}.yaml")


@examples
def test_example_has_no_warnings(path: Path) -> None:
    assert read_protocol_file(path).warnings == ()


def test_examples_cover_every_step_kind() -> None:
    kinds = {place.spec.kind for path in EXAMPLES for place in read(path).plan.places.values()}
    assert kinds == {"task", "decision", "wait", "external_call", "notify", "human_approval", "parallel", "map"}


@examples
def test_an_example_is_drawn_in_both_formats_with_all_its_steps(path: Path) -> None:
    protocol = read(path)
    graph = graph_of(protocol)
    texts = {element.text for element in ET.fromstring(svg(graph)).iter("{http://www.w3.org/2000/svg}text")}
    assert set(protocol.plan.places) <= texts
    assert all(f"s_{step_id.replace('-', 'D')}" in mermaid(graph) for step_id in protocol.plan.places)


@pytest.mark.parametrize(
    ("path", "command"), COMMANDS, ids=[f"{path.stem}-{n}" for n, (path, _) in enumerate(COMMANDS)]
)
def test_command_in_the_comment_of_an_example_runs(path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    arguments = shlex.split(command)
    assert arguments[:2] == ["simulate", f"examples/protocols/{path.name}"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["notes"] == []


@examples
def test_an_example_has_a_command_for_each_of_its_paths(path: Path) -> None:
    """Together the commands reach every step that is not a handler, and every handler if one is undone."""
    given = [shlex.split(command) for of, command in COMMANDS if of == path]
    if path.stem == "invoice":  # the introductory example has only two tasks
        return
    reached: set[str] = set()
    for arguments in given:
        result = CliRunner().invoke(app, ["simulate", str(path), *arguments[2:], "--json"])
        steps = json.loads(result.stdout)["steps"]
        reached |= {step["step_id"].partition(".")[0] for step in steps if step["status"] != "SKIPPED"}
    assert reached == set(read(path).plan.places)


def run(name: str, payload: dict[str, Any] | None = None, **script: Any) -> Report:
    return simulate(example(name), Script(**script), payload)


# Invoice approval

ACME = {"supplier": "Acme"}


def amount(of: int) -> dict[str, tuple[ScriptedAnswer, ...]]:
    return {"extract": (ScriptedAnswer({"amount": of}),)}


def test_small_invoice_is_posted_without_approval() -> None:
    report = run("invoice_approval", ACME, answers=amount(90))
    assert statuses(report) == {
        "extract": "SUCCEEDED",
        "by_amount": "SUCCEEDED",
        "sign": "SKIPPED",
        "escalate": "SKIPPED",
        "post": "SUCCEEDED",
        "tell": "SUCCEEDED",
        "tell_rejected": "SKIPPED",
    }


def test_large_invoice_needs_two_approvals_by_finance() -> None:
    votes = (Ballot(True, "anna", ("finance",)), Ballot(True, "ben", ("finance",)))
    report = run("invoice_approval", ACME, answers=amount(9_000), ballots={"sign": votes})
    assert (report.status, path_of(report)) == ("SUCCEEDED", ["extract", "by_amount", "sign", "post", "tell"])


def test_single_approval_of_a_large_invoice_escalates_and_single_rejection_fails() -> None:
    vote = Ballot(True, "anna", ("finance",))
    alone = run("invoice_approval", ACME, answers=amount(9_000), ballots={"sign": (vote,)})
    assert path_of(alone) == ["extract", "by_amount", "sign", "escalate", "tell_rejected"]
    no = run("invoice_approval", ACME, answers=amount(9_000), ballots={"sign": (Ballot(False),)})
    assert (no.status, path_of(no)) == ("FAILED_FINAL", ["extract", "by_amount", "sign", "tell_rejected"])
    assert no.error is not None
    assert no.error.code == "REJECTED"


def test_submitter_may_not_approve_the_invoice() -> None:
    vote = Ballot(True, "client", ("finance",))
    report = run("invoice_approval", ACME, answers=amount(9_000), ballots={"sign": (vote,)})
    assert any("submitted this job" in entry.text for entry in report.timeline)


def test_invoice_posted_before_a_timeout_is_not_posted_again() -> None:
    script = {"failures": {"post": (ScriptedSilence("step"),)}, "guards": {"post": (ScriptedAnswer({"id": 7}),)}}
    report = run("invoice_approval", ACME, answers=amount(90), **script)
    post = next(step for step in report.steps if step.step_id == "post")
    assert [attempt.outcome for attempt in post.attempts] == ["STEP_TIMEOUT", "SUCCEEDED"]
    assert post.result == {"id": 7}


# Page map


def pages(count: int) -> dict[str, tuple[ScriptedAnswer, ...]]:
    return {"split": (ScriptedAnswer({"pages": [f"p{n}" for n in range(count)]}),)}


def test_pages_are_read_four_at_a_time_and_merged() -> None:
    report = run("page_map", answers=pages(10))
    assert (report.status, path_of(report)) == ("SUCCEEDED", ["split", "pages", "enough", "merge"])
    assert report.took_ms == 1_000 + 3 * 1_000 + 1_000
    assert report.steps[1].result["succeeded"] == 10


@pytest.mark.parametrize(("count", "status"), [(10, "SUCCEEDED"), (9, "FAILED_FINAL")])
def test_job_succeeds_with_one_unreadable_page_in_ten(count: int, status: str) -> None:
    fails = {"ocr_page.3": (ScriptedFailure(FailureClass.NON_RETRYABLE),)}
    report = run("page_map", answers=pages(count), failures=fails)
    assert report.status == status
    assert statuses(report)["ocr_page.3"] == "FAILED_FINAL"
    assert statuses(report)["merge"] == ("SUCCEEDED" if status == "SUCCEEDED" else "SKIPPED")


# Parallel checks

SUPPLIER = {"supplier": "Acme", "vat_id": "DE1"}


def test_three_good_checks_admit_a_supplier() -> None:
    report = run("parallel_checks", SUPPLIER, answers={"sanctions": (ScriptedAnswer({"hits": 0}),)})
    assert (report.status, path_of(report)) == ("SUCCEEDED", ["checks", "admit"])


def test_first_failed_check_cancels_the_others() -> None:
    report = run("parallel_checks", SUPPLIER, answers={"sanctions": (ScriptedAnswer({"hits": 1}),)})
    assert statuses(report) == {
        "checks": "FAILED_FINAL",
        "sanctions": "FAILED_FINAL",
        "vat": "CANCELLED",
        "read_papers": "CANCELLED",
        "vet": "SKIPPED",
        "admit": "SKIPPED",
        "tell_declined": "SUCCEEDED",
    }
    assert report.error is not None
    assert report.error.code == "ON_A_SANCTIONS_LIST"


# Polling


def test_batch_is_polled_until_it_is_done() -> None:
    states = tuple(ScriptedAnswer({"state": state}) for state in ("RUNNING", "RUNNING", "DONE"))
    report = run("polling", answers={"start": (ScriptedAnswer({"id": 7}),), "ask": states})
    assert report.status == "SUCCEEDED"
    assert {step.step_id: step.visits for step in report.steps}["ask"] == 3
    assert report.took_ms == 1_000 + 3 * 1_000 + 2 * 30_000 + 1_000


def test_polling_of_an_endless_batch_fails_with_visit_limit() -> None:
    report = run(
        "polling", answers={"start": (ScriptedAnswer({"id": 7}),), "ask": (ScriptedAnswer({"state": "RUNNING"}),)}
    )
    assert report.error is not None
    assert (report.status, report.error.code) == ("FAILED_FINAL", "VISIT_LIMIT")
    assert statuses(report)["fetch"] == "SKIPPED"


# Saga


def test_successful_saga_undoes_nothing() -> None:
    report = run("saga", {"amount": 4}, answers={"number": (ScriptedAnswer({"number": "C-1"}),)})
    assert (report.status, report.undone) == ("SUCCEEDED", [])
    assert statuses(report) == {"number": "SUCCEEDED", "file": "SUCCEEDED", "pay": "SUCCEEDED"}


@pytest.mark.parametrize(
    "trouble", [ScriptedSilence("step"), ScriptedSilence("lease"), ScriptedFailure(FailureClass.TRANSIENT)]
)
def test_uncertain_payment_is_not_repeated_and_all_steps_are_undone(trouble: ScriptedFailure | ScriptedSilence) -> None:
    answers = {"number": (ScriptedAnswer({"number": "C-1"}),)}
    report = run("saga", {"amount": 4}, answers=answers, failures={"pay": (trouble,)})
    assert (report.status, report.undone) == ("FAILED_FINAL", ["pay", "file", "number"])
    assert [len(step.attempts) for step in report.steps if step.step_id == "pay"] == [1]
    assert [(item.kind, item.status) for item in report.reviews] == [("COMPENSATION", "OPEN")]


def test_cancelled_saga_is_undone() -> None:
    answers = {"number": (ScriptedAnswer({"number": "C-1"}),)}
    report = run("saga", {"amount": 4}, answers=answers, acts=(ScriptedAct("cancel", 1_500),))
    assert (report.status, report.undone) == ("CANCELLED", ["file", "number"])


# Domain transition


def test_domain_transition_calls_the_owner() -> None:
    report = run("domain_transition")
    assert (report.status, path_of(report)) == ("SUCCEEDED", ["classify", "approve"])


def test_forbidden_transition_is_not_retried_and_takes_the_failure_path() -> None:
    forbidden = ScriptedAnswer({"code": "TRANSITION_FORBIDDEN"}, 409)
    report = run("domain_transition", answers={"approve": (forbidden,)})
    approve = report.steps[1]
    assert [(attempt.outcome, attempt.failure_class) for attempt in approve.attempts] == [("FAILED", "NON_RETRYABLE")]
    assert path_of(report) == ["classify", "approve", "why", "tell_owner"]
    assert report.status == "FAILED_FINAL"


def test_conflicting_transition_is_retried() -> None:
    report = run("domain_transition", answers={"approve": (ScriptedAnswer(None, 409), ScriptedAnswer())})
    assert [attempt.failure_class for attempt in report.steps[1].attempts] == ["RETRYABLE", None]
    assert report.status == "SUCCEEDED"


# Signature

SEND = {"send_at": "2026-01-01T08:00:00Z"}
SIGNED = {"outcome": "SIGNED"}


def test_signed_contract_is_filed() -> None:
    report = run("signature", SEND, signals=(ScriptedSignal("signed", SIGNED),))
    assert (report.status, path_of(report)) == ("SUCCEEDED", ["office_hours", "send", "back", "outcome", "file"])


def test_contract_signed_after_the_reminder_is_filed() -> None:
    report = run("signature", SEND, signals=(ScriptedSignal("signed", SIGNED, at=15 * 86_400_000),))
    assert report.status == "SUCCEEDED"
    assert statuses(report)["back"] == "FAILED_FINAL"
    assert statuses(report)["back_late"] == "SUCCEEDED"


def test_contract_that_is_unsigned_or_never_returned_fails() -> None:
    never = run("signature", SEND)
    assert never.error is not None
    assert (never.status, never.error.code) == ("FAILED_FINAL", "SIGNAL_TIMEOUT")
    unsigned = run("signature", SEND, signals=(ScriptedSignal("signed", {"outcome": "REFUSED"}),))
    assert unsigned.error is not None
    assert unsigned.error.code == "DECIDED_TO_FAIL"


# All examples


@pytest.mark.parametrize("seed", range(40))
@examples
def test_random_job_only_follows_edges_of_the_diagram(path: Path, seed: int) -> None:
    protocol, chance = read(path), Random(seed)
    script = _anything(protocol, chance)
    check(script, protocol)
    report = simulate_protocol(protocol, _INPUTS[path.stem], script, seed=seed)
    assert report.ended or report.stands_still
    legs = path_of(report)
    assert legs[0] == protocol.steps[0].step_id
    for source, target in pairwise(legs):
        assert target in {way.target for way in outgoing_edges(protocol.plan.places[source])}
    if report.ended and report.status != "CANCELLED" and not report.undone and not report.not_undone:
        assert {SUCCEED, FAIL} & {way.target for way in outgoing_edges(protocol.plan.places[legs[-1]])}


_INPUTS: dict[str, dict[str, Any]] = {
    "invoice": {"extract": {"fields": ["a"]}},
    "invoice_approval": ACME,
    "page_map": {},
    "parallel_checks": SUPPLIER,
    "polling": {},
    "saga": {"amount": 4},
    "domain_transition": {},
    "signature": SEND,
}
_RESULTS = {
    "extract": {"amount": 5_000},
    "split": {"pages": [1, 2, 3, 4, 5, 6]},
    "sanctions": {"hits": 0},
    "start": {"id": 1},
    "ask": {"state": "RUNNING"},
    "number": {"number": 1},
}


def _anything(protocol: ProtocolDefinition, chance: Random) -> Script:
    specs = [place.spec for place in protocol.plan.places.values()]
    worked = [spec.step_id for spec in specs if spec.kind in ("task", "external_call", "notify")]
    asked = [spec.step_id for spec in specs if spec.human_approval is not None]
    signals = [spec.wait.signal for spec in specs if spec.wait is not None and spec.wait.signal]
    failures: dict[str, tuple[ScriptedFailure | ScriptedSilence, ...]] = {}
    for step_id in chance.sample(worked, chance.randint(0, min(3, len(worked)))):
        kinds: list[ScriptedFailure | ScriptedSilence] = [
            ScriptedFailure(chance.choice(list(FailureClass))),
            ScriptedSilence(default_silence(protocol, step_id)),
        ]
        failures[step_id] = tuple(chance.choices(kinds, k=chance.randint(1, 4)))
    return Script(
        failures=failures,
        answers={step_id: (ScriptedAnswer(result),) for step_id, result in _RESULTS.items() if step_id in worked},
        ballots={step_id: (Ballot(chance.random() < 0.6),) for step_id in asked if chance.random() < 0.7},
        signals=tuple(ScriptedSignal(name, SIGNED) for name in signals if chance.random() < 0.7),
        acts=tuple(_acts(chance)),
    )


def _acts(chance: Random) -> list[ScriptedAct]:
    acts = []
    if chance.random() < 0.3:
        acts += [ScriptedAct("pause", chance.randint(0, 5_000)), ScriptedAct("resume", chance.randint(5_000, 90_000))]
    if chance.random() < 0.2:
        acts.append(ScriptedAct("cancel", chance.randint(0, 60_000)))
    return acts
