"""SDK service for tests that kill it. It records each run, and each result is unique."""

import asyncio
import os
import secrets
import time

from lucius.worker import Service, StepContext, StepResult


def victim(name: str, diary: str) -> Service:
    service = Service(name)
    book = os.open(diary, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def start(ctx: StepContext) -> float:
        os.write(book, f"{ctx.job_id} {ctx.attempt_no} {ctx.directive.lease_id}\n".encode())
        return float(ctx.payload["seconds"])

    @service.step("ASYNC")
    async def on_the_loop(ctx: StepContext) -> StepResult:
        seconds = start(ctx)
        if seconds:
            await asyncio.sleep(seconds)
        return StepResult({"run": secrets.token_hex(8)})

    @service.step("THREAD")
    def in_a_thread(ctx: StepContext) -> StepResult:
        time.sleep(start(ctx))
        return StepResult({"run": secrets.token_hex(8)})

    return service
