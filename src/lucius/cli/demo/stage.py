"""Where the demo plays: its processes, the client that submits, and what everyone needs to wait for things."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, TypeVar

from lucius.cli.client import Client
from lucius.cli.demo.commands import Document
from lucius.cli.demo.stack import Stack
from lucius.cli.demo.view import Scene
from lucius.cli.errors import CliError, Refused, Unreachable, Unsuccessful
from lucius.contract import AttemptView, JobSummary

T = TypeVar("T")
PATIENCE = 45.0
LOOK_AGAIN = 0.05
UNANSWERED_PAUSE = 0.1
NOT_NOW = 503

Harm = Literal["killed", "dropped", "doubled", "late"]


class Hit(NamedTuple):
    """The attempt that something was done to, for the verdict to look up."""

    job_id: str
    step_id: str
    attempt_no: int


class Stage:
    def __init__(self, stack: Stack, client: Client, scene: Scene, contract: Document) -> None:
        self.contract = contract
        self.stack = stack
        self.client = client
        self.scene = scene
        self.accepted: dict[str, Document] = {}
        self.commands: set[str] = set()
        self.repeats = 0
        self.killed: list[str] = []
        self.hits: dict[Harm, Hit] = {}

    async def submit(self, document: Document) -> str:
        """Until it is answered: with its key, sending it again is safe. Answers the job's id."""
        self.commands.add(document.command["idempotency_key"])
        while True:
            try:
                accepted = await self.client.submit(document.command)
            except Unreachable:
                pass
            except Refused as refused:
                if refused.status != NOT_NOW:
                    raise
            else:
                self.repeats += accepted.duplicate
                self.accepted[accepted.jobId] = document
                return accepted.jobId
            await asyncio.sleep(UNANSWERED_PAUSE)

    async def jobs(self) -> list[JobSummary]:
        return [job async for job in self.client.jobs({})]

    async def at_work(self, service: str) -> list[JobSummary]:
        """Jobs whose current step a service has acknowledged and not finished."""
        jobs = self.client.jobs({"status": "IN_PROGRESS", "blocked_on": "RESULT"})
        return [job async for job in jobs if job.current_step_id == service]

    async def attempt(self, job_id: str, step_id: str, attempt_no: int) -> AttemptView | None:
        for step in (await self.client.steps(job_id)).steps:
            for attempt in step.attempts:
                if (step.stepId, attempt.attempt_no) == (step_id, attempt_no):
                    return attempt
        return None

    async def until_ended(self, job_id: str, step_id: str, attempt_no: int) -> str:
        """How the attempt ended, once it has."""

        async def ended() -> str | None:
            attempt = await self.attempt(job_id, step_id, attempt_no)
            return attempt.outcome if attempt else None

        return await self.until(ended, f"the end of attempt {attempt_no} of {self.title(job_id)}")

    async def until_step_done(self, job_id: str, step_id: str) -> int:
        """The number of the attempt that succeeded."""

        async def done() -> int | None:
            steps = (await self.client.job_view(job_id)).steps
            return next((s.attempt_no for s in steps if (s.stepId, s.status) == (step_id, "SUCCEEDED")), None)

        return await self.until(done, f"step {step_id} of {self.title(job_id)}")

    async def until(self, look: Callable[[], Awaitable[T | None]], what: str) -> T:
        """What `look` finds. A server that is away is no reason to give up before the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PATIENCE
        while loop.time() < deadline:
            try:
                found = await look()
            except CliError:
                found = None
            if found:
                return found
            await asyncio.sleep(LOOK_AGAIN)
        raise Unsuccessful(f"waited {PATIENCE:.0f} s in vain for {what}; the logs are in {self.stack.folder}")

    def title(self, job_id: str) -> str:
        document = self.accepted.get(job_id)
        return document.title if document else f"job {job_id}"
