"""With a key, Temporal stores nothing readable; keys are replaced while jobs run; a missing key is named."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from temporalio.client import Client, WorkflowExecutionStatus

from lucius.bootstrap.settings import Settings
from lucius.core.model.records import NEVER
from tests.support.api import serving, settings_for
from tests.support.temporal import TemporalServer
from tests.temporal.twin_api import FollowingApi, TimeFlows, over_temporal

pytestmark = pytest.mark.usefixtures("each_fastpath")

OLD, NEW = {"2025": b"o" * 32}, {"2026": b"n" * 32}
PLAIN = {"plain": b""}
SECRETS = (b"secret-input", b"secret-result", b"secret-error", b"secret-reason")
WITHIN = 10.0


@asynccontextmanager
async def serving_with(settings: Settings, keys: dict[str, bytes]) -> AsyncIterator[FollowingApi]:
    async with serving(replace(settings, temporal_keys=keys), TimeFlows()) as served:
        yield FollowingApi(served.app, served.runtime, served.clock)


@pytest.fixture
def settings(tmp_path: Path, temporal_server: TemporalServer) -> Settings:
    """Return settings whose ledger and queue are the same at every start."""
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    return over_temporal(settings_for(tmp_path, ledger_url=ledger), temporal_server)


async def kept_of(server: TemporalServer, job_id: str) -> bytes:
    handle = (await Client.connect(server.address)).get_workflow_handle(job_id)
    history = [event async for event in handle.fetch_history_events()]
    about = (await handle.describe()).raw_description
    return b"".join(kept.SerializeToString() for kept in (*history, about))


async def has_failed(server: TemporalServer, job_id: str) -> None:
    handle = (await Client.connect(server.address)).get_workflow_handle(job_id)
    async with asyncio.timeout(WITHIN):
        while (await handle.describe()).status is not WorkflowExecutionStatus.FAILED:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(("keys", "readable"), [(NEW, ()), (PLAIN, SECRETS)], ids=["key", "no-key"])
async def test_history_in_temporal_contains_no_plain_text_if_a_key_is_configured(
    settings: Settings, temporal_server: TemporalServer, keys: dict[str, bytes], readable: tuple[bytes, ...]
) -> None:
    async with serving_with(settings, keys) as api:
        job_id = await api.submit(request_type="OCR_EMBEDDING", input_ref="blob://in/secret-input.pdf")
        (await api.succeed(await api.pull_one(), result={"text": "secret-result"})).ok()
        error = {"code": "BROKEN", "message": "secret-error"}
        (await api.fail(await api.pull_one("embedding"), failure_class="NON_RETRYABLE", error=error)).ok()
        await has_failed(temporal_server, job_id)
        kept = await kept_of(temporal_server, job_id)
        (await api.post(f"/v1/jobs/{job_id}:retry", {"reason": "secret-reason"})).ok(202)
        kept += await kept_of(temporal_server, job_id)
        assert (await api.job(job_id))["status"] == "DISPATCHING", "a process with the key can read it"
    assert tuple(secret for secret in SECRETS if secret in kept) == readable
    assert (b"Encoded failure" in kept) is (not readable)


@pytest.mark.parametrize(("before", "after"), [(OLD, NEW | OLD), ({}, NEW | PLAIN), (NEW, PLAIN | NEW)])
async def test_running_job_continues_after_a_key_rotation(
    settings: Settings, before: dict[str, bytes], after: dict[str, bytes]
) -> None:
    async with serving_with(settings, before) as api:
        job_id = await api.submit()
        directive = await api.pull_one()
        (await api.callback("ack", directive)).ok()
        await api.followed()
    async with serving_with(settings, after) as api:
        (await api.succeed(directive)).ok()
        assert (await api.job(job_id))["status"] == "SUCCEEDED"


async def test_missing_key_is_logged_and_messages_stay_in_the_inbox(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving_with(settings, OLD) as api:
        job_id = await api.submit()
        directive = await api.pull_one()
        await api.followed()
    async with serving_with(settings, NEW) as api:
        (await api.succeed(directive)).ok()
        async with asyncio.timeout(WITHIN):
            while "encrypted with key '2025'; LUCIUS_TEMPORAL_KEYS has 2026" not in caplog.text:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        (message,) = await api.runtime.store.inbox.list_pending(NEVER, 10)
        assert message.job_id == job_id
        assert "Succeeded" in message.body
