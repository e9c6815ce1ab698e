"""The shipped services with a memory: every result says which attempt made it, and from whose inputs."""

import asyncio
import json
import os
import random
from pathlib import Path

from lucius.services import SERVICES
from lucius.services.run import run_services
from lucius.worker import Output, PlatformService, Task

CONCURRENCY = 8


class Witness(PlatformService):
    """Does the work of a shipped service, in a random time, and writes down that it did."""

    def __init__(self, name: str, diary: Path, slowest: float) -> None:
        self.service = name
        self._inner = SERVICES[name]()
        self._slowest = slowest
        self._diary = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def execute(self, task: Task) -> Output:
        directive = task.directive
        made_by = {"lease_id": directive.lease_id, "attempt_no": directive.attempt_no}
        self._write_down({"jobId": directive.jobId, "stepId": directive.stepId, **made_by})
        await asyncio.sleep(self._slowest * random.random() ** 3)  # mostly short, now and then long
        output = await self._inner.execute(task)
        used = {step_id: given.result["lease_id"] for step_id, given in task.inputs.items()}
        return Output({**output.result, **made_by, "used": used}, output.artifact_refs)

    def _write_down(self, started: dict[str, object]) -> None:
        os.write(self._diary, json.dumps(started).encode() + b"\n")


async def serve_witness(name: str, base_url: str, api_key: str, data_dir: str, slowest: str) -> None:
    folder = Path(data_dir)
    witness = Witness(name, folder / "diary.jsonl", float(slowest))
    await run_services([witness], base_url, api_key, concurrency=CONCURRENCY, data_dir=folder, grace=5)
