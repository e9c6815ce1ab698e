"""Jobs are found by what they are in Temporal's own tools; a server that does not allow that still runs them."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from lucius.core.routing import lane_of
from lucius.engine.temporal.search import LANE, make_searchable
from tests.support.api import serving, settings_for
from tests.support.temporal import TemporalServer, binary
from tests.temporal.twin_api import FollowingApi, TimeFlows, over_temporal

WITHIN = 20.0


def listed(server: TemporalServer, query: str) -> list[str]:
    """As a person would, who has a terminal."""
    command = [binary(), "workflow", "list", "--address", server.address, "--query", query, "-o", "json"]
    said = subprocess.run(command, capture_output=True, check=True, timeout=20).stdout
    return sorted(found["execution"]["workflowId"] for found in json.loads(said or b"[]"))


async def until_listed(server: TemporalServer, query: str, wanted: list[str]) -> None:
    async with asyncio.timeout(WITHIN):
        while (found := await asyncio.to_thread(listed, server, query)) != wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert found == wanted


@pytest.fixture
async def api(tmp_path: Path, temporal_server: TemporalServer) -> AsyncIterator[FollowingApi]:
    settings = over_temporal(settings_for(tmp_path), temporal_server)
    async with serving(settings, TimeFlows()) as served:
        yield FollowingApi(served.app, served.runtime, served.clock)


async def test_the_cli_finds_a_job_by_tenant_protocol_lane_and_state(
    api: FollowingApi, temporal_server: TemporalServer
) -> None:
    done = await api.submit(tenant_id="searched")
    cancelled = await api.submit(tenant_id="searched", idempotency_key="2")
    ours = f"LuciusTenant='searched' and LuciusProtocol='ocr' and LuciusLane={lane_of('searched')}"
    await until_listed(temporal_server, f"{ours} and LuciusState='IN_PROGRESS'", sorted([cancelled, done]))
    (await api.post(f"/v1/jobs/{cancelled}:cancel", {})).ok(202)
    (await api.succeed(await api.pull_one())).ok()
    await until_listed(temporal_server, f"{ours} and LuciusState='SUCCEEDED'", [done])
    await until_listed(temporal_server, f"{ours} and LuciusState='CANCELLED'", [cancelled])


async def test_a_job_that_is_tried_again_is_no_longer_found_as_failed(
    api: FollowingApi, temporal_server: TemporalServer
) -> None:
    job_id = await api.submit(tenant_id="revived")
    (await api.fail(await api.pull_one(), failure_class="NON_RETRYABLE")).ok()
    ended = "LuciusTenant='revived' and LuciusState='FAILED_FINAL'"
    await until_listed(temporal_server, ended, [job_id])
    (await api.post(f"/v1/jobs/{job_id}:retry", {})).ok(202)
    await api.pull_one()
    await until_listed(temporal_server, f"{ended} and ExecutionStatus='Running'", [])
    await until_listed(temporal_server, "LuciusTenant='revived' and LuciusState='IN_PROGRESS'", [job_id])


# Servers that do not let us


@pytest.fixture
async def namespace(temporal_server: TemporalServer, tmp_path: Path) -> Client:
    """One that has an attribute of our name for something else."""
    client = await Client.connect(temporal_server.address, namespace=f"ns-{tmp_path.parent.name}-{tmp_path.name}")
    asked = RegisterNamespaceRequest(namespace=client.namespace)
    asked.workflow_execution_retention_period.FromSeconds(86_400)
    await client.workflow_service.register_namespace(asked)
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    added = AddSearchAttributesRequest(namespace=client.namespace, search_attributes={LANE.name: keyword})
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                await client.operator_service.add_search_attributes(added)
                await client.count_workflows(f"{LANE.name}='1'")
                return client
            except RPCError:
                await asyncio.sleep(0.1)


async def test_attributes_that_mean_something_else_there_are_said_and_jobs_run_without(
    namespace: Client, temporal_server: TemporalServer, tmp_path: Path
) -> None:
    with capture_logs() as logs:
        assert not await make_searchable(namespace)
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert "LuciusLane of type Keyword" in warning["reason"]
    assert "INDEXED_VALUE_TYPE_INT" in warning["attributes"]["LuciusLane"]
    settings = replace(over_temporal(settings_for(tmp_path), temporal_server), temporal_namespace=namespace.namespace)
    async with serving(settings, TimeFlows()) as served:
        api = FollowingApi(served.app, served.runtime, served.clock)
        job_id = await api.submit()
        (await api.succeed(await api.pull_one())).ok()
        assert (await api.job(job_id))["status"] == "SUCCEEDED"


async def test_who_may_not_add_attributes_uses_those_that_are_there(temporal_server: TemporalServer) -> None:
    client = await Client.connect(temporal_server.address)
    assert await make_searchable(client)
    client.operator_service.add_search_attributes = _denied  # type: ignore[method-assign,assignment]
    assert await make_searchable(client)


async def test_who_may_not_add_attributes_that_are_missing_does_without(
    namespace: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace.operator_service, "add_search_attributes", _denied)
    with capture_logs() as logs:
        assert not await make_searchable(namespace)
    assert logs[-1]["reason"] == "not for you"


async def test_a_server_that_is_away_or_not_ready_is_not_one_that_refuses(temporal_server: TemporalServer) -> None:
    away = await Client.connect("127.0.0.1:1", lazy=True)
    with pytest.raises(RuntimeError):
        await make_searchable(away)
    not_ready = await Client.connect(temporal_server.address, namespace="nowhere")
    with pytest.raises(RPCError, match="nowhere is not found"):
        await make_searchable(not_ready)


async def _denied(*asked: Any, **options: Any) -> None:
    raise RPCError("not for you", RPCStatusCode.PERMISSION_DENIED, b"")
