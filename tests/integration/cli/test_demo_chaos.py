"""The demo reports what happened to the jobs whose service was killed."""

from typing import cast

from lucius.cli.demo.chaos import revive_service
from lucius.cli.demo.demo_env import DemoEnv, FaultedAttempt


class FakeDemoEnv:
    """A demo environment in which each job's step was done by the given attempt."""

    def __init__(self, done_by: dict[str, int]) -> None:
        self._done_by = done_by
        self.faulted_attempts: dict[str, FaultedAttempt] = {}
        self.said: list[str] = []
        self.display = self.stack = self
        self.pid = 1

    async def wait_for_attempt_end(self, job_id: str, step_id: str, attempt_no: int) -> str:
        return "LEASE_EXPIRED"

    async def wait_for_step(self, job_id: str, step_id: str) -> int:
        return self._done_by[job_id]

    async def start(self, name: str) -> "FakeDemoEnv":
        return self

    def title(self, job_id: str) -> str:
        return job_id

    def print_line(self, text: str, style: str = "") -> None:
        self.said.append(text)


async def test_job_whose_result_was_on_disk_does_not_count_as_retried() -> None:
    env = FakeDemoEnv({"read": 1, "lost": 2})
    await revive_service(cast(DemoEnv, env), ["read", "lost"])
    assert env.faulted_attempts == {"killed": FaultedAttempt("lost", "ocr", 1)}
    assert env.said[-2:] == [
        "read had been read: the result was on disk and was accepted",
        "lost is read by attempt 2",
    ]
