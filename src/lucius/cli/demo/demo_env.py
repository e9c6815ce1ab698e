"""Environment of the demo: its processes, the client that submits, and helpers to wait for conditions."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, TypeVar

from lucius.cli.demo.commands import Document
from lucius.cli.demo.stack import Stack
from lucius.cli.demo.view import DemoDisplay
from lucius.cli.errors import Unsuccessful
from lucius.cli.session import act
from lucius.client import AsyncClient, LuciusError, RequestRefused
from lucius.contract import Accepted, AttemptView, JobSummary

T = TypeVar("T")
WAIT_TIMEOUT_SECONDS = 45.0
POLL_SECONDS = 0.05
RESUBMIT_PAUSE_SECONDS = 0.1
SERVICE_UNAVAILABLE = 503

Fault = Literal["killed", "dropped", "doubled", "late"]


class FaultedAttempt(NamedTuple):
    """The attempt that a failure was injected into, for the verdict to look up."""

    job_id: str
    step_id: str
    attempt_no: int


class DemoEnv:
    def __init__(self, stack: Stack, client: AsyncClient, display: DemoDisplay, contract: Document) -> None:
        self.contract = contract
        self.stack = stack
        self.client = client
        self.display = display
        self.accepted: dict[str, Document] = {}
        self.commands: set[str] = set()
        self.repeats = 0
        self.killed: list[str] = []
        self.faulted_attempts: dict[Fault, FaultedAttempt] = {}

    async def submit(self, document: Document) -> str:
        """Submit until there is an answer, which its idempotency key makes safe. Return the job's id."""
        self.commands.add(document.command["idempotency_key"])
        while True:
            try:
                _, accepted = await act(self.client, "/v1/commands", document.command, Accepted)
            except RequestRefused as refused:
                if refused.status != SERVICE_UNAVAILABLE:
                    raise
            except LuciusError:
                pass
            else:
                self.repeats += accepted.duplicate
                self.accepted[accepted.jobId] = document
                return accepted.jobId
            await asyncio.sleep(RESUBMIT_PAUSE_SECONDS)

    async def jobs(self) -> list[JobSummary]:
        return [job async for job in self.client.jobs()]

    async def at_work(self, service: str) -> list[JobSummary]:
        """Return jobs whose current step a service has acknowledged and not finished."""
        jobs = self.client.jobs(status="IN_PROGRESS", blocked_on="RESULT")
        return [job async for job in jobs if job.current_step_id == service]

    async def attempt(self, job_id: str, step_id: str, attempt_no: int) -> AttemptView | None:
        for step in await self.client.steps(job_id):
            for attempt in step.attempts:
                if (step.stepId, attempt.attempt_no) == (step_id, attempt_no):
                    return attempt
        return None

    async def wait_for_attempt_end(self, job_id: str, step_id: str, attempt_no: int) -> str:
        """Wait for the end of an attempt and return its outcome."""

        async def ended() -> str | None:
            attempt = await self.attempt(job_id, step_id, attempt_no)
            return attempt.outcome if attempt else None

        return await self.wait_for(ended, f"the end of attempt {attempt_no} of {self.title(job_id)}")

    async def wait_for_step(self, job_id: str, step_id: str) -> int:
        """Wait for the success of a step and return the number of the attempt."""

        async def done() -> int | None:
            steps = (await self.client.get(job_id)).steps
            return next((s.attempt_no for s in steps if (s.stepId, s.status) == (step_id, "SUCCEEDED")), None)

        return await self.wait_for(done, f"step {step_id} of {self.title(job_id)}")

    async def wait_for(self, poll: Callable[[], Awaitable[T | None]], what: str) -> T:
        """Call `poll` until it returns a true value, and return it. Errors, such as an unreachable server, are ignored.

        Raises Unsuccessful after PATIENCE seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT_TIMEOUT_SECONDS
        while loop.time() < deadline:
            try:
                found = await poll()
            except LuciusError:
                found = None
            if found:
                return found
            await asyncio.sleep(POLL_SECONDS)
        raise Unsuccessful(
            f"{what} did not come within {WAIT_TIMEOUT_SECONDS:.0f} s; the logs are in {self.stack.folder}"
        )

    def title(self, job_id: str) -> str:
        document = self.accepted.get(job_id)
        return document.title if document else f"job {job_id}"
