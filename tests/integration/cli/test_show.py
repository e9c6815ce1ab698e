"""The view of a job shows what it waits for and what was decided, for any kind of step."""

from typing import Any

from tests.integration.cli.support import NOW, Stub, at, attempt, job, lucius, step

NARROW = {"COLUMNS": "100"}


def show_job(stub: Stub, *options: str, steps: list[dict[str, Any]], **fields: Any) -> str:
    stub.routes["GET /v1/jobs/j-1"] = (200, job(steps=steps, **fields))
    stub.routes["GET /v1/jobs/j-1/steps"] = (200, {"steps": [{"attempts": [], **one} for one in steps]})
    stub.routes["GET /v1/jobs/j-1/events"] = (200, {"events": [], "next_cursor": None})
    result = lucius("--url", stub.url, "--api-key", "k", "jobs", "show", "j-1", *options, env=NARROW)
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 100
    return result.stdout


def lines(shown: str) -> list[str]:
    return [" ".join(line.split()) for line in shown.splitlines()]


def test_approval_shows_prompt_votes_and_commands_to_decide(stub: Stub) -> None:
    votes = [
        {"by": "ada", "approves": True, "at": NOW, "comment": "fine by me"},
        {"by": "bob", "approves": False, "at": NOW, "comment": ""},
    ]
    asked = step("sign", kind="human_approval", service="", status="AWAITING_APPROVAL", result={"prompt": "Pay A-17?"})
    sign = {**asked, "votes": votes, "wake_at": NOW, "attempts": [attempt(1, None)]}
    shown = lines(show_job(stub, steps=[sign], status="WAITING_APPROVAL"))
    assert "decide with lucius approve j-1 sign, or lucius reject" in shown
    assert "Pay A-17?" in shown
    assert "approved by ada at 2026-01-02 03:04:05 UTC: fine by me" in shown
    assert "rejected by bob at 2026-01-02 03:04:05 UTC" in shown
    assert "times out at 2026-01-02 03:04:05 UTC" in shown
    assert any(line.startswith("sign human approval AWAITING_APPROVAL 1") for line in shown)


def test_waiting_steps_show_what_they_wait_for_and_until_when(stub: Stub) -> None:
    signal = step("release", kind="wait", service="", status="WAITING", awaits_signal="released", wake_at=NOW)
    timer = step("rest", kind="wait", service="", status="WAITING", wake_at=NOW)
    retry = step("ocr", status="FAILED_RETRY", retry_at=NOW)
    shown = lines(show_job(stub, steps=[signal, timer, retry], status="IN_PROGRESS"))
    assert "waits for signal released until 2026-01-02 03:04:05 UTC" in shown
    assert "waits until 2026-01-02 03:04:05 UTC" in shown
    assert "tried again at 2026-01-02 03:04:05 UTC" in shown


def test_map_shows_its_progress_and_omits_most_items(stub: Stub) -> None:
    counts = {"total": 40, "live": 3, "succeeded": 11, "failed": 1}
    ended = ["SUCCEEDED"] * 36 + ["FAILED_FINAL", "PROCESSING"]
    items = [step(f"scan.{n}", service="scan", status=status) for n, status in enumerate(ended)]
    steps = [step("each", kind="map", service="", status="PROCESSING", items=counts), *items]
    shown = lines(show_job(stub, steps=steps, status="IN_PROGRESS"))
    assert "12 of 40 items done, 3 at work, 1 failed" in shown
    assert any(line.startswith("scan.36 scan FAILED_FINAL") for line in shown)
    assert any(line.startswith("scan.37 scan PROCESSING") for line in shown)
    assert "and 18 items more of scan: 18 SUCCEEDED; --items shows them" in shown
    whole = lines(show_job(stub, "--items", steps=steps, status="IN_PROGRESS"))
    assert sum(line.startswith("scan.") for line in whole) == 38
    assert not any("more of scan" in line for line in whole)


def test_joined_map_shows_its_counts(stub: Stub) -> None:
    result = {"total": 40, "succeeded": 39, "failed": 1, "items": []}
    steps = [step("each", kind="map", service="", status="SUCCEEDED", result=result)]
    assert "39 of 40 succeeded, 1 failed" in lines(show_job(stub, steps=steps))


