"""A whole engine on PostgreSQL: unacknowledged attempts end, however often it polls and however many processes run."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from lucius.adapters.ledger.postgres.store import open_postgres
from lucius.bootstrap.control_plane import ControlPlane
from lucius.bootstrap.lifecycle import open_runtime
from lucius.bootstrap.settings import load_settings
from lucius.core.model.inputs import Start, Submit
from lucius.core.model.records import Command
from lucius.core.model.routing import route
from lucius.core.model.statuses import AttemptOutcome, Mode, StepStatus
from lucius.core.protocol.definition import ProtocolDefinition, StepSpec, digest

PROTOCOL = ProtocolDefinition(
    protocol_id="p",
    version=1,
    request_type="OCR",
    steps=(StepSpec(step_id="ocr", step_type="OCR", service="ocr"),),
)


async def submit(runtime: ControlPlane) -> None:
    command = Command(
        tenant_id="acme",
        request_type="OCR",
        input_ref="blob://in/a",
        output_ref="blob://out/a",
        payload={},
        schema_version="v1",
        workspace_ref="file:///w",
        correlation_id="c",
        idempotency_hash="h",
    )
    routing = route("acme", None, Mode.DEFAULT, "default", "no mode was asked for")
    asked = Submit(job_id="job", command=command, protocol=PROTOCOL, protocol_digest=digest(PROTOCOL), routing=routing)
    await runtime.engine.create((asked, Start()))


async def ended(runtime: ControlPlane) -> AttemptOutcome | None:
    async with asyncio.timeout(12):
        while True:
            view = await runtime.store.ledger.load("job", fresh=True)
            assert view is not None
            if view.steps["ocr"].status is StepStatus.FAILED_RETRY:
                return view.steps["ocr"].attempt.outcome
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("interval", ["0.05", "0.3", ""])
@pytest.mark.parametrize("others", [0, 20])
async def test_unacknowledged_attempt_ends(
    emptied_postgres_url: str, tmp_path: Path, interval: str, others: int
) -> None:
    env = {"LUCIUS_LEDGER_URL": emptied_postgres_url, "LUCIUS_ACK_TIMEOUT": "1", "LUCIUS_SWEEP_INTERVAL": interval}
    async with AsyncExitStack() as running:
        for _ in range(others):  # processes without an engine
            other = await open_postgres(emptied_postgres_url, connections=2)
            running.push_async_callback(other.close)
        runtime = await running.enter_async_context(open_runtime(load_settings(env, data_dir=tmp_path)))
        await submit(runtime)
        assert len(await runtime.directive_pulls.pull("ocr", 1, 0)) == 1
        assert await ended(runtime) is AttemptOutcome.ACK_TIMEOUT
