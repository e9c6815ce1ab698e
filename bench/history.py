"""Finished jobs, written through the real ledger and the real core, for a ledger that has a past."""

import asyncio
import itertools
import random
from pathlib import Path
from typing import Any

from lucius.adapters.ledger_sqlite import SqliteLedger
from lucius.adapters.protocols_dir import ProtocolsDir
from lucius.core.decide import decide_all
from lucius.core.decision import Decision, Env, JobView, NoTools
from lucius.core.inputs import Ack, HandedOver, Start, Submit, Succeeded
from lucius.core.model import Command, Mode
from lucius.core.protocol import digest
from lucius.core.routing import route
from lucius.ids import new_job_id, new_lease_id

GROUP = 200


def write_history(path: Path, jobs: int) -> None:
    asyncio.run(_write(path, jobs))


async def _write(path: Path, jobs: int) -> None:
    protocol = ProtocolsDir(NoTools()).resolve("OCR_EMBEDDING_SIS")
    if protocol is None:
        raise SystemExit("the shipped protocols are missing")
    address = digest(protocol)
    env = Env(new_id=new_lease_id, jitter=random.random)
    path.parent.mkdir(parents=True, exist_ok=True)
    ledger = SqliteLedger.open(path)

    async def one(n: int) -> None:
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
        clock = itertools.count(1_700_000_000_000 + n * 100)
        decision = decide_all(None, (submit, Start()), next(clock), env)
        await ledger.commit(decision)
        view = _after(JobView(decision.job, protocol, {}), decision)
        for spec in protocol.steps:
            attempt = view.steps[spec.step_id].attempt
            named: dict[str, Any] = {
                "step_id": spec.step_id,
                "attempt_no": attempt.attempt_no,
                "lease_id": attempt.lease_id,
            }
            for inputs in ((HandedOver(**named),), (Ack(**named), Succeeded(**named, result={}))):
                decision = decide_all(view, inputs, next(clock), env)
                await ledger.commit(decision)
                view = _after(view, decision)

    for first in range(0, jobs, GROUP):
        await asyncio.gather(*(one(n) for n in range(first, min(first + GROUP, jobs))))
    await ledger.close()


def _after(view: JobView, decision: Decision) -> JobView:
    return JobView(decision.job, view.protocol, {**view.steps, **{step.step_id: step for step in decision.steps}})
