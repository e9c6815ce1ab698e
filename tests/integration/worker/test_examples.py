"""The examples of the how-to pages, run unchanged."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from tests.integration.worker.support import API_KEY, FakeOrchestrator, Item, directive

EXAMPLES = Path(__file__).parents[3] / "examples"
FAR = "2100-01-01T00:00:00Z"


@asynccontextmanager
async def process(*command: str, **environ: str) -> AsyncIterator[asyncio.subprocess.Process]:
    started = await asyncio.create_subprocess_exec(*command, env={**os.environ, **environ})
    try:
        yield started
    finally:
        if started.returncode is None:
            started.terminate()
        await asyncio.wait_for(started.wait(), 20)


async def test_smallest_service_example_processes_a_directive(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    document = tmp_path / "in.txt"
    document.write_text("hello")
    orchestrator.offer(
        directive(
            orchestrator.url,
            service="upper",
            stepId="upper",
            step_type="UPPER",
            ack_deadline=FAR,
            input_ref=f"file://{document}",
            workspace_ref=f"file://{tmp_path}/lucius/acme/job-1",
            output_ref=f"file://{tmp_path}/out.txt",
            last_step=True,
        )
    )
    command = (sys.executable, str(EXAMPLES / "service_upper.py"))
    env = {"LUCIUS_ORCHESTRATOR_URL": orchestrator.url, "LUCIUS_FILE_ROOTS": str(tmp_path)}
    async with process(*command, LUCIUS_API_KEY=API_KEY, **env) as service:
        await asyncio.wait_for(orchestrator.got_result.wait(), 30)
        service.terminate()
        assert await service.wait() == 0
    (result,) = orchestrator.of_type("result")
    assert result["result"] == {"chars": 5}
    assert (tmp_path / "lucius/acme/job-1/upper/1/upper.txt").read_text() == "HELLO"
    assert (tmp_path / "out.txt").read_text() == "HELLO"


async def test_example_protocol_is_valid_and_names_the_example_service() -> None:
    async with process(
        sys.executable, "-m", "lucius.cli", "protocols", "validate", str(EXAMPLES / "upper.yaml")
    ) as done:
        assert await done.wait() == 0
    (step,) = yaml.safe_load((EXAMPLES / "upper.yaml").read_text())["steps"]
    assert (step["service"], step["step_type"]) == ("upper", "UPPER")


async def test_curl_service_example_processes_a_directive(orchestrator: FakeOrchestrator, tmp_path: Path) -> None:
    orchestrator.offer(directive(orchestrator.url, workspace_ref=f"file://{tmp_path}/lucius/acme/job-1"))
    environ = {"BASE_URL": orchestrator.url, "API_KEY": API_KEY, "SERVICE": "ocr"}
    async with process(str(EXAMPLES / "service_with_curl.sh"), **environ) as service:
        assert await service.wait() == 0
    ack, heartbeat, result = orchestrator.callbacks
    assert [ack["type"], heartbeat["type"], result["type"]] == ["ack", "heartbeat", "result"]
    assert all(bearer == "Bearer token-1" for bearer in orchestrator.bearers)
    assert all(_identity(item) == _identity(ack) for item in (heartbeat, result))
    assert result["status"] == "SUCCEEDED"
    assert result["artifact_refs"] == [f"file://{tmp_path}/lucius/acme/job-1/ocr/1/output.txt"]
    assert (tmp_path / "lucius/acme/job-1/ocr/1/output.txt").read_text() == "made with curl for job-1/ocr/1\n"


async def test_curl_service_example_exits_with_3_if_there_is_nothing_to_do(orchestrator: FakeOrchestrator) -> None:
    environ = {"BASE_URL": orchestrator.url, "API_KEY": API_KEY, "SERVICE": "ocr", "WAIT_SECONDS": "0"}
    async with process(str(EXAMPLES / "service_with_curl.sh"), **environ) as service:
        assert await service.wait() == 3
    assert orchestrator.callbacks == []


def _identity(item: Item) -> Item:
    return {name: item[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}