def test_runs_pauses_reviews_and_compensation_are_shown(stub: Stub) -> None:
    error = {"code": "BROKEN", "message": "it broke"}
    shown = lines(
        show_job(
            stub,
            steps=[step()],
            status="PAUSED",
            run_no=2,
            runs=[{"run_no": 1, "status": "FAILED_FINAL", "started_at": NOW, "completed_at": NOW, "error": error}],
            paused={"by": "engine", "at": NOW, "reason": "a person must decide"},
            review_id="j-1~run2",
            compensation={
                "status": "HALTED",
                "by": "ada",
                "todo": ["hotel", "car"],
                "done": ["bike"],
                "failed": "hotel",
            },
        )
    )
    assert "status PAUSED, in run 2" in shown
    assert "run 1 FAILED_FINAL at 2026-01-02 03:04:05 UTC: it broke [BROKEN]" in shown
    assert "act with lucius review show j-1~run2" in shown
    told = "compensation HALTED by ada; the handler of hotel failed; undone: bike; to undo: hotel, car"
    assert told in shown


def test_paused_job_shows_the_command_to_resume_it(stub: Stub) -> None:
    blocked = {"reason": "PAUSED", "message": "paused by ada since 10:02: month end", "since": NOW}
    paused = {"by": "ada", "at": NOW, "reason": "month end"}
    shown = lines(show_job(stub, steps=[step()], status="PAUSED", blocked_on=blocked, paused=paused))
    assert "why paused by ada since 10:02: month end" in shown
    assert "resume with lucius jobs resume j-1" in shown


def test_attempts_of_later_runs_are_marked(stub: Stub) -> None:
    error = {"code": "BROKEN", "message": "it broke"}
    attempts = [
        attempt(
            1, "FAILED", error=error, failure_class="NON_RETRYABLE", quarantined={"result": 1, "artifact_refs": []}
        ),
        attempt(2, "SUCCEEDED", run_no=2, adopted_from=1),
    ]
    shown = lines(show_job(stub, steps=[step(attempts=attempts)], run_no=2))
    assert any(line.startswith("ocr ocr 1 FAILED (late success kept)") for line in shown)
    assert "BROKEN (NON_RETRYABLE): it broke" in shown
    assert any(line.startswith("SUCCEEDED 2 (run 2) SUCCEEDED (adopted from 1)") for line in shown)


def test_skipped_step_is_marked_as_done_by_a_person(stub: Stub) -> None:
    attempts = [attempt(1, "FAILED"), attempt(2, "SUCCEEDED", run_no=2)]
    shown = lines(show_job(stub, steps=[step(status="SKIPPED", attempts=attempts)], run_no=2))
    assert any(line.startswith("SKIPPED 2 (run 2) by a person") for line in shown)


def test_narrow_list_has_the_reason_on_its_own_line(stub: Stub) -> None:
    blocked = {"reason": "APPROVAL", "message": "waiting for approval by finance " * 3, "since": NOW}
    stub.routes["GET /v1/jobs"] = (200, {"jobs": [job("j-1", "IN_PROGRESS", blocked_on=blocked)], "next_cursor": None})
    result = lucius("--url", stub.url, "--api-key", "k", "jobs", "list", env=NARROW)
    shown = result.stdout.splitlines()
    assert shown[0].split() == ["JOB", "TENANT", "TYPE", "STATUS", "STEP", "AGE"]
    assert shown[2].startswith("    waiting for approval by finance")
    assert len(at(stub, "jobs", "list").stdout.splitlines()) == 2


def test_payload_result_hash_and_logs_are_shown(stub: Stub) -> None:
    done = {**step("ocr", status="SUCCEEDED"), "attempts": [{**attempt(1, "SUCCEEDED"), "logs_ref": "blob://logs/1"}]}
    fields = {"payload": {"ocr": {"pages": "1-3"}}, "output": {"pages": 3}, "idempotency_hash": "0f" * 32}
    shown = lines(show_job(stub, steps=[done], reported_output_ref="blob://out/a/j-1.json", **fields))
    assert 'payload {"ocr": {"pages": "1-3"}}' in shown
    assert 'result {"pages": 3}' in shown
    assert f"hash {'0f' * 32}" in shown
    assert "output blob://out/a/j-1.json" in shown
    assert "logs: blob://logs/1" in shown
