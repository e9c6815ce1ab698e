"""Jobs that take weeks, on a server that skips time: unchanged examples, backoffs of hours, long waits."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from temporalio.testing import WorkflowEnvironment

from lucius.bootstrap.settings import Settings
from tests.conformance.test_examples_run import (  # noqa: F401
    World,
    open_world,
    test_early_signature_is_kept_and_a_missing_one_times_out,
    test_loop_polls_until_it_is_done,
    test_undecided_approval_is_escalated_and_can_be_rejected,
)
from tests.support.api import serving
from tests.support.clock import ManualClock
from tests.temporal.twin_api import FollowingApi

HOUR, DAY = 3_600.0, 86_400.0
UNLIMITED_RETRIES = {
    "protocol_id": "patient",
    "version": 1,
    "request_type": "UNLIMITED_RETRIES",
    "input_schema": {"type": "object"},
    "steps": [
        {"step_id": "rest", "kind": "wait", "wait": {"until": "input.at"}},
        {
            "step_id": "sign",
            "kind": "human_approval",
            "timeout_ms": int(7 * DAY * 1000),
            "human_approval": {"approvers": ["finance"], "prompt": "Well?"},
            "on_timeout": "ocr",
        },
        {
            "step_id": "ocr",
            "step_type": "OCR",
            "service": "ocr",
            "retry_policy": {
                "backoff_strategy": "exponential",
                "initial_delay_ms": int(6 * HOUR * 1000),
                "max_delay_ms": int(2 * DAY * 1000),
            },
        },
    ],
}
TEST_SERVER = Path(sys.executable).parent / "temporal-test-server"


class ServersTime(ManualClock):
    """Clock that shows the server's time as of the last look."""

    async def look(self, server: WorkflowEnvironment) -> None:
        self.time = max(self.time, round((await server.get_current_time()).timestamp() * 1000))


class SkippingApi(FollowingApi, kw_only=True):
    server: WorkflowEnvironment

    async def sweep(self, after: float = 0.0) -> int:
        await self.followed()
        await self.server.sleep(timedelta(seconds=after))
        assert isinstance(self.clock, ServersTime)
        await self.clock.look(self.server)
        return 0


@asynccontextmanager
async def serving_on(settings: Settings, server: WorkflowEnvironment) -> AsyncIterator[SkippingApi]:
    clock = ServersTime(0)
    await clock.look(server)
    assert settings.protocols_dir is not None
    (settings.protocols_dir / "patient.yaml").write_text(json.dumps(UNLIMITED_RETRIES))
    settings = replace(
        settings,
        engine="temporal",
        temporal_address=server.client.service_client.config.target_host,
        temporal_search_attributes=False,  # the test server has none
    )
    async with serving(settings, clock) as api:
        yield SkippingApi(api.app, api.runtime, api.clock, server=server)


@pytest.fixture
async def server() -> AsyncIterator[WorkflowEnvironment]:
    async with await WorkflowEnvironment.start_time_skipping(test_server_existing_path=str(TEST_SERVER)) as started:
        yield started


@pytest.fixture
async def world(server: WorkflowEnvironment, tmp_path: Path) -> AsyncIterator[World]:
    serve = partial(serving_on, server=server)
    async with open_world(tmp_path, "memory:", serve, lambda text: text) as opened:
        yield opened


def at(world: World, seconds: float) -> str:
    return datetime.fromtimestamp(world.api.clock.now() / 1000 + seconds, UTC).isoformat()


async def where(world: World, job_id: str) -> str:
    await world.api.sweep()
    return str((await world.api.job(job_id))["current_step_id"])


async def test_job_waits_a_hundred_days_and_then_a_week_for_an_approval(
    world: World, server: WorkflowEnvironment
) -> None:
    job_id = await world.submit("UNLIMITED_RETRIES", at=at(world, 100 * DAY))
    await world.reach(job_id, lambda job: (job["blocked_on"] or {}).get("reason") == "TIMER")
    await world.api.sweep(after=100 * DAY - 60)
    assert await where(world, job_id) == "rest"
    await world.api.sweep(after=120)
    await world.reach(job_id, lambda job: job["status"] == "WAITING_APPROVAL")
    await world.api.sweep(after=7 * DAY - 180)
    assert await where(world, job_id) == "sign"
    await world.api.sweep(after=180)
    assert (await world.end(job_id, "ocr"))["status"] == "SUCCEEDED"
    history = await server.client.get_workflow_handle(job_id).fetch_history()
    assert len(history.events) < 80, "a long wait costs little"


async def test_backoff_of_hours_is_observed(world: World) -> None:
    job_id = await world.submit("UNLIMITED_RETRIES", at=at(world, -1))
    await world.reach(job_id, lambda job: job["status"] == "WAITING_APPROVAL")
    await world.api.sweep(after=7 * DAY + 1)
    for hours in (6, 12):
        (await world.api.fail(await world.api.pull_one(), failure_class="RETRYABLE")).ok()
        await world.reach(job_id, lambda job: (job["blocked_on"] or {}).get("reason") == "RETRY")
        await world.api.sweep(after=hours * HOUR - 60)
        assert await world.api.pull() == []
        await world.api.sweep(after=120)
    assert (await world.end(job_id, "ocr"))["status"] == "SUCCEEDED"
