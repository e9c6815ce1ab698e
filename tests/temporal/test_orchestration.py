"""The engine contract on Temporal: the same tests as for the embedded engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lucius.core.model.decision import Defaults
from tests.conformance.test_orchestration import (  # noqa: F401
    CHAIN,
    settings_with_protocols,
    test_attempts_of_a_step_share_an_idempotency_key,
    test_exhausted_retries_open_a_review_item,
    test_failure_class_leads_to_the_documented_status_and_review_item,
    test_heartbeat_counts_are_shown_in_the_job,
    test_repeated_command_is_one_job,
    test_required_compensation_holds_the_job_until_an_operator_acts,
    test_two_workers_never_get_the_same_attempt,
)
from tests.support.api import Api
from tests.support.temporal import TemporalServer
from tests.temporal.twin_api import serving_over

pytestmark = pytest.mark.usefixtures("each_fastpath")

MAPPED = 120


@pytest.fixture
async def api(ledger_url: str, tmp_path: Path, temporal_server: TemporalServer) -> AsyncIterator[Api]:
    settings = settings_with_protocols(tmp_path, ledger_url, defaults=Defaults(backoff_scale=0.3))
    async with serving_over(settings, temporal_server) as api:
        yield api


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
async def test_protocol_of_200_steps_finishes(api: Api) -> None:
    job_id = await api.submit(request_type="CHAIN")
    for _ in range(CHAIN):
        (await api.succeed(await api.pull_one(), result={"ok": True})).ok()
    job = await api.job(job_id)
    assert (job["status"], len(job["steps"])) == ("SUCCEEDED", CHAIN)


async def test_a_map_over_many_items_finishes(api: Api) -> None:
    job_id = await api.submit(request_type="MAPPED", payload={"pages": list(range(MAPPED))})
    seen: set[str] = set()
    most_at_once = 0
    while len(seen) < MAPPED:
        directives = await api.pull(max=32, wait_seconds=2)
        most_at_once = max(most_at_once, len(directives))
        for directive in directives:
            seen.add(directive["stepId"])
            (await api.succeed(directive, result={"page": directive["item"]})).ok()
    job = await api.job(job_id)
    assert job["status"] == "SUCCEEDED"
    assert 16 <= most_at_once <= 32
    assert [item["result"]["page"] for item in job["output"]["items"]] == list(range(MAPPED))
