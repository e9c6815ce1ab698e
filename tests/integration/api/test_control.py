"""Pausing, resuming, signalling and retrying jobs."""

import pytest

from lucius.usecases.operations.operator_actions import MAX_SIGNAL_BYTES
from tests.integration.api.conftest import Start, key_entry
from tests.integration.api.protocols import (
    CHAIN,
    Serve,
    complete_step,
    events,
    fail_step,
    protocol,
    statuses,
    task,
    wait,
)
from tests.support.api import Api

SIGNALLED = protocol("SIGNALLED", task("scan"), wait("release", signal="released", timeout_ms=60_000), task("file"))
TIMED = protocol("TIMED", wait("rest", duration_ms=60_000), task("file"))


class TestPause:
    async def test_pause_lets_running_attempts_finish_and_starts_nothing_new(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await api.submit(request_type="CHAIN")
        directive = await api.pull_one("scan")
        paused = (await api.post(f"/v1/jobs/{job_id}:pause", {"reason": "month end"})).ok(202)
        assert (paused["status"], paused["paused"]["by"], paused["paused"]["reason"]) == ("PAUSED", "dev", "month end")
        (await api.succeed(directive, result={"pages": 3})).ok()
        assert (await api.step(job_id, "scan"))["status"] == "SUCCEEDED"
        assert await api.pull("read") == []
        assert (await api.job(job_id))["status"] == "PAUSED"
        (await api.post(f"/v1/jobs/{job_id}:resume", {"reason": "books are closed"})).ok(202)
        await complete_step(api, "read")
        await complete_step(api, "file")
        assert (await api.job(job_id))["status"] == "SUCCEEDED"
        assert await events(api, job_id, "JOB_PAUSED") == [{"by": "dev", "reason": "month end"}]
        assert await events(api, job_id, "JOB_RESUMED") == [{"by": "dev", "reason": "books are closed"}]

    @pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED_FINAL"])
    async def test_finished_job_stays_paused_until_it_is_resumed(self, api: Api, status: str) -> None:
        job_id = await api.submit()
        directive = await api.pull_one()
        (await api.post(f"/v1/jobs/{job_id}:pause")).ok(202)
        (await api.callback("result", directive, status=status)).ok()
        assert (await api.job(job_id))["status"] == "PAUSED"
        assert (await api.post(f"/v1/jobs/{job_id}:resume")).ok(202)["status"] == status

    async def test_paused_job_shows_by_whom_since_when_and_why(self, api: Api) -> None:
        job_id = await api.submit()
        (await api.post(f"/v1/jobs/{job_id}:pause", {"reason": "wrong file"})).ok(202)
        blocked = (await api.job(job_id))["blocked_on"]
        assert blocked["reason"] == "PAUSED"
        assert blocked["message"] == "paused by dev since 08:00:00 UTC: wrong file"
        assert await api.jobs("blocked_on=PAUSED&status=PAUSED") == [job_id]
        assert await api.jobs("blocked_on=HANDOVER") == []

    async def test_repeated_pause_and_resume_are_accepted(self, api: Api) -> None:
        job_id = await api.submit()
        for act, status in (("pause", "PAUSED"), ("pause", "PAUSED"), ("resume", "DISPATCHING"), ("resume", None)):
            answer = (await api.post(f"/v1/jobs/{job_id}:{act}")).ok(202)
            assert status in (None, answer["status"])
        assert len(await events(api, job_id, "JOB_PAUSED")) == 1

    async def test_directive_of_a_paused_job_is_pulled_only_after_resume(self, api: Api) -> None:
        job_id = await api.submit()
        (await api.post(f"/v1/jobs/{job_id}:pause")).ok(202)
        assert await api.pull() == []
        (await api.post(f"/v1/jobs/{job_id}:resume")).ok(202)
        assert (await api.pull_one())["attempt_no"] == 1

    async def test_paused_job_can_be_cancelled(self, api: Api) -> None:
        job_id = await api.submit()
        (await api.post(f"/v1/jobs/{job_id}:pause")).ok(202)
        assert (await api.post(f"/v1/jobs/{job_id}:cancel")).ok(202)["status"] == "CANCELLED"

    async def test_ended_job_is_neither_paused_nor_resumed(self, api: Api) -> None:
        job_id = await api.submit()
        await api.finish(job_id)
        for act in ("pause", "resume"):
            problem = (await api.post(f"/v1/jobs/{job_id}:{act}")).problem(409, "JOB_TERMINAL")
            assert problem["jobId"] == job_id

    async def test_job_being_cancelled_is_not_paused(self, api: Api) -> None:
        job_id = await api.submit()
        await api.pull_one()
        (await api.post(f"/v1/jobs/{job_id}:cancel")).ok(202)
        (await api.post(f"/v1/jobs/{job_id}:pause")).problem(409, "JOB_CANCELLING")

    async def test_timer_that_expires_in_a_pause_fires_after_resume(self, serve: Serve) -> None:
        api = await serve(TIMED)
        job_id = await api.submit(request_type="TIMED")
        assert await api.jobs("blocked_on=TIMER") == [job_id]
        (await api.post(f"/v1/jobs/{job_id}:pause")).ok(202)
        assert await api.sweep(after=61) == 0
        (await api.post(f"/v1/jobs/{job_id}:resume")).ok(202)
        await api.sweep()
        assert (await statuses(api, job_id)) == {"rest": "SUCCEEDED", "file": "DISPATCHING"}


class TestSignals:
    async def test_signal_releases_the_step_that_waits_for_it(self, serve: Serve) -> None:
        api = await serve(SIGNALLED)
        job_id = await api.submit(request_type="SIGNALLED")
        await complete_step(api, "scan")
        assert await api.jobs("blocked_on=SIGNAL") == [job_id]
        blocked = (await api.job(job_id))["blocked_on"]
        expected = "step release waits for signal released, times out at 08:01:00 UTC"
        assert (blocked["message"], blocked["until"]) == (expected, "2027-01-15T08:01:00.000Z")
        said = {"name": "released", "payload": {"by": "customs"}, "reason": "papers came"}
        assert (await api.post(f"/v1/jobs/{job_id}:signal", said)).ok(202)["status"] == "IN_PROGRESS"
        expected_result = {"signal": "released", "by": "dev", "payload": {"by": "customs"}}
        assert (await api.step(job_id, "release"))["result"] == expected_result
        assert (await events(api, job_id, "SIGNAL_RECEIVED")) == [
            {"name": "released", "by": "dev", "reason": "papers came"}
        ]
        directive = await api.pull_one("file")
        assert directive["inputs"]["release"]["result"] == expected_result

    async def test_early_signal_is_kept(self, serve: Serve) -> None:
        api = await serve(SIGNALLED)
        job_id = await api.submit(request_type="SIGNALLED")
        (await api.post(f"/v1/jobs/{job_id}:signal", {"name": "released"})).ok(202)
        await complete_step(api, "scan")
        assert (await api.job(job_id))["current_step_id"] == "file"

    async def test_missing_signal_fails_the_step(self, serve: Serve) -> None:
        api = await serve(SIGNALLED)
        job_id = await api.submit(request_type="SIGNALLED")
        await complete_step(api, "scan")
        assert await api.sweep(after=61) == 1
        assert (await api.job(job_id))["error"]["code"] == "SIGNAL_TIMEOUT"
        (await api.post(f"/v1/jobs/{job_id}:signal", {"name": "released"})).problem(409, "JOB_TERMINAL")

    async def test_unknown_signal_is_refused_naming_the_known_ones(self, serve: Serve) -> None:
        api = await serve(SIGNALLED)
        job_id = await api.submit(request_type="SIGNALLED")
        problem = (await api.post(f"/v1/jobs/{job_id}:signal", {"name": "relased"})).problem(409, "UNKNOWN_SIGNAL")
        assert "known: released" in problem["detail"]

    async def test_signal_payload_is_limited_in_size_and_depth(self, serve: Serve) -> None:
        api = await serve(SIGNALLED)
        job_id = await api.submit(request_type="SIGNALLED")
        path = f"/v1/jobs/{job_id}:signal"
        large = await api.post(path, {"name": "released", "payload": "x" * MAX_SIGNAL_BYTES})
        problem = large.problem(413, "VALUE_TOO_LARGE")
        assert problem["errors"][0]["pointer"] == "/payload"
        assert "8192 bytes" in problem["detail"]
        deep: object = 1
        for _ in range(101):
            deep = [deep]
        (await api.post(path, {"name": "released", "payload": deep})).problem(422, "INVALID_ENVELOPE")
        (await api.post(path, {"name": "released", "payload": "x" * (MAX_SIGNAL_BYTES - 2)})).ok(202)

    async def test_too_many_unused_signals_are_refused(self, serve: Serve) -> None:
        api = await serve(SIGNALLED)
        job_id = await api.submit(request_type="SIGNALLED")
        for _ in range(32):
            (await api.post(f"/v1/jobs/{job_id}:signal", {"name": "released"})).ok(202)
        (await api.post(f"/v1/jobs/{job_id}:signal", {"name": "released"})).problem(409, "TOO_MANY_SIGNALS")


class TestRetry:
    async def test_new_run_continues_at_the_failed_step_and_keeps_earlier_results(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await api.submit(request_type="CHAIN")
        await complete_step(api, "scan", result={"pages": 3})
        await fail_step(api, "read")
        retried = (await api.post(f"/v1/jobs/{job_id}:retry", {"reason": "the reader is mended"})).ok(202)
        assert (retried["run_no"], retried["status"], retried["error"]) == (2, "DISPATCHING", None)
        (run,) = retried["runs"]
        assert (run["run_no"], run["status"], run["error"]["code"]) == (1, "FAILED_FINAL", "BROKEN")
        assert await api.pull("scan") == []
        directive = await complete_step(api, "read")
        assert (directive["attempt_no"], directive["inputs"]["scan"]["result"]) == (2, {"pages": 3})
        await complete_step(api, "file")
        job = await api.job(job_id)
        assert (job["status"], job["run_no"], len(job["runs"])) == ("SUCCEEDED", 2, 1)
        (started,) = await events(api, job_id, "RUN_STARTED")
        assert (started["by"], started["reason"], started["from_step"]) == ("dev", "the reader is mended", "read")

    async def test_new_run_can_start_at_an_earlier_step(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await api.submit(request_type="CHAIN")
        await complete_step(api, "scan")
        await fail_step(api, "read")
        (await api.post(f"/v1/jobs/{job_id}:retry", {"from_step": "scan"})).ok(202)
        assert (await api.pull_one("scan"))["attempt_no"] == 2

    async def test_run_from_an_unreached_or_unknown_step_is_refused(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await api.submit(request_type="CHAIN")
        await fail_step(api, "scan")
        path = f"/v1/jobs/{job_id}:retry"
        (await api.post(path, {"from_step": "file"})).problem(409, "STEP_NOT_REACHED")
        (await api.post(path, {"from_step": "nowhere"})).problem(404, "STEP_NOT_FOUND")
        assert (await api.job(job_id))["run_no"] == 1

    async def test_cancelled_job_can_be_retried(self, serve: Serve) -> None:
        api = await serve(CHAIN)
        job_id = await api.submit(request_type="CHAIN")
        await complete_step(api, "scan")
        (await api.post(f"/v1/jobs/{job_id}:cancel")).ok(202)
        (await api.post(f"/v1/jobs/{job_id}:retry")).ok(202)
        await complete_step(api, "read")
        await complete_step(api, "file")
        assert (await api.job(job_id))["status"] == "SUCCEEDED"

    async def test_only_failed_or_cancelled_jobs_can_be_retried(self, api: Api) -> None:
        job_id = await api.submit()
        (await api.post(f"/v1/jobs/{job_id}:retry")).problem(409, "JOB_LIVE")
        await api.finish(job_id)
        (await api.post(f"/v1/jobs/{job_id}:retry")).problem(409, "JOB_TERMINAL")

    async def test_new_run_is_subject_to_the_limits(self, serve: Serve) -> None:
        api = await serve(config={"limits": {"tenant_max_inflight": 1}})
        failed = await api.submit()
        await fail_step(api, "ocr")
        running = await api.submit(idempotency_key="2")
        answer = await api.post(f"/v1/jobs/{failed}:retry")
        answer.problem(429, "TENANT_LIMIT")
        assert answer.headers["retry-after"] == "1"
        assert (await api.job(failed))["status"] == "FAILED_FINAL"
        await api.finish(running)
        (await api.post(f"/v1/jobs/{failed}:retry")).ok(202)
        (await api.post("/v1/commands", api.command(idempotency_key="3"))).problem(429, "TENANT_LIMIT")


ACTS = [
    ("pause", {}),
    ("resume", {}),
    ("signal", {"name": "x"}),
    ("retry", {}),
]


@pytest.mark.parametrize(("act", "body"), ACTS)
async def test_control_needs_the_operate_scope_and_the_tenant(start: Start, act: str, body: dict[str, str]) -> None:
    keys = [
        key_entry("looks", "read", "submit", "approve", tenants=("*",)),
        key_entry("theirs", "operate", tenants=("globex",)),
    ]
    api = await start({"api_keys": keys})
    job_id = await api.submit()
    (await api.post(f"/v1/jobs/{job_id}:{act}", body, key="looks")).problem(403, "FORBIDDEN_SCOPE")
    (await api.post(f"/v1/jobs/{job_id}:{act}", body, key="theirs")).problem(404, "JOB_NOT_FOUND")
    (await api.post(f"/v1/jobs/{job_id}:{act}", body, key="")).problem(401, "UNAUTHENTICATED")
    (await api.post(f"/v1/jobs/{job_id}:{act}", {**body, "color": "red"})).problem(422, "INVALID_ENVELOPE")
    (await api.post(f"/v1/jobs/nowhere:{act}", body)).problem(404, "JOB_NOT_FOUND")
    (await api.get(f"/v1/jobs/{job_id}:{act}")).problem(405, "METHOD_NOT_ALLOWED")
