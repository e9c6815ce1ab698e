"""The Temporal engine under load while everything is killed, frozen and restarted, checked from outside."""

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from lucius.engine.temporal.workflow_handover import HEARTBEAT_TIMEOUT
from tests.conftest import need_postgres
from tests.e2e import checker, dossier
from tests.e2e.checker_at_rest import Histories, at_rest
from tests.e2e.replicas import Clients, running
from tests.e2e.support import Zygote
from tests.support.postgres import PostgresServer
from tests.support.temporal import TemporalServer
from tests.temporal.storm_cluster import Storm, TemporalCluster, TemporalZygote

CLIENTS = 8
REST_SECONDS = HEARTBEAT_TIMEOUT.total_seconds() + 30.0
"""Seconds until all workflows have ended: Temporal reports a killed caller only after HEARTBEAT_TIMEOUT."""


@pytest.fixture
def durable() -> Iterator[PostgresServer]:
    """Yield a PostgreSQL with fsync, which can be restarted."""
    need_postgres()
    server = PostgresServer(fsync=True).start()
    yield server
    server.remove()


@pytest.fixture
def durable_temporal() -> Iterator[TemporalServer]:
    server = TemporalServer(durable=True).start()
    yield server
    server.remove()


@pytest.fixture
def forks() -> Iterator[Zygote]:
    started = TemporalZygote()
    yield started
    started.close()


@pytest.mark.timeout(300)
async def test_storm_loses_no_job_and_applies_no_result_twice(
    forks: Zygote, durable: PostgresServer, durable_temporal: TemporalServer, tmp_path: Path
) -> None:
    print(await survive(forks, durable, durable_temporal, tmp_path, seed=1, rounds=1))


async def survive(
    zygote: Zygote,
    postgres: PostgresServer,
    temporal: TemporalServer,
    folder: Path,
    *,
    seed: int,
    rounds: int,
    bus_url: str = "local:",
) -> str:
    """Run the storm and return a summary; raise AssertionError if an invariant is broken."""
    chance = random.Random(seed)
    schema = f"storm_{seed}"
    cluster = TemporalCluster(zygote, folder / "cluster", postgres.url(schema), temporal, bus_url)
    clients = Clients(cluster.urls, chance)
    storm = Storm(cluster, clients, postgres, temporal, chance)
    async with running(cluster):
        async with asyncio.TaskGroup() as group:
            group.create_task(clients.run(CLIENTS))
            await storm.storm(rounds)
            await asyncio.to_thread(_check_in_the_middle, cluster, postgres, schema, pushes=bus_url != "local:")
            await asyncio.sleep(chance.uniform(1.0, 3.0))
            clients.enough.set()
        await _at_rest(postgres, schema, temporal)
        await asyncio.to_thread(cluster.stop_all)
    ledger = checker.assemble(checker.read(postgres.query, schema))
    histories = cluster.histories(clients.orders)
    found = checker.always(ledger) + at_rest(ledger, histories) + cluster.errors()
    assert not found, found
    assert min(storm.kills.values()) >= rounds
    assert min(storm.restarts.values()) >= 1
    assert clients.asked_again > 0
    return _summary(cluster, storm, clients, ledger, histories)


def _check_in_the_middle(cluster: TemporalCluster, postgres: PostgresServer, schema: str, *, pushes: bool) -> None:
    """Check, with every process killed in the middle of work, that ledger and counters are consistent."""
    cluster.kill_all()
    ledger = checker.assemble(checker.read(postgres.query, schema))
    assert any(job.live for job in ledger.jobs.values())
    found = [what for what in checker.always(ledger) if not _is_about_rows(what, pushes)]
    assert not found, found
    cluster.start_all()


def _is_about_rows(complaint: str, pushes: bool) -> bool:
    """Return True for complaints about rows that never exist: published directives, calls and notifications."""
    if complaint.endswith("and not in the outbox"):
        return pushes or any(f"step {made_by_it} " in complaint for made_by_it in (dossier.CALL, dossier.TELL))
    return pushes and complaint.startswith("the counter pending/")


async def _at_rest(postgres: PostgresServer, schema: str, temporal: TemporalServer) -> None:
    """Wait, with every job ended, until the inbox is empty and no workflow runs."""
    client = await Client.connect(temporal.address)
    deadline = time.monotonic() + REST_SECONDS
    while True:
        messages = await asyncio.to_thread(postgres.query, f"SELECT message_id, body, at FROM {schema}.inbox")
        running = [about.id async for about in client.list_workflows('ExecutionStatus="Running"')]
        if not messages and not running:
            return
        if time.monotonic() > deadline:
            stories = [await _story(client, job_id) for job_id in running[:3]]
            raise AssertionError(f"unread: {messages[:5]}; {len(running)} run: {stories}")
        await asyncio.sleep(0.5)


async def _story(client: Client, job_id: str) -> str:
    events = [event async for event in client.get_workflow_handle(job_id).fetch_history_events()]
    names = [f"{event.event_time.ToJsonString()} {EventType.Name(event.event_type)[11:]}" for event in events]
    return f"{job_id}: {names[-40:]} {str(events[-1])[:2000]}"


def _summary(
    cluster: TemporalCluster, storm: Storm, clients: Clients, ledger: checker.Ledger, histories: Histories
) -> str:
    steps = sum(len(job.steps) for job in ledger.jobs.values())
    stale = sum(len(job.quarantine) for job in ledger.jobs.values())
    return (
        f"{len(clients.orders)} jobs, {steps} steps, {len(histories.began)} executions, {stale} late successes; "
        f"{sum(storm.kills.values())} kills, {storm.freezes} freezes, restarts: {storm.restarts}; "
        f"asked again {clients.asked_again} times, {cluster.mended} mended"
    )
