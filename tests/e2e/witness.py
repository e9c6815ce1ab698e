"""The shipped services, extended to say in each result which attempt made it and from which inputs."""

import asyncio
import json
import os
import random
from pathlib import Path

from lucius.reference_services import SERVICES, ServiceSettings
from lucius.worker import Service, StepContext, StepResult
from lucius.worker.definition import call_step
from lucius.worker.host import host
from lucius.worker.settings import WorkerSettings

CONCURRENCY = 8


def witness(name: str, diary: Path, slowest: float) -> Service:
    """Return a service that does a shipped service's work in a random time, and records each attempt."""
    service = Service(name)
    inner = SERVICES[name](ServiceSettings())
    book = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        directive = ctx.directive
        made_by = {"lease_id": directive.lease_id, "attempt_no": directive.attempt_no}
        os.write(book, json.dumps({"jobId": directive.jobId, "stepId": directive.stepId, **made_by}).encode() + b"\n")
        await asyncio.sleep(slowest * random.random() ** 3)  # mostly short, now and then long
        step = inner.step_for(directive.step_type)
        done = await asyncio.to_thread(call_step, step.execute, ctx, step.params)
        used = {step_id: given.result["lease_id"] for step_id, given in ctx.inputs.items()}
        return StepResult({**done.result, **made_by, "used": used}, done.artifact_refs)

    return service


async def serve_witness(name: str, base_url: str, api_key: str, data_dir: str, slowest: str) -> None:
    folder = Path(data_dir)
    settings = WorkerSettings(
        orchestrator_url=base_url,
        api_key=api_key,
        concurrency=CONCURRENCY,
        data_dir=folder,
        blob_root=Path(os.environ["LUCIUS_BLOB_ROOT"]),
        grace_seconds=5,
    )
    await host([witness(name, folder / "diary.jsonl", float(slowest))], settings)
