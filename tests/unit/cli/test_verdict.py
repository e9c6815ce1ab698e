"""The demo's verdict: good only if nothing was lost and every failure left its trace in the ledger."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from lucius.cli.client import Client
from lucius.cli.connection import Connection
from lucius.cli.demo.commands import QUESTIONS, Document
from lucius.cli.demo.stack import CONTROL_PLANE, Stack
from lucius.cli.demo.stage import Hit, Stage
from lucius.cli.demo.verdict import Verdict, judge, show
from lucius.cli.demo.view import Scene
from tests.unit.cli.support import Stub, attempt, event, job, step


@pytest.fixture
async def stage(stub: Stub, tmp_path: Path) -> AsyncIterator[Stage]:
    """One job of one step, to which all of it was done, and which survived."""
    output = tmp_path / "a.out"
    output.write_bytes(answering({}))
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [job()], "next_cursor": None})
    tell(stub, [attempt(1, "LEASE_EXPIRED"), attempt(2, "ACK_TIMEOUT", acked_at=None), attempt(3)], EVENTS)
    async with Client(Connection(stub.url, "k")) as client:
        contract = Document("acme", "a", {"output_ref": output.as_uri()})
        made = Stage(Stack(tmp_path / "stack"), client, Scene(Console(), list), contract)
        made.accepted = {"j-1": contract}
        made.commands = {"acme/a"}
        made.repeats = 1
        made.killed = ["ocr", CONTROL_PLANE]
        made.hits = {
            "killed": Hit("j-1", "ocr", 1),
            "dropped": Hit("j-1", "ocr", 2),
            "doubled": Hit("j-1", "ocr", 3),
            "late": Hit("j-1", "ocr", 1),
        }
        yield made


def answering(instead: dict[int, str]) -> bytes:
    """What SIS leaves if it answers rightly, but for these."""
    said = [instead.get(number, f"It is {question.contains}.") for number, question in enumerate(QUESTIONS)]
    return msgspec.json.encode({"answers": [{"answer": words, "sources": [{"page": 3}]} for words in said]})


def tell(stub: Stub, attempts: list[dict[str, Any]], events: list[dict[str, Any]]) -> None:
    stub.routes["GET /v1/jobs/j-1/steps"] = (200, {"steps": [step(attempts=attempts)]})
    stub.routes["GET /v1/jobs/j-1/events"] = (200, {"events": events, "next_cursor": None})


def said(seq: int, kind: str, attempt_no: int, disposition: str) -> dict[str, Any]:
    return event(seq, f"CALLBACK_{kind}", stepId="ocr", attempt_no=attempt_no, data={"disposition": disposition})


EVENTS = [
    said(1, "ACK", 1, "APPLIED"),
    said(2, "ACK", 3, "APPLIED"),
    said(3, "ACK", 3, "DUPLICATE"),
    said(4, "RESULT", 1, "STALE"),
    said(5, "RESULT", 3, "APPLIED"),
    said(6, "RESULT", 3, "DUPLICATE"),
]


async def failed_checks(stage: Stage) -> set[str]:
    verdict = await judge(stage, 1)
    assert verdict.ok is all(verdict.checks.values())
    return {check for check, passed in verdict.checks.items() if not passed}


async def test_a_job_that_survived_it_all_is_counted(stage: Stage) -> None:
    verdict = await judge(stage, 1)
    assert verdict.ok, verdict.checks
    assert (verdict.jobs_accepted, verdict.jobs_finished, verdict.jobs_lost) == (1, 1, 0)
    assert (verdict.steps_run_twice, verdict.fenced_callbacks, verdict.duplicate_callbacks) == (1, 1, 2)
    assert (verdict.leases_expired, verdict.ack_timeouts, verdict.outputs_present) == (1, 1, 1)


@pytest.mark.parametrize("status", ["IN_PROGRESS", "FAILED_FINAL", "CANCELLED"])
async def test_an_accepted_job_that_did_not_succeed_is_lost(stage: Stage, stub: Stub, status: str) -> None:
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [job(status=status)], "next_cursor": None})
    assert await failed_checks(stage) == {"nothing_lost"}


async def test_an_accepted_job_that_is_not_there_is_lost(stage: Stage, stub: Stub) -> None:
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [], "next_cursor": None})
    assert await failed_checks(stage) == {"nothing_lost", "one_job_per_command"}


async def test_a_job_nobody_was_told_of_is_noticed(stage: Stage, stub: Stub) -> None:
    for kind, path in (("steps", "steps"), ("events", "events")):
        stub.routes[f"GET /v1/jobs/j-2/{path}"] = (200, {kind: [], "next_cursor": None})
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [job(), job("j-2")], "next_cursor": None})
    assert await failed_checks(stage) == {"one_job_per_command"}


async def test_a_missing_output_is_noticed(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "a.out").unlink()
    assert await failed_checks(stage) == {"all_outputs_written", "contract_read"}


async def test_a_result_applied_twice_is_noticed(stage: Stage, stub: Stub) -> None:
    twice = [*EVENTS, said(7, "RESULT", 2, "APPLIED")]
    tell(stub, [attempt(1, "LEASE_EXPIRED"), attempt(2, "ACK_TIMEOUT"), attempt(3)], twice)
    assert await failed_checks(stage) == {"no_result_applied_twice"}


async def test_a_fenced_result_that_was_applied_is_noticed(stage: Stage, stub: Stub) -> None:
    applied = [*EVENTS[:3], said(4, "RESULT", 1, "APPLIED"), said(5, "RESULT", 3, "DUPLICATE")]
    tell(stub, [attempt(1, "LEASE_EXPIRED"), attempt(2, "ACK_TIMEOUT"), attempt(3)], applied)
    assert await failed_checks(stage) == {"stale_lease_refused"}


async def test_a_demo_in_which_nothing_went_wrong_has_shown_nothing(stage: Stage, stub: Stub) -> None:
    tell(stub, [attempt(1)], [said(1, "ACK", 1, "APPLIED"), said(2, "RESULT", 1, "APPLIED")])
    stage.killed, stage.hits, stage.repeats = [], {}, 0
    assert await failed_checks(stage) == {
        "repeats_recognised",
        "control_plane_came_back",
        "killed_step_retried",
        "dropped_ack_retried",
        "doubled_callbacks_recognised",
        "stale_lease_refused",
    }


async def test_the_last_line_says_what_matters(stage: Stage, stub: Stub) -> None:
    assert last_line(await judge(stage, 1)).startswith("Nothing was lost: 1 of 1 jobs finished in ")
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [job(status="FAILED_FINAL")], "next_cursor": None})
    assert last_line(await judge(stage, 1)) == "1 of 1 jobs were LOST."
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [job()], "next_cursor": None})
    stage.repeats = 0
    assert last_line(await judge(stage, 1)) == "No job was lost, but the demo did not show all it should."


def last_line(verdict: Verdict) -> str:
    console = Console(width=200, record=True, quiet=False)
    with console.capture() as shown:
        show(verdict, console)
    return shown.get().splitlines()[-1]


@pytest.mark.parametrize("words", ["", "It is something else."])
async def test_a_wrong_or_missing_answer_is_noticed(stage: Stage, words: str) -> None:
    output_of(stage).write_bytes(answering({0: words}))
    assert await failed_checks(stage) == {"contract_read"}


async def test_what_a_scan_says_counts_only_where_scans_can_be_read(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scanned,) = [number for number, question in enumerate(QUESTIONS) if question.scanned]
    output_of(stage).write_bytes(answering({scanned: ""}))
    assert await failed_checks(stage) == {"contract_read"}
    monkeypatch.setenv("LUCIUS_OCR_ENGINE", "off")
    assert await failed_checks(stage) == set()


async def test_the_answers_are_shown_with_their_pages(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    output_of(stage).write_bytes(answering({0: ""}))
    show(await judge(stage, 1), Console(width=120))
    shown = capsys.readouterr().out
    assert "What does one pump cost?" in shown
    assert "not found" in shown
    assert "It is Ingrid Solberg." in shown
    assert "page 3, scanned" in shown


def output_of(stage: Stage) -> Path:
    return Path(str(stage.contract.command["output_ref"]).removeprefix("file://"))
