"""The judgement of a run: passed, failed, and inconclusive cases."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from lucius.conformance.case import Case
from lucius.conformance.case_env import CaseEnv
from lucius.conformance.cases import all_cases
from lucius.conformance.model import SCHEMA, CaseOutcome, Misuse, Pace, has_passed
from lucius.conformance.run import case_seconds, choose, run
from tests.integration.conformance_kit.support import DIES, PACE, RIGHT, SLOW_POLLER, options, report_of, wrong

QUICK = ["bad-payload", "result"]
REPO = Path(__file__).parents[3]


async def test_report_has_every_chosen_case_in_the_order_of_the_list() -> None:
    ended: list[str] = []
    report = await run(options(RIGHT), choose(["result", "bad-payload"]), on_end=lambda case: ended.append(case.id))
    assert [case.id for case in report.cases] == [case.id for case in all_cases() if case.id in QUICK]
    assert (report.schema, report.passed, report.counts) == (SCHEMA, True, {"PASS": 2})
    assert (report.service.name, report.service.step_type) == ("plain", "PLAIN")
    assert sorted(ended) == QUICK


async def test_cases_that_need_a_slow_step_are_not_shown_with_a_fast_service() -> None:
    slow = ["ack", "heartbeat", "duplicate-finished", "stale", "cancel", "killed-finished", "graceful-stop"]
    hasty = options(RIGHT, env={"LUCIUS_SERVICE_DELAY": "0"}, side_by_side=8)
    report = await run(hasty, choose(slow), pace=PACE)
    assert {case.outcome for case in report.cases} == {CaseOutcome.NOT_SHOWN}, report.cases
    assert all("LUCIUS_SERVICE_DELAY" in case.seen and "--slow-payload" in case.seen for case in report.cases)
    assert not report.passed


async def test_slow_payload_replaces_a_configured_delay() -> None:
    given = options(RIGHT, env={"LUCIUS_SERVICE_DELAY": "0"}, slow_payload={"seconds": 2.2})
    report = await run(given, choose(["duplicate-running", "killed-mid-step"]))
    assert report.counts == {"PASS": 2}, report.cases


async def test_slow_payload_that_is_not_slow_is_reported() -> None:
    given = options(RIGHT, slow_payload={"seconds": 0})
    (case,) = (await run(given, choose(["heartbeat"]), pace=Pace(service="plain", slow_seconds=0.2))).cases
    assert (case.outcome, "--slow-payload took 0.20 s" in case.seen) == (CaseOutcome.NOT_SHOWN, True)


async def test_case_without_a_bad_payload_is_skipped_and_does_not_fail_the_run() -> None:
    report = await run(options(RIGHT, bad_payload=None), choose(["bad-payload"]), pace=PACE)
    assert (report.counts, report.passed) == ({"SKIPPED": 1}, True)


async def test_warning_passes_unless_strict() -> None:
    report = await report_of(wrong("no-output"), "result")
    assert report.outcome is CaseOutcome.WARN
    assert report.warnings
    assert (has_passed(report.outcome, strict=False), has_passed(report.outcome, strict=True)) == (True, False)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["no-such-command"], "No such file"),
        ([sys.executable, "-c", "print('no key for the model store'); raise SystemExit(3)"], "exit code 3"),
    ],
)
async def test_service_that_does_not_start_fails_the_first_case_and_the_others_are_skipped(
    command: list[str], words: str
) -> None:
    report = await run(options(command), choose(QUICK))
    first, second = report.cases
    assert (first.outcome, second.outcome, report.passed) == (CaseOutcome.FAIL, CaseOutcome.SKIPPED, False)
    assert words in first.seen
    assert second.seen == "not played: the service does not start and pull"
    if "exit code" in words:
        assert first.log_tail[-1] == "no key for the model store"


async def test_service_that_never_pulls_fails_the_first_case_with_the_hint() -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    report = await run(options(sleeper, start_seconds=1.0), choose(["runs", "ack", "heartbeat"]))
    assert report.counts == {"FAIL": 1, "SKIPPED": 2}
    assert "never came" in report.cases[0].seen
    assert "--start-seconds" in report.cases[0].seen
    assert not report.passed


async def test_sequential_service_passes() -> None:
    one = options(RIGHT, env={"LUCIUS_CONCURRENCY": "1"}, side_by_side=8)
    report = await run(one, choose(["duplicate-running", "stale", "backpressure", "refused-callbacks"]), pace=PACE)
    assert report.counts == {"PASS": 4}, report.cases


async def test_slow_puller_of_single_directives_passes() -> None:
    slow = await run(options(SLOW_POLLER, patience=2.0), choose(["malformed", "duplicate-finished"]), pace=PACE)
    assert slow.counts == {"PASS": 2}, slow.cases


async def test_failures_are_made_by_cancelling_without_a_bad_payload() -> None:
    given = options(RIGHT, bad_payload=None, side_by_side=3)
    report = await run(given, choose(["retried", "killed-failed"]), pace=PACE)
    assert report.counts == {"PASS": 2}, report.cases
    assert all("CANCELLED" in case.seen for case in report.cases)


async def test_error_of_the_kit_fails_its_case_with_a_traceback_and_no_other() -> None:
    async def failing(env: CaseEnv) -> str:
        await env.start()
        raise KeyError("simulated")

    odd = Case(id="odd", title="Odd", play=failing, seconds=1.0)
    report = await run(options(RIGHT), [odd, *choose(["bad-payload"])], pace=PACE)
    assert [case.outcome for case in report.cases] == [CaseOutcome.FAIL, CaseOutcome.PASS]
    assert report.cases[0].seen == "expected no error of the kit; it raised KeyError: 'simulated'"
    assert "the kit's own traceback:" in report.cases[0].log_tail
    assert any("in failing" in line for line in report.cases[0].log_tail)


async def test_error_of_the_kit_in_an_answer_fails_the_case() -> None:
    async def failing(env: CaseEnv) -> str:
        await env.start()
        attempt = env.make()
        attempt.answers = lambda _: 1 // 0  # type: ignore[assignment,return-value]
        await env.wait_for_result(env.send(attempt))
        return ""

    report = await run(options(RIGHT), [Case(id="odd", title="Odd", play=failing, seconds=1.0)], pace=PACE)
    assert "error of the kit; it raised ZeroDivisionError" in report.cases[0].seen


def test_case_deadline_grows_with_slow_steps() -> None:
    paces = [None, Pace(service="plain"), Pace(service="plain", slow_seconds=60.0)]
    assert [case_seconds(pace) for pace in paces] == [120.0, 123.0, 720.0]
    assert case_seconds(Pace(service="plain", work_seconds=30.0)) == 420.0


async def test_child_processes_of_a_service_end_with_its_case(tmp_path: Path) -> None:
    """A child of the service holds a pipe open; the end of the pipe shows that the child has ended."""
    script, pipe = tmp_path / "forks.py", tmp_path / "pipe"
    os.mkfifo(pipe)
    script.write_text(
        "import os, subprocess, sys\n"
        f"subprocess.Popen(['sleep', '30'], stdout=open({str(pipe)!r}, 'wb'))\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'lucius.conformance.faulty_service'])\n"
    )
    ended = asyncio.create_task(asyncio.to_thread(pipe.read_bytes))
    assert (await report_of([sys.executable, str(script)], "bad-payload")).outcome is CaseOutcome.PASS
    async with asyncio.timeout(5):
        assert await ended == b""


async def test_exported_service_settings_do_not_reach_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUCIUS_SERVICE_DELAY", "60")
    assert (await report_of(RIGHT, "result")).outcome is CaseOutcome.PASS


async def test_kept_folder_holds_log_and_requests_and_is_not_reused(tmp_path: Path) -> None:
    kept = options(RIGHT, keep=tmp_path / "kept")
    await run(kept, choose(["bad-payload"]), pace=PACE)
    folder = tmp_path / "kept" / "bad-payload"
    assert "callback" in (folder / "requests.jsonl").read_text()
    assert (folder / "service.log").stat().st_size > 0
    with pytest.raises(Misuse, match="not empty"):
        await run(kept, choose(["bad-payload"]), pace=PACE)


async def test_service_that_fails_a_plain_step_ends_the_run_with_a_hint() -> None:
    given = options(RIGHT, payload={"seconds": "many"})
    report = await run(given, choose(["runs", "ack", "heartbeat"]))
    runs, *others = report.cases
    assert (runs.id, runs.outcome, report.passed) == ("runs", CaseOutcome.FAIL, False)
    assert "it was FAILED" in runs.seen
    assert "--payload" in runs.seen
    assert {case.outcome for case in others} == {CaseOutcome.SKIPPED}
    assert report.seconds < 20


async def test_service_that_acknowledges_and_sends_no_result_ends_the_run_with_the_hint() -> None:
    report = await run(options(RIGHT, payload={"seconds": 60}, patience=1.0), choose(["runs", "ack", "heartbeat"]))
    runs, *others = report.cases
    assert (runs.outcome, report.passed) == (CaseOutcome.FAIL, False)
    assert "1 ACK, 0 heartbeats, 0 RESULTs came" in runs.seen
    assert "--payload that takes less than 1 s, or increase --patience" in runs.seen
    assert {case.outcome for case in others} == {CaseOutcome.SKIPPED}
    assert report.seconds < 10


async def test_service_that_dies_of_a_plain_step_ends_the_run() -> None:
    report = await run(options(DIES), choose(["runs", "ack", "heartbeat"]))
    assert report.counts == {"FAIL": 1, "SKIPPED": 2}
    assert "its process ended with exit code 7" in report.cases[0].seen


async def test_contract_violation_in_the_first_step_is_left_to_the_cases() -> None:
    report = await run(options(wrong("invalid-result")), choose(["result", "refused-key"]))
    assert [case.outcome for case in report.cases] == [CaseOutcome.FAIL, CaseOutcome.PASS]


async def test_service_that_ends_after_one_directive_causes_no_kit_error(tmp_path: Path) -> None:
    script = tmp_path / "once.sh"
    script.write_text(f'exec "{REPO}/examples/service_with_curl.sh"\n')
    report = await run(
        options(["bash", str(script)], service="plain", env={"SERVICE": "plain"}), choose(["runs", "ack"])
    )
    assert [case for case in report.cases if "kit itself" in case.seen] == []
