"""From the bus's dead letters to the jobs they are about: the attempt ends, and a person is asked."""

import asyncio
from collections import deque

import structlog

from lucius.core.decision import Applied
from lucius.core.inputs import Poisoned
from lucius.core.model import ErrorInfo
from lucius.ports.bus import DeadLetter, DeadLetters
from lucius.ports.errors import BusDown
from lucius.service.errors import RejectCode, Rejected
from lucius.service.jobs import Jobs

log = structlog.get_logger(__name__)

BATCH = 100
WAIT_SECONDS = 20.0
CODE = "POISON_MESSAGE"


class DeadLetterRunner:
    """Any number of them may run: a letter goes to one. One told twice finds the attempt ended."""

    def __init__(self, letters: DeadLetters, jobs: Jobs, retry_interval: float) -> None:
        self._letters = letters
        self._jobs = jobs
        self._retry_interval = retry_interval
        self._untold: deque[DeadLetter] = deque()
        """Ours, so the bus gives them to nobody: what could not be told is for us to tell later."""

    async def turn(self) -> None:
        try:
            if room := BATCH - len(self._untold):
                self._untold += await self._letters.take(room, 0.0 if self._untold else WAIT_SECONDS)
            while self._untold:
                await self._see_off(self._untold.popleft())
        except BusDown as down:
            log.warning("the bus is down, dead letters wait", reason=str(down))
            await asyncio.sleep(self._retry_interval)

    async def close(self) -> None:
        await self._letters.close()

    async def _see_off(self, letter: DeadLetter) -> None:
        told = False
        try:
            await self._tell(letter)
            await self._letters.settle([letter])
            told = True
        finally:
            if not told:  # whatever the reason; as the last, so that one which never can be told holds up nobody
                self._untold.append(letter)

    async def _tell(self, letter: DeadLetter) -> None:
        about = {"job_id": letter.job_id, "step_id": letter.step_id, "attempt_no": letter.attempt_no}
        error = ErrorInfo(CODE, _sentence(letter))
        poisoned = Poisoned(letter.step_id, letter.attempt_no, letter.lease_id, error)
        try:
            decision = await self._jobs.apply(letter.job_id, (poisoned,), letter.step_id)
        except Rejected as rejected:
            if rejected.code is not RejectCode.JOB_NOT_FOUND:
                raise
            log.error("a dead letter is about no job of ours", reason=letter.reason, **about)
            return
        applied = isinstance(decision.reply, Applied)
        log.warning("dead letter", reason=letter.reason, deliveries=letter.deliveries, applied=applied, **about)


def _sentence(letter: DeadLetter) -> str:
    if letter.reason == "UNREADABLE":
        return "the service that took the directive off the bus could not read it"
    return f"the bus gave the directive out {letter.deliveries} times, and nobody was done with it ({letter.reason})"
