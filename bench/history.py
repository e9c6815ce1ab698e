"""Past jobs, written by the real core through a real ledger."""

import asyncio
import itertools
import random
from functools import cache
from pathlib import Path
from typing import Any

from lucius.adapters.ledger.sqlite.store import open_sqlite
from lucius.adapters.protocols.directory import ProtocolsDir
from lucius.bootstrap.ids import new_job_id, new_lease_id
from lucius.core.decide.decide import decide_all
from lucius.core.model.decision import Decision, Env, JobSnapshot, NoTools
from lucius.core.model.inputs import Ack, HandedOver, Start, Submit, Succeeded
from lucius.core.model.records import Command, Job
from lucius.core.model.routing import route
from lucius.core.model.statuses import Mode
from lucius.core.protocol.definition import ProtocolDefinition, digest
from lucius.ports.ledger import Ledger

GROUP = 200
BEGAN = 1_700_000_000_000


def write_history(path: Path, jobs: int) -> None:
    asyncio.run(_write(path, jobs))


async def _write(path: Path, jobs: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    store = open_sqlite(path)
    for first in range(0, jobs, GROUP):
        await asyncio.gather(
            *(write_job(store.ledger, n, BEGAN + n * 100) for n in range(first, min(first + GROUP, jobs)))
        )
    await store.close()


async def write_job(ledger: Ledger, n: int, began: int, *, finished: bool = True) -> Job:
    """Write a successful job and return it; if not `finished`, its first step is at work."""
    protocol, address = _protocol()
    job_id = new_job_id()
    command = Command(
        tenant_id=f"tenant-{n % 8}",
        request_type=protocol.request_type,
        input_ref="blob://in/a.pdf",
        output_ref="blob://out/a",
        payload={"ocr": {}, "embedding": {}, "sis": {"prompt_set": ["What is the total?"]}},
        schema_version="v1",
        workspace_ref=f"file:///w/lucius/tenant-{n % 8}/{job_id}",
        correlation_id=job_id,
        idempotency_key=f"past-{n}",
        idempotency_hash=f"{n:064x}",
    )
    routing = route(command.tenant_id, None, Mode.DEFAULT, "REQUEST", "history")
    submit = Submit(job_id=job_id, command=command, protocol=protocol, protocol_digest=address, routing=routing)
    clock, env = itertools.count(began), Env(new_id=new_lease_id, jitter=random.random)
    decision = decide_all(None, (submit, Start()), next(clock), env)
    await ledger.commit(decision)
    view = _after(JobSnapshot(decision.job, protocol, {}), decision)
    for spec in protocol.steps if finished else protocol.steps[:1]:
        attempt = view.steps[spec.step_id].attempt
        named: dict[str, Any] = {
            "step_id": spec.step_id,
            "attempt_no": attempt.attempt_no,
            "lease_id": attempt.lease_id,
        }
        answered = (Ack(**named), Succeeded(**named, result={})) if finished else (Ack(**named),)
        for inputs in ((HandedOver(**named),), answered):
            decision = decide_all(view, inputs, next(clock), env)
            await ledger.commit(decision)
            view = _after(view, decision)
    return decision.job


@cache
def _protocol() -> tuple[ProtocolDefinition, str]:
    found = ProtocolsDir(NoTools()).resolve("OCR_EMBEDDING_SIS")
    if found is None:
        raise SystemExit("the shipped protocols are missing")
    return found, digest(found)


def _after(view: JobSnapshot, decision: Decision) -> JobSnapshot:
    return JobSnapshot(decision.job, view.protocol, {**view.steps, **{step.step_id: step for step in decision.steps}})
