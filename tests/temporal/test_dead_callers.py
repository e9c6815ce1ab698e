"""A job survives the process that makes its call: its lease ends the step, and its workflow ends soon after."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError

from lucius.engine.temporal.workflow_handover import HEARTBEAT_TIMEOUT
from tests.e2e.dossier import write_config
from tests.e2e.support import until
from tests.e2e.test_roles import SOON, Server, a_command, started
from tests.e2e.test_temporal_roles import env_of
from tests.support.temporal import TemporalServer

HEARTBEAT_TIMEOUT_SECONDS = HEARTBEAT_TIMEOUT.total_seconds()
NOTICED_WITHIN = 15.0


@contextmanager
def slow_host() -> Iterator[socket.socket]:
    """Yield a listening socket that accepts calls and answers none by itself."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)
        yield listening


def write_protocol(folder: Path, request_type: str, port: int, timeout_ms: int) -> None:
    folder.mkdir(exist_ok=True)
    step = {
        "step_id": "call",
        "kind": "external_call",
        "external_call": {"url": f"http://127.0.0.1:{port}/"},
        "timeout_ms": timeout_ms,
        "retry_policy": {"max_attempts": 1},
    }
    name = request_type.lower()
    document = {"protocol_id": name, "version": 1, "request_type": request_type, "steps": [step]}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))


@pytest.mark.timeout(180)
async def test_workflow_ends_soon_after_the_caller_process_died_and_waits_for_a_live_one(
    tmp_path: Path, postgres_url: str, temporal_server: TemporalServer
) -> None:
    with slow_host() as host:
        port = host.getsockname()[1]
        write_protocol(tmp_path / "protocols", "SHORT", port, timeout_ms=1_000)
        write_protocol(tmp_path / "protocols", "LONG", port, timeout_ms=120_000)
        write_config(tmp_path / "lucius.yaml", port)
        here = {"LUCIUS_PROTOCOLS_DIR": str(tmp_path / "protocols"), "LUCIUS_CONFIG": str(tmp_path / "lucius.yaml")}
        env = env_of(temporal_server, postgres_url, "dies", **here)
        with started(tmp_path, "api", **env) as front:
            with started(tmp_path, "temporal-worker", **env) as caller:
                left = front.api.submit({**a_command(1), "request_type": "SHORT"})
                unanswered, _ = host.accept()
                caller.kill()
                killed = time.monotonic()
            with started(tmp_path, "temporal-worker", **env):
                lasting = front.api.submit({**a_command(2), "request_type": "LONG"})
                call, _ = host.accept()
                began = time.monotonic()
                until(lambda: _status(front, left) == "FAILED_FINAL", "the job ends by its lease", 3 * SOON)
                about = (await Client.connect(temporal_server.address)).get_workflow_handle(left)
                assert (await about.describe()).status is WorkflowExecutionStatus.RUNNING, "it listens for the call"
                async with asyncio.timeout(killed + HEARTBEAT_TIMEOUT_SECONDS + NOTICED_WITHIN - time.monotonic()):
                    with pytest.raises(WorkflowFailureError):
                        await about.result()
                await asyncio.sleep(began + HEARTBEAT_TIMEOUT_SECONDS + 5.0 - time.monotonic())
                unanswered.close()
                call.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
                until(lambda: _status(front, lasting) == "SUCCEEDED", "an answer that took its time counts", SOON)


def _status(front: Server, job_id: str) -> str:
    return str(front.api.get(f"/v1/jobs/{job_id}")["status"])
