"""From the bus's dead letters to the jobs they are about: the attempt ends, and a person is asked."""

import asyncio
import random
from collections import deque
from collections.abc import Callable

import structlog

from lucius.core.decision import Applied
from lucius.core.inputs import Poisoned
from lucius.core.model import ErrorInfo
from lucius.ports.bus import DeadLetter, DeadLetters
from lucius.ports.clock import Clock
from lucius.ports.errors import BusDown, ForeignEngine, LedgerAway
from lucius.service.backoff import Backoff, PutOff
from lucius.service.errors import RejectCode, Rejected
from lucius.service.jobs import Jobs

log = structlog.get_logger(__name__)

BATCH = 100
MOST_ASIDE = 1_000
WAIT_SECONDS = 20.0
MAX_BACKOFF = 30.0
CODE = "POISON_MESSAGE"


class DeadLetterRunner:
    """Any number of them may run: a letter goes to one. One told twice finds the attempt ended."""

    def __init__(
        self,
        letters: DeadLetters,
        jobs: Jobs,
        clock: Clock,
        retry_interval: float,
        jitter: Callable[[], float] = random.random,
        on_failure: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._letters = letters
        self._jobs = jobs
        self._on_failure = on_failure
        self._backoff = Backoff(retry_interval, MAX_BACKOFF, jitter)
        self._untold: deque[DeadLetter] = deque()
        """Ours, so the bus gives them to nobody: what could not be told is for us to tell later."""
        self._aside: dict[str, DeadLetter] = {}
        """Ours as well, and no others wait for these: what can't be told may never be."""
        self._put_off = PutOff(clock, jitter, most_names=MOST_ASIDE)

    async def turn(self) -> None:
        try:
            if room := BATCH - len(self._untold):
                self._untold += await self._letters.take(room, 0.0 if self._untold else WAIT_SECONDS)
            while self._untold:
                await self._see_off(self._untold.popleft())
            for letter in [one for one in self._aside.values() if not self._put_off.waits(one.letter_id)]:
                await self._see_off(letter)
        except BusDown as down:
            log.warning("the bus is down, dead letters wait", reason=str(down))
            await asyncio.sleep(self._backoff.pause())
        else:
            self._backoff.went_well()

    async def close(self) -> None:
        await self._letters.close()

    async def _see_off(self, letter: DeadLetter) -> None:
        self._aside.pop(letter.letter_id, None)
        try:
            await self._tell(letter)
            await self._letters.settle([letter])
        except (LedgerAway, BusDown, asyncio.CancelledError):
            self._keep(letter)
            raise
        except ForeignEngine as foreign:
            log.error("a dead letter is for an engine that is not here", job_id=letter.job_id, reason=str(foreign))
            self._letters.let_go([letter])
        except Exception:
            self._on_failure("dead-letters")
            log.exception("could not tell a dead letter, will try again", job_id=letter.job_id)
            self._set_aside(letter)
            return
        self._put_off.forget(letter.letter_id)

    def _keep(self, letter: DeadLetter) -> None:
        """As the last, so that one which is never taken holds up nobody."""
        if len(self._untold) < BATCH:
            self._untold.append(letter)
        else:
            self._set_aside(letter)

    def _set_aside(self, letter: DeadLetter) -> None:
        if len(self._aside) >= MOST_ASIDE:
            self._letters.let_go([letter])  # it comes again, to us or to another
            return
        self._put_off.failed(letter.letter_id)
        self._aside[letter.letter_id] = letter

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
