"""The demo tells what really became of those whose service was killed."""

from typing import cast

from lucius.cli.demo.chaos import revive_service
from lucius.cli.demo.stage import Hit, Stage


class Told:
    """A stage on which each job's step was done by the attempt that is given for it."""

    def __init__(self, done_by: dict[str, int]) -> None:
        self._done_by = done_by
        self.hits: dict[str, Hit] = {}
        self.said: list[str] = []
        self.scene = self.stack = self
        self.pid = 1

    async def until_ended(self, job_id: str, step_id: str, attempt_no: int) -> str:
        return "LEASE_EXPIRED"

    async def until_step_done(self, job_id: str, step_id: str) -> int:
        return self._done_by[job_id]

    async def start(self, name: str) -> "Told":
        return self

    def title(self, job_id: str) -> str:
        return job_id

    def tell(self, text: str, style: str = "") -> None:
        self.said.append(text)


async def test_one_whose_result_was_on_disk_is_not_taken_for_one_that_was_tried_again() -> None:
    stage = Told({"read": 1, "lost": 2})
    await revive_service(cast(Stage, stage), ["read", "lost"])
    assert stage.hits == {"killed": Hit("lost", "ocr", 1)}
    assert stage.said[-2:] == [
        "read had been read: the result was on disk, and counts",
        "lost is read after all, by attempt 2",
    ]
