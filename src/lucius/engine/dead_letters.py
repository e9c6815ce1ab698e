"""Fails the attempts whose messages the bus has put aside as dead letters, so that an operator has to decide."""

import asyncio
import random
from collections import deque
from collections.abc import Callable

import structlog

from lucius.backoff import Backoff, KeyedBackoff
from lucius.core.model.decision import Applied
from lucius.core.model.inputs import Poisoned
from lucius.core.model.records import ErrorInfo
from lucius.ports.bus import DeadLetter, DeadLetters
from lucius.ports.clock import Clock
from lucius.ports.engine import Engine
from lucius.ports.errors import BusDown, ForeignEngine, LedgerAway
from lucius.usecases.errors import RejectCode, Rejected

log = structlog.get_logger(__name__)

BATCH_MESSAGES = 100
MAX_ASIDE_MESSAGES = 1_000
WAIT_SECONDS = 20.0
MAX_BACKOFF_SECONDS = 30.0
CODE = "POISON_MESSAGE"


class DeadLetterRunner:
    """Reports dead letters to their jobs.

    Any number of runners may share a bus, which gives each dead letter to one of them. A repeated report changes
    nothing, as the attempt has ended.
    """

    def __init__(
        self,
        letters: DeadLetters,
        engine: Engine,
        clock: Clock,
        retry_interval: float,
        jitter: Callable[[], float] = random.random,
        on_failure: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._letters = letters
        self._engine = engine
        self._on_failure = on_failure
        self._backoff = Backoff(retry_interval, MAX_BACKOFF_SECONDS, jitter)
        self._unreported: deque[DeadLetter] = deque()
        """Dead letters to report next. The bus gives them to no other runner, so failed ones are retried here."""
        self._aside: dict[str, DeadLetter] = {}
        """Dead letters retried with backoff. They do not block others, since they may fail every time."""
        self._put_off = KeyedBackoff(clock, jitter, most_names=MAX_ASIDE_MESSAGES)

    async def run_once(self) -> None:
        try:
            if room := BATCH_MESSAGES - len(self._unreported):
                self._unreported += await self._letters.take(room, 0.0 if self._unreported else WAIT_SECONDS)
            while self._unreported:
                await self._handle(self._unreported.popleft())
            for letter in [one for one in self._aside.values() if not self._put_off.waits(one.entry_id)]:
                await self._handle(letter)
        except BusDown as down:
            log.warning("the bus is unreachable, dead letters will be read later", reason=str(down))
            await asyncio.sleep(self._backoff.pause())
        else:
            self._backoff.went_well()

    async def close(self) -> None:
        await self._letters.close()

    async def _handle(self, letter: DeadLetter) -> None:
        self._aside.pop(letter.entry_id, None)
        try:
            await self._report(letter)
            await self._letters.settle([letter])
        except (LedgerAway, BusDown, asyncio.CancelledError):
            self._keep(letter)
            raise
        except ForeignEngine as foreign:
            log.error("dead letter belongs to a job of another engine", job_id=letter.job_id, reason=str(foreign))
            self._letters.let_go([letter])
        except Exception:
            self._on_failure("dead-letters")
            log.exception("could not report a dead letter, will try again", job_id=letter.job_id)
            self._set_aside(letter)
            return
        self._put_off.forget(letter.entry_id)

    def _keep(self, letter: DeadLetter) -> None:
        """Queue at the end, so that one that fails every time does not block the others."""
        if len(self._unreported) < BATCH_MESSAGES:
            self._unreported.append(letter)
        else:
            self._set_aside(letter)

    def _set_aside(self, letter: DeadLetter) -> None:
        if len(self._aside) >= MAX_ASIDE_MESSAGES:
            self._letters.let_go([letter])  # the bus delivers it again later, here or to another runner
            return
        self._put_off.failed(letter.entry_id)
        self._aside[letter.entry_id] = letter

    async def _report(self, letter: DeadLetter) -> None:
        about = {"job_id": letter.job_id, "step_id": letter.step_id, "attempt_no": letter.attempt_no}
        error = ErrorInfo(CODE, _message(letter))
        poisoned = Poisoned(letter.step_id, letter.attempt_no, letter.lease_id, error)
        try:
            decision = await self._engine.apply(letter.job_id, (poisoned,), letter.step_id)
        except Rejected as rejected:
            if rejected.code is not RejectCode.JOB_NOT_FOUND:
                raise
            log.error("dead letter names an unknown job", reason=letter.reason, **about)
            return
        applied = isinstance(decision.reply, Applied)
        log.warning("dead letter", reason=letter.reason, deliveries=letter.deliveries, applied=applied, **about)


def _message(letter: DeadLetter) -> str:
    if letter.reason == "UNREADABLE":
        return "the service that took the directive off the bus could not read it"
    return f"the bus gave the directive out {letter.deliveries} times, but no consumer finished it ({letter.reason})"
