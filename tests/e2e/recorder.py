"""SDK service that records every execution, at its start and end, and signs each result with a token."""

import asyncio
import json
import os
import random
import secrets
import time
from pathlib import Path
from typing import Any

from lucius.worker import Service, StepContext, StepResult, Transient
from lucius.worker.host import host
from lucius.worker.settings import settings_from

NAMES = ("ocr", "embedding", "sis")
FAILS = 0.03


class Diary:
    """Log with one write per line, so that concurrent tasks and kills do not mix or split lines."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._books = {name: os.open(folder / f"{name}.jsonl", flags, 0o600) for name in ("began", "finished")}

    def write(self, book: str, ctx: StepContext, token: str, **more: object) -> None:
        directive = ctx.directive
        said = {name: getattr(directive, name) for name in ("jobId", "stepId", "attempt_no", "lease_id")}
        line = json.dumps({**said, "token": token, "pid": os.getpid(), "at": time.time(), **more})
        os.write(self._books[book], line.encode() + b"\n")


def recorder(name: str, diary: Diary, slowest: float) -> Service:
    service = Service(name)

    @service.step()
    async def execute(ctx: StepContext) -> StepResult:
        token = secrets.token_hex(8)
        diary.write("began", ctx, token)
        await asyncio.sleep(slowest * random.random() ** 3)  # mostly short, now and then long
        if random.random() < FAILS:
            raise Transient("not this time")
        used = {step_id: _tokens(given.result or {}) for step_id, given in ctx.inputs.items()}
        diary.write("finished", ctx, token, used=used)
        return StepResult({"token": token})

    return service


def _tokens(result: dict[str, Any]) -> str | list[str] | None:
    """Return the token of a result, or those of a map's items; None if no service made it."""
    if "items" in result:
        return [item["result"]["token"] for item in result["items"]]
    token: str | None = result.get("token")
    return token


async def serve_recorders(folder: str, slowest: str) -> None:
    """Run all services in one process, configured by the environment."""
    diary = Diary(Path(folder))
    await host([recorder(name, diary, float(slowest)) for name in NAMES], settings_from())
