"""A whole engine on PostgreSQL: what nobody acknowledges ends, however often it looks and whoever else is there."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from lucius.adapters.ledger_postgres import PostgresLedger
from lucius.core.inputs import Start, Submit
from lucius.core.model import AttemptOutcome, Command, Mode, StepStatus
from lucius.core.protocol import Protocol, StepSpec, digest
from lucius.core.routing import route
from lucius.settings import load_settings
from lucius.wiring import Runtime, open_runtime

PROTOCOL = Protocol(
    protocol_id="p",
    version=1,
    request_type="OCR",
    steps=(StepSpec(step_id="ocr", step_type="OCR", service="ocr"),),
)


async def submit(runtime: Runtime) -> None:
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
    await runtime.jobs.create((asked, Start()))


async def ended(runtime: Runtime) -> AttemptOutcome | None:
    async with asyncio.timeout(12):
        while True:
            view = await runtime.store.load("job", fresh=True)
            assert view is not None
            if view.steps["ocr"].status is StepStatus.FAILED_RETRY:
                return view.steps["ocr"].attempt.outcome
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("interval", ["0.05", "0.3", ""])
@pytest.mark.parametrize("others", [0, 20])
async def test_an_attempt_that_nobody_acknowledges_ends(
    emptied_postgres_url: str, tmp_path: Path, interval: str, others: int
) -> None:
    env = {"LUCIUS_LEDGER_URL": emptied_postgres_url, "LUCIUS_ACK_TIMEOUT": "1", "LUCIUS_SWEEP_INTERVAL": interval}
    async with AsyncExitStack() as running:
        for _ in range(others):  # processes without an engine
            other = await PostgresLedger.open(emptied_postgres_url, connections=2)
            running.push_async_callback(other.close)
        runtime = await running.enter_async_context(open_runtime(load_settings(env, data_dir=tmp_path)))
        await submit(runtime)
        assert len(await runtime.dispatcher.pull("ocr", 1, 0)) == 1
        assert await ended(runtime) is AttemptOutcome.ACK_TIMEOUT
