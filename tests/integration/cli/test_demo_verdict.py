"""The demo's verdict is good only if nothing was lost and every failure is recorded in the ledger."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from lucius.cli.connection import Connection
from lucius.cli.demo.commands import QUESTIONS, Document, blob_path
from lucius.cli.demo.demo_env import DemoEnv, FaultedAttempt
from lucius.cli.demo.stack import CONTROL_PLANE, Stack
from lucius.cli.demo.verdict import Verdict, judge, show
from lucius.cli.demo.view import DemoDisplay
from lucius.cli.session import session
from tests.integration.cli.support import Stub, attempt, event, job, step


@pytest.fixture
async def demo_env(stub: Stub, tmp_path: Path) -> AsyncIterator[DemoEnv]:
    """Yield a demo environment with one job of one step, which survived every kind of failure."""
    output = tmp_path / "stack/data/blobs/out/a.out"
    output.parent.mkdir(parents=True)
    output.write_bytes(output_with_answers({}))
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [job()], "next_cursor": None})
    set_history(stub, [attempt(1, "LEASE_EXPIRED"), attempt(2, "ACK_TIMEOUT", acked_at=None), attempt(3)], EVENTS)
    async with session(Connection(stub.url, "k")) as client:
        contract = Document("acme", "a", {"output_ref": "blob://out/a.out"})
        made = DemoEnv(Stack(tmp_path / "stack"), client, DemoDisplay(Console(), list), contract)
        made.accepted = {"j-1": contract}
        made.commands = {"acme/a"}
        made.repeats = 1
        made.killed = ["ocr", CONTROL_PLANE]
        made.faulted_attempts = {
            "killed": FaultedAttempt("j-1", "ocr", 1),
            "dropped": FaultedAttempt("j-1", "ocr", 2),
            "doubled": FaultedAttempt("j-1", "ocr", 3),
            "late": FaultedAttempt("j-1", "ocr", 1),
        }
        yield made


def output_with_answers(instead: dict[int, str]) -> bytes:
    """Return the output of SIS with right answers, except for those in `instead`."""
    said = [instead.get(number, f"It is {question.contains}.") for number, question in enumerate(QUESTIONS)]
    return msgspec.json.encode({"answers": [{"answer": words, "sources": [{"page": 3}]} for words in said]})


def set_history(stub: Stub, attempts: list[dict[str, Any]], events: list[dict[str, Any]]) -> None:
    stub.routes["GET /v1/jobs/j-1/steps"] = (200, {"steps": [step(attempts=attempts)]})
    stub.routes["GET /v1/jobs/j-1/events"] = (200, {"events": events, "next_cursor": None})


def callback_event(seq: int, kind: str, attempt_no: int, disposition: str) -> dict[str, Any]:
    return event(seq, f"CALLBACK_{kind}", stepId="ocr", attempt_no=attempt_no, data={"disposition": disposition})


EVENTS = [
    callback_event(1, "ACK", 1, "APPLIED"),
    callback_event(2, "ACK", 3, "APPLIED"),
    callback_event(3, "ACK", 3, "DUPLICATE"),
    callback_event(4, "RESULT", 1, "STALE"),
    callback_event(5, "RESULT", 3, "APPLIED"),
    callback_event(6, "RESULT", 3, "DUPLICATE"),
]


async def failed_checks(demo_env: DemoEnv) -> set[str]:
    verdict = await judge(demo_env, 1)
    assert verdict.ok is all(verdict.checks.values())
    return {check for check, passed in verdict.checks.items() if not passed}


async def test_job_that_survived_all_failures_is_counted(demo_env: DemoEnv) -> None:
    verdict = await judge(demo_env, 1)
    assert verdict.ok, verdict.checks
    assert (verdict.jobs_accepted, verdict.jobs_finished, verdict.jobs_lost) == (1, 1, 0)
    assert (verdict.steps_run_twice, verdict.fenced_callbacks, verdict.duplicate_callbacks) == (1, 1, 2)
    assert (verdict.leases_expired, verdict.ack_timeouts, verdict.outputs_present) == (1, 1, 1)


@pytest.mark.parametrize("status", ["IN_PROGRESS", "FAILED_FINAL", "CANCELLED"])
async def test_accepted_job_that_did_not_succeed_is_lost(demo_env: DemoEnv, stub: Stub, status: str) -> None:
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [job(status=status)], "next_cursor": None})
    assert await failed_checks(demo_env) == {"nothing_lost"}


async def test_missing_accepted_job_is_lost(demo_env: DemoEnv, stub: Stub) -> None:
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [], "next_cursor": None})
    assert await failed_checks(demo_env) == {"nothing_lost", "one_job_per_command"}


async def test_unexpected_job_is_detected(demo_env: DemoEnv, stub: Stub) -> None:
    for kind, path in (("steps", "steps"), ("events", "events")):
        stub.routes[f"GET /v1/jobs/j-2/{path}"] = (200, {kind: [], "next_cursor": None})
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [job(), job("j-2")], "next_cursor": None})
    assert await failed_checks(demo_env) == {"one_job_per_command"}


async def test_missing_output_is_detected(demo_env: DemoEnv, tmp_path: Path) -> None:
    output_of(demo_env).unlink()
    assert await failed_checks(demo_env) == {"all_outputs_written", "contract_read"}


async def test_result_applied_twice_is_detected(demo_env: DemoEnv, stub: Stub) -> None:
    twice = [*EVENTS, callback_event(7, "RESULT", 2, "APPLIED")]
    set_history(stub, [attempt(1, "LEASE_EXPIRED"), attempt(2, "ACK_TIMEOUT"), attempt(3)], twice)
    assert await failed_checks(demo_env) == {"no_result_applied_twice"}


async def test_applied_result_of_a_fenced_attempt_is_detected(demo_env: DemoEnv, stub: Stub) -> None:
    applied = [*EVENTS[:3], callback_event(4, "RESULT", 1, "APPLIED"), callback_event(5, "RESULT", 3, "DUPLICATE")]
    set_history(stub, [attempt(1, "LEASE_EXPIRED"), attempt(2, "ACK_TIMEOUT"), attempt(3)], applied)
    assert await failed_checks(demo_env) == {"stale_lease_refused"}


async def test_demo_without_failures_fails_its_checks(demo_env: DemoEnv, stub: Stub) -> None:
    set_history(stub, [attempt(1)], [callback_event(1, "ACK", 1, "APPLIED"), callback_event(2, "RESULT", 1, "APPLIED")])
    demo_env.killed, demo_env.faulted_attempts, demo_env.repeats = [], {}, 0
    assert await failed_checks(demo_env) == {
        "repeats_recognised",
        "control_plane_came_back",
        "killed_step_retried",
        "dropped_ack_retried",
        "doubled_callbacks_recognised",
        "stale_lease_refused",
    }


async def test_last_line_summarises_the_verdict(demo_env: DemoEnv, stub: Stub) -> None:
    assert last_line(await judge(demo_env, 1)).startswith("Nothing was lost: 1 of 1 jobs finished in ")
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [job(status="FAILED_FINAL")], "next_cursor": None})
    assert last_line(await judge(demo_env, 1)) == "1 of 1 jobs were LOST."
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [job()], "next_cursor": None})
    demo_env.repeats = 0
    assert last_line(await judge(demo_env, 1)) == "No job was lost, but a check failed."


def last_line(verdict: Verdict) -> str:
    console = Console(width=200, record=True, quiet=False)
    with console.capture() as shown:
        show(verdict, console)
    return shown.get().splitlines()[-1]


@pytest.mark.parametrize("words", ["", "It is something else."])
async def test_wrong_or_missing_answer_is_detected(demo_env: DemoEnv, words: str) -> None:
    output_of(demo_env).write_bytes(output_with_answers({0: words}))
    assert await failed_checks(demo_env) == {"contract_read"}


async def test_answer_on_the_scanned_page_counts_only_with_an_ocr_engine(
    demo_env: DemoEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scanned,) = [number for number, question in enumerate(QUESTIONS) if question.scanned]
    output_of(demo_env).write_bytes(output_with_answers({scanned: ""}))
    assert await failed_checks(demo_env) == {"contract_read"}
    monkeypatch.setenv("LUCIUS_OCR_ENGINE", "off")
    assert await failed_checks(demo_env) == set()


async def test_answers_are_shown_with_their_pages(demo_env: DemoEnv, capsys: pytest.CaptureFixture[str]) -> None:
    output_of(demo_env).write_bytes(output_with_answers({0: ""}))
    show(await judge(demo_env, 1), Console(width=120))
    shown = capsys.readouterr().out
    assert "What does one pump cost?" in shown
    assert "not found" in shown
    assert "It is Ingrid Solberg." in shown
    assert "page 3, scanned" in shown


def output_of(demo_env: DemoEnv) -> Path:
    return blob_path(demo_env.stack.blobs, demo_env.contract.command["output_ref"])
