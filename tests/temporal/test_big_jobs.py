"""A job larger than Temporal's limits continues after its run has ended, and knows all its steps."""

import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from tests.support.api import serving, settings_for
from tests.support.temporal import TemporalServer
from tests.temporal.twin_api import FollowingApi, TimeFlows, over_temporal

pytestmark = pytest.mark.usefixtures("each_fastpath")

STEPS = 12
RESULT_BYTES = 180_000
"""Random bytes, which do not compress, and a third more as base64: together more than Temporal's 2 MB."""
ALL_RESULTS_PRESENT = " && ".join(f"size(steps.s{n}.result.text) > 0" for n in range(STEPS))
BIG = {
    "protocol_id": "big",
    "version": 1,
    "request_type": "BIG",
    "steps": [
        *({"step_id": f"s{n}", "step_type": "OCR", "service": "ocr"} for n in range(STEPS)),
        {"step_id": "fragile", "step_type": "OCR", "service": "ocr"},
        {
            "step_id": "all_there",
            "kind": "decision",
            "decision": {"choices": [{"when": ALL_RESULTS_PRESENT, "then": "SUCCEED"}], "otherwise": "FAIL"},
        },
    ],
}


@pytest.fixture
async def api(tmp_path: Path, temporal_server: TemporalServer) -> AsyncIterator[FollowingApi]:
    folder = tmp_path / "protocols"
    folder.mkdir()
    (folder / "big.yaml").write_text(json.dumps(BIG))
    settings = over_temporal(settings_for(tmp_path, protocols_dir=folder), temporal_server)
    async with serving(settings, TimeFlows()) as served:
        assert served.runtime.protocols.problems() == ()
        yield FollowingApi(served.app, served.runtime, served.clock)


async def test_retried_big_job_continues_and_its_last_step_sees_all_results(
    api: FollowingApi, temporal_server: TemporalServer
) -> None:
    job_id = await api.submit(request_type="BIG")
    for _ in range(STEPS):
        text = base64.b64encode(os.urandom(RESULT_BYTES)).decode()
        (await api.succeed(await api.pull_one(), result={"text": text})).ok()
    (await api.fail(await api.pull_one(), failure_class="NON_RETRYABLE")).ok()
    assert (await api.job(job_id))["status"] == "FAILED_FINAL"
    (await api.post(f"/v1/jobs/{job_id}:retry", {})).ok(202)
    (await api.succeed(await api.pull_one())).ok()
    job = await api.job(job_id)
    assert job["status"] == "SUCCEEDED"
    assert len(await _history(temporal_server, job_id)) > 1_000_000, (
        "the second run received the results of the first one"
    )


async def _history(server: TemporalServer, job_id: str) -> Any:
    history = await (await Client.connect(server.address)).get_workflow_handle(job_id).fetch_history()
    return history.to_json()
