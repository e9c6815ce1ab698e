"""How a run is judged: what passes, what does not, and what could not be shown."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from lucius.conformance.cases import Case, all_cases
from lucius.conformance.model import SCHEMA, Misuse, Outcome, Pace, has_passed
from lucius.conformance.run import case_seconds, choose, run
from lucius.conformance.stage import Stage
from tests.unit.conformance_kit.support import PACE, RIGHT, SLOW_POLLER, options, played, wrong

QUICK = ["bad-payload", "result"]


async def test_a_report_has_every_case_asked_for_in_the_order_of_the_list() -> None:
    ended: list[str] = []
    report = await run(options(RIGHT), choose(["result", "bad-payload"]), on_end=lambda case: ended.append(case.id))
    assert [case.id for case in report.cases] == [case.id for case in all_cases() if case.id in QUICK]
    assert (report.schema, report.passed, report.counts) == (SCHEMA, True, {"PASS": 2})
    assert (report.service.name, report.service.step_type) == ("plain", "PLAIN")
    assert sorted(ended) == QUICK


async def test_cases_that_need_a_slow_step_are_not_shown_by_a_service_that_is_never_slow() -> None:
    slow = ["ack", "heartbeat", "duplicate-finished", "stale", "cancel", "killed-finished", "graceful-stop"]
    hasty = options(RIGHT, env={"LUCIUS_SERVICE_DELAY": "0"}, side_by_side=8)
    report = await run(hasty, choose(slow), pace=PACE)
    assert {case.outcome for case in report.cases} == {Outcome.NOT_SHOWN}, report.cases
    assert all("LUCIUS_SERVICE_DELAY" in case.seen and "--slow-payload" in case.seen for case in report.cases)
    assert not report.passed


async def test_a_slow_payload_does_for_services_that_know_no_delay() -> None:
    given = options(RIGHT, env={"LUCIUS_SERVICE_DELAY": "0"}, slow_payload={"seconds": 2.2})
    report = await run(given, choose(["duplicate-running", "killed-mid-step"]))
    assert report.counts == {"PASS": 2}, report.cases


async def test_a_slow_payload_that_is_not_slow_is_told_so() -> None:
    given = options(RIGHT, slow_payload={"seconds": 0})
    (case,) = (await run(given, choose(["heartbeat"]), pace=Pace(service="plain", slow_seconds=0.2))).cases
    assert (case.outcome, "--slow-payload took 0.20 s" in case.seen) == (Outcome.NOT_SHOWN, True)


async def test_without_a_bad_payload_its_case_is_skipped_and_nothing_fails() -> None:
    report = await run(options(RIGHT, bad_payload=None), choose(["bad-payload"]), pace=PACE)
    assert (report.counts, report.passed) == ({"SKIPPED": 1}, True)


async def test_a_warning_passes_unless_one_is_strict() -> None:
    report = await played(wrong("no-output"), "result")
    assert report.outcome is Outcome.WARN
    assert report.warnings
    assert (has_passed(report.outcome, strict=False), has_passed(report.outcome, strict=True)) == (True, False)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["no-such-command"], "No such file"),
        ([sys.executable, "-c", "print('no key for the model store'); raise SystemExit(3)"], "exit code 3"),
    ],
)
async def test_a_service_that_does_not_start_fails_every_case_with_its_last_words(
    command: list[str], words: str
) -> None:
    report = await run(options(command), choose(QUICK))
    assert report.counts == {"FAIL": 2}
    assert all(words in case.seen for case in report.cases)
    if "exit code" in words:
        assert report.cases[0].log_tail[-1] == "no key for the model store"


async def test_a_service_that_works_on_one_step_after_the_other_is_not_held_against_it() -> None:
    one = options(RIGHT, env={"LUCIUS_CONCURRENCY": "1"}, side_by_side=8)
    report = await run(one, choose(["duplicate-running", "stale", "backpressure", "refused-callbacks"]), pace=PACE)
    assert report.counts == {"PASS": 4}, report.cases


async def test_one_that_pulls_slowly_one_directive_at_a_time_is_not_held_against_it() -> None:
    slow = await run(options(SLOW_POLLER, patience=2.0), choose(["malformed", "duplicate-finished"]), pace=PACE)
    assert slow.counts == {"PASS": 2}, slow.cases


async def test_without_a_bad_payload_failures_are_made_by_cancelling() -> None:
    given = options(RIGHT, bad_payload=None, side_by_side=3)
    report = await run(given, choose(["retried", "killed-failed"]), pace=PACE)
    assert report.counts == {"PASS": 2}, report.cases
    assert all("CANCELLED" in case.seen for case in report.cases)


async def test_a_surprise_fails_its_case_with_a_traceback_and_leaves_the_others_alone() -> None:
    async def surprising(stage: Stage) -> str:
        await stage.start()
        raise KeyError("who would have thought")

    odd = Case(id="odd", title="Odd", play=surprising, seconds=1.0)
    report = await run(options(RIGHT), [odd, *choose(["bad-payload"])], pace=PACE)
    assert [case.outcome for case in report.cases] == [Outcome.FAIL, Outcome.PASS]
    assert report.cases[0].seen == "expected no surprise; the kit itself met KeyError: 'who would have thought'"
    assert "the kit's own traceback:" in report.cases[0].log_tail
    assert any("in surprising" in line for line in report.cases[0].log_tail)


async def test_a_surprise_in_an_answer_to_the_service_fails_the_case() -> None:
    async def surprising(stage: Stage) -> str:
        await stage.start()
        attempt = stage.make()
        attempt.answers = lambda _: 1 // 0  # type: ignore[assignment,return-value]
        await stage.ended(stage.send(attempt))
        return ""

    report = await run(options(RIGHT), [Case(id="odd", title="Odd", play=surprising, seconds=1.0)], pace=PACE)
    assert "the kit itself met ZeroDivisionError" in report.cases[0].seen


def test_a_case_has_longer_if_slow_steps_are() -> None:
    paces = [None, Pace(service="plain"), Pace(service="plain", slow_seconds=60.0)]
    assert [case_seconds(pace) for pace in paces] == [120.0, 120.0, 720.0]


async def test_nothing_of_a_service_outlives_its_case(tmp_path: Path) -> None:
    """A child of the service holds a pipe open; that it ends tells that the child has."""
    script, pipe = tmp_path / "forks.py", tmp_path / "pipe"
    os.mkfifo(pipe)
    script.write_text(
        "import os, subprocess, sys\n"
        f"subprocess.Popen(['sleep', '30'], stdout=open({str(pipe)!r}, 'wb'))\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'lucius.conformance.broken'])\n"
    )
    ended = asyncio.create_task(asyncio.to_thread(pipe.read_bytes))
    assert (await played([sys.executable, str(script)], "bad-payload")).outcome is Outcome.PASS
    async with asyncio.timeout(5):
        assert await ended == b""


async def test_what_the_author_has_exported_does_not_reach_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUCIUS_SERVICE_DELAY", "60")
    assert (await played(RIGHT, "result")).outcome is Outcome.PASS


async def test_a_kept_folder_holds_log_files_and_requests_and_is_not_used_twice(tmp_path: Path) -> None:
    kept = options(RIGHT, keep=tmp_path / "kept")
    await run(kept, choose(["bad-payload"]), pace=PACE)
    folder = tmp_path / "kept" / "bad-payload"
    assert "callback" in (folder / "requests.jsonl").read_text()
    assert (folder / "service.log").stat().st_size > 0
    with pytest.raises(Misuse, match="not empty"):
        await run(kept, choose(["bad-payload"]), pace=PACE)
