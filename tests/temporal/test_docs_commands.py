"""The Temporal CLI commands in the documentation have the documented effect."""

import asyncio
import re
import shlex
import subprocess
import uuid
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError

from lucius.engine.temporal.messages import WORKFLOW_TYPE
from lucius.engine.temporal.search import KINDS, make_searchable
from tests.support.temporal import TemporalServer, binary

PAGE = (Path(__file__).parents[2] / "docs/how-to/temporal.md").read_text()
WITHIN = 20.0


@pytest.fixture
async def namespace(temporal_server: TemporalServer) -> Client:
    """Return a client of a new namespace, without our search attributes."""
    client = await Client.connect(temporal_server.address, namespace=f"typed-{uuid.uuid4().hex[:12]}")
    asked = RegisterNamespaceRequest(namespace=client.namespace)
    asked.workflow_execution_retention_period.FromSeconds(86_400)
    await client.workflow_service.register_namespace(asked)
    async with asyncio.timeout(WITHIN):
        while True:
            try:
                await client.count_workflows("")
                return client
            except RPCError:
                await asyncio.sleep(0.1)


def commands(beginning: str) -> list[list[str]]:
    """Return the commands in code blocks, with continued lines, and in sentences."""
    block = re.findall(rf"^{beginning} (?:.*\\\n)*.*$", PAGE, re.MULTILINE)
    inline = re.findall(rf"`({beginning} [^`]*)`", " ".join(PAGE.split()))
    return [shlex.split(found.replace("\\\n", " ")) for found in block + inline]


async def typed(words: list[str], client: Client) -> str:
    options = ["--address", client.service_client.config.target_host, "--namespace", client.namespace]
    asked = [binary(), *words[1:], *options]
    done = await asyncio.to_thread(subprocess.run, asked, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_documented_command_creates_all_search_attributes(namespace: Client) -> None:
    found = commands("temporal operator search-attribute create")
    assert found
    for words in found:
        await typed(words, namespace)
    known = await namespace.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=namespace.namespace)
    )
    assert {name: kind for name, kind in known.custom_attributes.items() if name.startswith("Lucius")} == KINDS
    async with asyncio.timeout(WITHIN):
        assert await make_searchable(namespace)


async def test_documented_count_command_counts_only_job_workflows(namespace: Client) -> None:
    (count,) = commands("temporal workflow count")
    for kind in (WORKFLOW_TYPE, "AnotherWorkflow"):
        await namespace.start_workflow(kind, id=f"a-{kind}", task_queue="queue-without-workers")
    async with asyncio.timeout(WITHIN):
        while (await namespace.count_workflows("ExecutionStatus = 'Running'")).count != 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert (await typed(count, namespace)).strip() == "Total: 1"


async def test_documented_list_command_finds_the_jobs_of_a_tenant(namespace: Client) -> None:
    (listing,) = commands("temporal workflow list")
    for create in commands("temporal operator search-attribute create"):
        await typed(create, namespace)
    found = SearchAttributePair(SearchAttributeKey.for_keyword("LuciusTenant"), "acme")
    state = SearchAttributePair(SearchAttributeKey.for_keyword("LuciusState"), "WAITING_APPROVAL")
    other = SearchAttributePair(SearchAttributeKey.for_keyword("LuciusTenant"), "other")
    for job, pairs in {"wanted-job": [found, state], "other-job": [other, state]}.items():
        await namespace.start_workflow(
            WORKFLOW_TYPE, id=job, task_queue="queue-without-workers", search_attributes=TypedSearchAttributes(pairs)
        )
    async with asyncio.timeout(WITHIN):
        while "wanted-job" not in (said := await typed(listing, namespace)):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert "other-job" not in said


async def test_documented_cancel_command_requests_cancellation(namespace: Client) -> None:
    (cancel,) = commands("temporal workflow cancel")
    handle = await namespace.start_workflow(WORKFLOW_TYPE, id="JOB", task_queue="queue-without-workers")
    await typed(cancel, namespace)
    events = [event.event_type async for event in handle.fetch_history_events()]
    assert EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED in events
