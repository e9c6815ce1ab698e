"""`LUCIUS_JOB_TIMEOUT`: a deadline for jobs whose protocol has none, pinned when they are accepted."""

from pathlib import Path

import pytest

from lucius.adapters.expressions.expressions import CelTools
from lucius.adapters.protocols.directory import ProtocolsDir
from lucius.bootstrap.settings import load_settings
from lucius.core.protocol.definition import MAX_DURATION_MS
from lucius.ports.errors import SettingsError
from tests.integration.api.protocols import Serve, protocol, task, write_protocols
from tests.support.api import Api, serving, settings_for

SCAN = protocol("SCAN", task("scan"))
SLOW = protocol("SLOW", task("scan"), policies={"timeout_ms": 600_000})


async def submit(api: Api, request_type: str) -> str:
    return await api.submit(request_type=request_type, payload={}, idempotency_key=request_type)


async def status(api: Api, job_id: str) -> tuple[str, str | None]:
    job = await api.job(job_id)
    return job["status"], (job["error"] or {}).get("code")


async def test_job_without_a_protocol_timeout_ends_by_the_default(serve: Serve) -> None:
    api = await serve(SCAN, SLOW, job_timeout_ms=60_000)
    scan, slow = await submit(api, "SCAN"), await submit(api, "SLOW")
    message = (await api.job(scan))["blocked_on"]["message"]
    assert "job deadline 2027-01-15 08:01:00 UTC" in message
    await api.sweep(after=61)
    assert await status(api, scan) == ("FAILED_FINAL", "JOB_TIMEOUT")
    assert (await status(api, slow))[0] == "DISPATCHING"
    await api.sweep(after=600)
    assert await status(api, slow) == ("FAILED_FINAL", "JOB_TIMEOUT")


async def test_job_without_any_timeout_keeps_waiting(serve: Serve) -> None:
    api = await serve(SCAN)
    job_id = await submit(api, "SCAN")
    await api.sweep(after=30 * 86_400)
    assert (await status(api, job_id))[0] == "DISPATCHING"


async def test_timeout_is_pinned_at_acceptance_and_holds_for_a_retry(tmp_path: Path) -> None:
    folder = write_protocols(tmp_path / "protocols", SCAN)
    fixed = {"ledger_url": f"sqlite:///{tmp_path / 'ledger.db'}", "protocols_dir": folder}
    async with serving(settings_for(tmp_path, **fixed, job_timeout_ms=60_000)) as api:
        job_id = await submit(api, "SCAN")
        clock = api.clock
    async with serving(settings_for(tmp_path, **fixed, job_timeout_ms=5_000), clock) as api:
        await api.sweep(after=30)
        assert (await status(api, job_id))[0] == "DISPATCHING"
        await api.sweep(after=31)
        assert await status(api, job_id) == ("FAILED_FINAL", "JOB_TIMEOUT")
        (await api.post(f"/v1/jobs/{job_id}:retry", {"reason": "the service is back"})).ok(202)
        await api.sweep(after=30)
        assert (await status(api, job_id))[0] == "DISPATCHING"
        await api.sweep(after=31)
        assert await status(api, job_id) == ("FAILED_FINAL", "JOB_TIMEOUT")


def test_setting_is_read_in_seconds_and_refused_if_invalid(tmp_path: Path) -> None:
    env = {"LUCIUS_DATA_DIR": str(tmp_path)}
    assert load_settings(env).job_timeout_ms is None
    assert load_settings({**env, "LUCIUS_JOB_TIMEOUT": "90"}).job_timeout_ms == 90_000
    for wrong in ("0", "-1", "soon", "nan"):
        with pytest.raises(SettingsError, match="LUCIUS_JOB_TIMEOUT"):
            load_settings({**env, "LUCIUS_JOB_TIMEOUT": wrong})


@pytest.mark.parametrize("name", ["JOB_TIMEOUT", "ACK_TIMEOUT", "LEASE", "LATE_WINDOW", "OUTBOX_RETRY_INTERVAL"])
@pytest.mark.parametrize(
    ("value", "reason"),
    [("1e300", "must be at most"), ("32000000", "must be at most"), ("inf", "finite number"), ("nan", "finite number")],
)
def test_duration_beyond_any_instant_is_refused(tmp_path: Path, name: str, value: str, reason: str) -> None:
    env = {"LUCIUS_DATA_DIR": str(tmp_path), f"LUCIUS_{name}": value}
    with pytest.raises(SettingsError, match=f"^LUCIUS_{name} .*{reason}"):
        load_settings(env)


def test_longest_duration_equals_that_of_a_protocol(tmp_path: Path) -> None:
    env = {"LUCIUS_DATA_DIR": str(tmp_path), "LUCIUS_JOB_TIMEOUT": str(MAX_DURATION_MS // 1000)}
    assert load_settings(env).job_timeout_ms == MAX_DURATION_MS
    with pytest.raises(SettingsError, match=r"at most 2678400 seconds \(31 days\), and is 2678400.5"):
        load_settings({**env, "LUCIUS_JOB_TIMEOUT": "2678400.5"})
    with pytest.raises(SettingsError, match="LUCIUS_BACKOFF_SCALE must be at most 1000"):
        load_settings({**env, "LUCIUS_BACKOFF_SCALE": "1e9"})


def test_shipped_protocols_have_job_and_step_timeouts() -> None:
    shipped = ProtocolsDir(CelTools()).list()
    assert len(shipped) == 6
    for one in shipped:
        assert one.policies.timeout_ms == 3 * 86_400_000
        assert {step.timeout_ms for step in one.steps} == {4 * 3_600_000}


async def test_age_of_the_oldest_waiting_step_is_a_metric_per_service(serve: Serve) -> None:
    api = await serve(SCAN)
    await submit(api, "SCAN")
    api.clock.advance(90)
    await api.submit()
    api.clock.advance(10)
    shown = (await api.get("/metrics")).body.decode()
    assert 'lucius_service_oldest_waiting_seconds{service="scan"} 100.0' in shown
    assert 'lucius_service_oldest_waiting_seconds{service="ocr"} 10.0' in shown
    await api.pull_one("scan")
    assert 'lucius_service_oldest_waiting_seconds{service="scan"}' not in (await api.get("/metrics")).body.decode()
