"""Simulated orchestrator that redelivers each directive until it has accepted its RESULT, and has outages.

After an ACK, half of the directives are no longer delivered: only the service can then complete them. It keeps every
callback, and decides nothing but that a failed job gets another attempt.
"""

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from aiohttp import web

from lucius.contract import Directive
from lucius.worker.idempotency import AttemptKey, attempt_key
from tests.integration.worker.support import directive

AGAIN_SECONDS = 0.15
LOST_ANSWERS = 0.05
STEP_TYPES = ("ASYNC", "THREAD")

Json = dict[str, Any]


class Tried:
    """One attempt, as the orchestrator sees it."""

    def __init__(self, given: Directive, trusting: bool) -> None:
        self.directive = given
        self.delivered_at = float("-inf")
        self.deliveries = 0
        self.trusting = trusting
        """Whether to stop redelivering after an ACK."""
        self.results: list[Json] = []
        """Every RESULT received; the first is the accepted one."""


class Orchestrator:
    def __init__(self, service: str, chance: random.Random, jobs_at_once: int) -> None:
        self.service = service
        self.away = False
        self.attempts: dict[AttemptKey, Tried] = {}
        self.succeeded: set[str] = set()
        self.lost_answers = 0
        self._chance = chance
        self._jobs_at_once = jobs_at_once
        self._jobs = 0
        self._open: dict[AttemptKey, Tried] = {}
        self._url = ""
        self._runner = web.AppRunner(self._app(), shutdown_timeout=0)

    async def start(self) -> str:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self.more_jobs()
        return self._url

    async def stop(self) -> None:
        await self._runner.cleanup()

    @property
    def open(self) -> int:
        return len(self._open)

    def no_more_jobs(self) -> None:
        self._jobs_at_once = 0

    def more_jobs(self) -> None:
        while len(self._open) < self._jobs_at_once:
            self._jobs += 1
            self._attempt(self._jobs, 1)

    def _attempt(self, job: int, attempt_no: int) -> None:
        # Mostly none, sometimes up to 0.1 s, so that a kill can come in between.
        seconds = self._chance.choice([0.0, 0.0, 0.1 * self._chance.random() ** 2])
        given = directive(
            self._url,
            job,
            service=self.service,
            step_type=self._chance.choice(STEP_TYPES),
            payload={"seconds": seconds},
            attempt_no=attempt_no,
            lease_id=f"{self._chance.getrandbits(64):016x}",
            message_id=f"job-{job}/ocr/{attempt_no}",
            ack_deadline=(datetime.now(UTC) + timedelta(seconds=60)).isoformat(),
            lease_seconds=60.0,
        )
        tried = Tried(given, trusting=self._chance.random() < 0.5)
        self.attempts[attempt_key(given)] = self._open[attempt_key(given)] = tried

    def _app(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/callbacks:batch", self._callbacks)
        app.router.add_post("/v1/services/{service}/directives:pull", self._pull)
        return app

    async def _pull(self, request: web.Request) -> web.Response:
        asked = await request.json()
        deadline = time.monotonic() + min(asked["wait_seconds"], 0.5)
        while not (found := self._due(asked["max"])) and time.monotonic() < deadline:  # noqa: ASYNC110 - time makes it due
            await asyncio.sleep(0.01)
        if self.away:
            return web.json_response({}, status=503)
        return web.json_response({"directives": [msgspec.to_builtins(one) for one in found]})

    def _due(self, most: int) -> list[Directive]:
        """Return due directives; one lost on the way or sent to a dead process is soon due again."""
        now = time.monotonic()
        due = [tried for tried in self._open.values() if tried.delivered_at + AGAIN_SECONDS <= now][:most]
        for tried in due:
            tried.delivered_at = now
            tried.deliveries += 1
        return [tried.directive for tried in due]

    async def _callbacks(self, request: web.Request) -> web.Response:
        if self.away:
            return web.json_response({}, status=503)
        answers = [self._hear(item) for item in (await request.json())["callbacks"]]
        if self._chance.random() < LOST_ANSWERS and request.transport is not None:
            self.lost_answers += 1
            request.transport.abort()
        return web.json_response({"results": answers})

    def _hear(self, said: Json) -> Json:
        key = AttemptKey(said["jobId"], said["stepId"], said["attempt_no"], said["lease_id"])
        tried = self.attempts[key]
        if said["type"] != "result":
            if tried.trusting:
                tried.delivered_at = float("inf")
            return {"status": 200, "disposition": "DUPLICATE" if tried.results else "APPLIED"}
        tried.results.append({name: said[name] for name in sorted(said) if name not in ("type", "callback_token")})
        if len(tried.results) > 1:
            return {"status": 200, "disposition": "DUPLICATE"}
        del self._open[key]
        if said["status"] == "SUCCEEDED":
            self.succeeded.add(key.jobId)
        else:
            self._attempt(int(key.jobId.removeprefix("job-")), key.attempt_no + 1)
        self.more_jobs()
        return {"status": 200, "disposition": "APPLIED"}
