"""Decides about callbacks inside the activity that waits for them.

The way through the SDK from the end of one activity to the start of the next costs more than what Lucius does in
between. So the activity feeds callbacks to the core as the workflow would, commits the decision and waits for more. It
then returns all these decisions together. The workflow repeats each of them and compares digests; if one differs, the
run ends.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from functools import partial

import structlog
from msgspec.structs import replace

from lucius.core.decide.decide import decide_all
from lucius.core.model.decision import Decision, Env, JobSnapshot, MissingSteps
from lucius.core.model.inputs import Input
from lucius.core.model.records import Instant, Job
from lucius.core.model.tools import Tools
from lucius.core.protocol.definition import ENGINE_SERVICES, HTTP_SERVICE
from lucius.engine.temporal.deterministic_env import make_env
from lucius.engine.temporal.fastpath.open_tasks import OpenTasks
from lucius.engine.temporal.messages import (
    InlineDecision,
    JobMessage,
    Projection,
    advance_snapshot,
    decode_input,
    is_due,
    make_projection,
)
from lucius.engine.temporal.shortcuts import Project
from lucius.engine.temporal.workflow_inbox import MAX_BATCH_INPUTS
from lucius.ports.errors import LedgerError
from lucius.ports.ledger import Ledger

log = structlog.get_logger(__name__)

MAX_LOADS = 4


def find_awaited_services(projection: Projection) -> set[str]:
    """Return the services with ready directives in the projection: they may answer at once."""
    return {row.service for row in projection.outbox if row.is_ready} - ENGINE_SERVICES


class InlineDecisions:
    """Takes inline decisions for workflow tasks that are open in this process."""

    def __init__(self, ledger: Ledger, open_tasks: OpenTasks, tools: Tools) -> None:
        self._ledger = ledger
        self._open_tasks = open_tasks
        self._tools = tools

    async def run(
        self, run_id: str, projection: Projection, project: Project
    ) -> tuple[list[InlineDecision], list[JobMessage]]:
        """Return the decisions taken about callbacks, and the remaining messages, which the workflow has to decide.

        `project` commits a decision to the ledger.
        """
        decisions, lease_ids, messages = list[InlineDecision](), set[str](), list[JobMessage]()
        snapshot, now = None, _counted_from(projection.job.updated_at)
        while (services := find_awaited_services(projection)) and not _is_urgent(projection, now()):
            lease_ids |= {row.lease_id for row in projection.outbox if row.lease_id}  # webhooks have none
            messages = await self._open_tasks.wait_for_messages(projection.job.job_id, services)
            if not _is_about_leases(messages, lease_ids):
                break
            taken = await self._decide_inline(run_id, projection, snapshot, messages, now(), project)
            if taken is None:
                break
            (decision, projection, snapshot), messages = taken, []
            decisions.append(decision)
        self._open_tasks.close(projection.job.job_id)
        return decisions, messages

    async def _decide_inline(
        self,
        run_id: str,
        projection: Projection,
        snapshot: JobSnapshot | None,
        messages: list[JobMessage],
        now: Instant,
        project: Project,
    ) -> tuple[InlineDecision, Projection, JobSnapshot] | None:
        """Take and commit one decision; return None if only the workflow can handle the messages."""
        if projection.defaults is None or not messages:
            return None
        message_ids = tuple(dict.fromkeys(one.message_id for one in messages))
        self._open_tasks.open(projection.job.job_id, run_id, message_ids)
        try:
            snapshot = snapshot or await self._load(projection.job)
            at = max(now, projection.job.updated_at)
            env = partial(make_env, run_id, projection.job, projection.defaults, self._tools)
            found = snapshot and await self._decide(snapshot, [decode_input(one) for one in messages], at, env)
            if not found or not found[0].changes:
                return None
            decision, snapshot = found
            rows = tuple(row for row in decision.outbox if row.service != HTTP_SERVICE)
            is_urgent = len(rows) < len(decision.outbox)  # external calls are made by the workflow
            following = replace(
                make_projection(decision, rows, message_ids), defaults=projection.defaults, is_urgent=is_urgent
            )
            written = await project(following)
        except LedgerError as error:
            log.info("inline decision failed, left to the workflow", job_id=projection.job.job_id, reason=str(error))
            return None
        if not written.digest:
            return None
        return InlineDecision(messages, at, written.digest), following, advance_snapshot(snapshot, decision)

    async def _decide(
        self, snapshot: JobSnapshot, inputs: Sequence[Input], at: Instant, env: Callable[[], Env]
    ) -> tuple[Decision, JobSnapshot] | None:
        """Decide, loading the steps that turn out to be missing; return None if they can't be loaded."""
        for _ in range(MAX_LOADS):
            try:
                return decide_all(snapshot, inputs, at, env()), snapshot
            except MissingSteps as missing:
                known = snapshot.asked or frozenset()
                loaded = await self._load(snapshot.job, known | missing.step_ids)
                if loaded is None:
                    return None
                snapshot = loaded
        return None

    async def _load(self, job: Job, step_ids: Collection[str] = ()) -> JobSnapshot | None:
        """Load the job; return None if another process has changed it, which the workflow will detect."""
        snapshot = await self._ledger.load(job.job_id, step_ids)
        same = snapshot is not None and (snapshot.job.version, snapshot.job.event_hash) == (job.version, job.event_hash)
        return snapshot if same else None


def _counted_from(begun: Instant) -> Callable[[], Instant]:
    """Return a clock that continues the job's time, which is Temporal's and may differ from this process's."""
    time = asyncio.get_running_loop().time
    began = time()
    return lambda: begun + round((time() - began) * 1000)


def _is_urgent(projection: Projection, now: Instant) -> bool:
    """Return whether the workflow has work other than waiting for services."""
    return projection.is_urgent or is_due(projection.job, now)


def _is_about_leases(messages: Sequence[JobMessage], lease_ids: Collection[str]) -> bool:
    """Return whether all messages are about these attempts, which cannot have been decided about before."""
    ours = all(one.message_id and getattr(decode_input(one), "lease_id", "") in lease_ids for one in messages)
    return ours and len(messages) <= MAX_BATCH_INPUTS
