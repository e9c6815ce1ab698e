"""Temporal's own tools find jobs by search attributes; a server that does not allow them still runs jobs."""

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

from lucius.core.model.routing import lane_of
from lucius.engine.temporal.search import LANE, make_searchable
from tests.support.api import serving, settings_for
from tests.support.temporal import TemporalServer, binary
from tests.temporal.twin_api import FollowingApi, TimeFlows, over_temporal

pytestmark = pytest.mark.usefixtures("each_fastpath")

WITHIN = 20.0


def listed(server: TemporalServer, query: str) -> list[str]:
    """Return the ids of the workflows that the Temporal CLI lists."""
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


async def test_temporal_cli_finds_a_job_by_tenant_protocol_lane_and_state(
    api: FollowingApi, temporal_server: TemporalServer, each_fastpath: str
) -> None:
    tenant = f"searched-{each_fastpath}"
    done = await api.submit(tenant_id=tenant)
    cancelled = await api.submit(tenant_id=tenant, idempotency_key="2")
    ours = f"LuciusTenant='{tenant}' and LuciusProtocol='ocr' and LuciusLane={lane_of(tenant)}"
    await until_listed(temporal_server, f"{ours} and LuciusState='IN_PROGRESS'", sorted([cancelled, done]))
    (await api.post(f"/v1/jobs/{cancelled}:cancel", {})).ok(202)
    (await api.succeed(await api.pull_one())).ok()
    await until_listed(temporal_server, f"{ours} and LuciusState='SUCCEEDED'", [done])
    await until_listed(temporal_server, f"{ours} and LuciusState='CANCELLED'", [cancelled])


async def test_retried_job_is_no_longer_found_as_failed(
    api: FollowingApi, temporal_server: TemporalServer, each_fastpath: str
) -> None:
    tenant = f"revived-{each_fastpath}"
    job_id = await api.submit(tenant_id=tenant)
    (await api.fail(await api.pull_one(), failure_class="NON_RETRYABLE")).ok()
    ended = f"LuciusTenant='{tenant}' and LuciusState='FAILED_FINAL'"
    await until_listed(temporal_server, ended, [job_id])
    (await api.post(f"/v1/jobs/{job_id}:retry", {})).ok(202)
    await api.pull_one()
    await until_listed(temporal_server, f"{ended} and ExecutionStatus='Running'", [])
    await until_listed(temporal_server, f"LuciusTenant='{tenant}' and LuciusState='IN_PROGRESS'", [job_id])


# Servers without our attributes


@pytest.fixture
async def namespace(temporal_server: TemporalServer, tmp_path: Path) -> Client:
    """Return a client of a namespace where one of our attributes has another type."""
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


async def test_search_attributes_of_another_type_are_logged_and_jobs_run_without_them(
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


async def test_existing_search_attributes_are_used_without_the_right_to_add_them(
    temporal_server: TemporalServer,
) -> None:
    client = await Client.connect(temporal_server.address)
    assert await make_searchable(client)
    client.operator_service.add_search_attributes = _denied  # type: ignore[method-assign,assignment]
    assert await make_searchable(client)


async def test_missing_search_attributes_without_the_right_to_add_them_are_not_used(
    namespace: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace.operator_service, "add_search_attributes", _denied)
    with capture_logs() as logs:
        assert not await make_searchable(namespace)
    assert logs[-1]["reason"] == "not for you"


async def test_unreachable_or_unready_server_raises_an_error_instead_of_disabling_search(
    temporal_server: TemporalServer,
) -> None:
    away = await Client.connect("127.0.0.1:1", lazy=True)
    with pytest.raises(RuntimeError):
        await make_searchable(away)
    not_ready = await Client.connect(temporal_server.address, namespace="nowhere")
    with pytest.raises(RPCError, match="nowhere is not found"):
        await make_searchable(not_ready)


async def _denied(*asked: Any, **options: Any) -> None:
    raise RPCError("not for you", RPCStatusCode.PERMISSION_DENIED, b"")
