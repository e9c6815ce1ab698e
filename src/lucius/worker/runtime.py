"""Drives one service: pulls as much as there is room for, and runs each attempt once.

What must survive this process is written down before it matters: that an attempt was begun, before its ACK; its
RESULT, before it is sent. `Journal` holds what the orchestrator has not heard yet, on this machine's disk. The
idempotency store knows which attempts were run, perhaps by other processes. `Results` tells both.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import structlog

from lucius.contract import Directive
from lucius.ports.bus import Consumer
from lucius.ports.errors import BusDown
from lucius.worker.attempt import Attempt
from lucius.worker.callbacks import CallbackSender
from lucius.worker.context import names_of
from lucius.worker.execution import Executor, failure
from lucius.worker.failure import Stopped, StopReason
from lucius.worker.hooks import call_all
from lucius.worker.idempotency import (
    RETENTION_SECONDS,
    Finished,
    IdempotencyStore,
    Key,
    New,
    Running,
    StoreDown,
    key_of,
)
from lucius.worker.journal import Journal
from lucius.worker.metrics import Metrics
from lucius.worker.results import NOT_SAFE, Results
from lucius.worker.service import Service
from lucius.worker.settling import Settler
from lucius.worker.soundness import fault_of
from lucius.worker.timing import Timing, first_of
from lucius.worker.workspace import Places

log: structlog.stdlib.BoundLogger = structlog.get_logger()
T = TypeVar("T")

MOST_PER_PULL = 500
EMPTY_PULL_PAUSE = 0.05
UNWIND_SECONDS = 5.0
SHUTDOWN_SECONDS = 10.0
CLAIM_SECONDS = 60.0
LONGEST_PAUSE = 5.0  # whoever was away and is back is asked within that: what waits there has 30 s to be ACKed


class RuntimeOptions(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int = 16
    wait_seconds: float = 20.0
    grace_seconds: float = 20.0
    max_undelivered: int = 1000
    """Callbacks waiting for an orchestrator that is away; with this many, no more work is taken on."""
    delay_seconds: float = 0.0
    places: Places = Places()


class Runtime:
    """`run` until `stop`, or until the bus says that this service may not pull."""

    def __init__(
        self,
        service: Service,
        consumer: Consumer,
        sender: CallbackSender,
        journal: Journal,
        store: IdempotencyStore,
        options: RuntimeOptions,
        metrics: Metrics | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._service = service
        self._consumer = consumer
        self._sender = sender
        self._journal = journal
        self._store = store
        self._options = options
        self._metrics = metrics or Metrics()
        self._timing = timing or Timing()
        self._settler = Settler(consumer, self._timing)
        self._results = Results(journal, store, sender, self._is_told)
        self._room = asyncio.Event()
        self._executor = Executor(service, options.places, self._timing, self._room.set, options.delay_seconds)
        self._running: dict[Key, Attempt] = {}
        self._elsewhere: dict[Key, Directive] = {}
        """What the bus gave us though another is at it: should that one die, it is ours."""
        self._look_again_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Task[None] | None = None
        self._asked_to_stop = False
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._connected = False
        self._started = False

    @property
    def ready(self) -> bool:
        """The last pull was answered and the next will be made."""
        return self._connected and not self._stopping.is_set()

    @property
    def attempts(self) -> list[Attempt]:
        return list(self._running.values())

    @property
    def stray(self) -> int:
        return self._executor.stray

    @property
    def stuck(self) -> bool:
        """Threads that can't be ended hold all the room there is: only a restart helps."""
        return self._executor.stray >= self._options.concurrency

    def stop(self) -> None:
        """Pull no more and finish what runs. Asked twice: give up what runs at once."""
        if self._asked_to_stop:
            self._hurry.set()
        self._asked_to_stop = True
        self._stopping.set()

    async def close(self) -> None:
        """After the last callback: the bus is told what we are done with."""
        await self._settler.close()

    async def run(self) -> None:
        working = [asyncio.create_task(self._pull_forever()), asyncio.create_task(self._look_after_forever())]
        try:
            await first_of(asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED), self._stopping.wait())
        except asyncio.CancelledError:
            self._hurry.set()
            raise
        finally:
            self._stopping.set()
            refused = await _end(working[0])
            await self._give_back(())  # the bus may have answered the pull that we cut off
            await self._drain()
            failed = await _end(working[1])
            self._executor.close()
            if self._started:
                await self._shut_down()
        for error in (refused, failed):
            if error is not None:
                raise error

    async def _pull_forever(self) -> None:
        await self._results.take_up_left_overs()
        await call_all(self._service.startups)
        self._started = True
        failures = 0
        while (room := await self._wait_for_room()) and not self._stopping.is_set():
            if again := self._to_look_at_again(room):
                await self._safely(self._take(again, anothers=True))
                continue
            asked = self._timing.now()
            patience = self._options.wait_seconds if self._connected else 0.0  # at first, just: are you there?
            try:
                if not self._connected:
                    await self._ask_the_stores()
                directives = await self._consumer.pull(min(room, MOST_PER_PULL), patience)
            except (BusDown, StoreDown) as down:
                failures += 1
                self._connected = False
                pause = self._timing.backoff(failures, cap=LONGEST_PAUSE)
                log.warning("not pulling", service=self._service.name, reason=str(down), retry_in=round(pause, 2))
                self._metrics.pull_failed(self._service.name)
                await self._timing.sleep(pause)
                continue
            failures = 0
            await self._safely(self._take(directives))
            self._connected = True
            self._sender.orchestrator_is_back()
            if not directives and patience and self._timing.now() - asked < EMPTY_PULL_PAUSE:
                await self._timing.sleep(EMPTY_PULL_PAUSE)  # a bus that does not wait must not make us spin

    async def _ask_the_stores(self) -> None:
        """Raises StoreDown. What is pulled while they are away can't be begun, and would cost its attempts."""
        self._journal.begin(())
        await self._store.claim((), CLAIM_SECONDS)

    async def _safely(self, taking: Coroutine[Any, Any, None]) -> None:
        """Even if we are told to stop meanwhile: what was pulled is ours to begin."""
        self._taking = self._keep(asyncio.create_task(taking))
        await asyncio.shield(self._taking)

    async def _wait_for_room(self) -> int:
        while True:
            await self._sender.undelivered_below(self._options.max_undelivered)
            room = self._options.concurrency - len(self._running) - self._executor.stray
            if room > 0:
                return room
            self._room.clear()
            await self._room.wait()

    async def _take(self, directives: Sequence[Directive], anothers: bool = False) -> None:
        """Start what is new; send again what is finished; leave alone what somebody is at."""
        ours = [directive for directive in directives if self._is_sound(directive) and not self._is_at_it(directive)]
        if not ours:
            return
        # As long as the store has not said so, we don't know that nobody is at them: one that may not be repeated is
        # left to its ACK deadline, and one that another was at, to that one.
        not_begun = [directive for directive in ours if directive.retry_safety != NOT_SAFE and not anothers]
        claimed = False
        try:
            not_begun = await self._insist(lambda: self._claim(ours), len(ours))
            claimed = True
            not_begun = await self._insist(lambda: self._keep_from_others(not_begun), len(not_begun))
            begun = await self._begin_all(not_begun)
        except _Stopping:
            await self._turn_away(not_begun, claimed)
            return
        except asyncio.CancelledError:
            await self._turn_away(not_begun, claimed)
            raise
        for directive in begun:
            self._start(directive)

    async def _claim(self, directives: Sequence[Directive]) -> list[Directive]:
        """Those that are new."""
        standings = await self._store.claim([key_of(directive) for directive in directives], CLAIM_SECONDS)
        new: list[Directive] = []
        for directive, standing in zip(directives, standings, strict=True):
            match standing:
                case New():
                    new.append(directive)
                case Running():
                    log.info("directive seen before, still at work", **names_of(directive))
                    self._leave_to_another(directive)
                case Finished(result):
                    log.info("directive seen before, sending its result again", **names_of(directive))
                    self._results.report(directive, result)
        return new

    async def _keep_from_others(self, directives: list[Directive]) -> list[Directive]:
        """What may not be repeated is settled before it is begun: no bus may give it out again if we die with it.

        Without those that are not ours any more, or may not be: then its ACK deadline brings the job forward.
        """
        once = [directive for directive in directives if directive.retry_safety == NOT_SAFE]
        if not once:
            return directives
        ours = await self._consumer.settle(once)
        lost = [key_of(directive) for directive, still in zip(once, ours, strict=True) if not still]
        for key in lost:
            log.warning("directive not begun: the bus may have given it to another", jobId=key.jobId, stepId=key.stepId)
        return [directive for directive in directives if key_of(directive) not in lost]

    async def _begin_all(self, directives: list[Directive]) -> list[Directive]:
        """Written down. If that had to wait, our claims may have run out, and others be at work: so we ask again."""
        to_begin, waited = directives, False

        async def begin() -> list[Directive]:
            nonlocal to_begin, waited
            if waited:
                for directive in to_begin:
                    await self._store.release(key_of(directive))
                to_begin = await self._claim(to_begin)
            waited = True
            await self._begin(to_begin)
            return to_begin

        return await self._insist(begin, len(directives)) if directives else []

    async def _begin(self, directives: Sequence[Directive]) -> None:
        once = [key_of(directive) for directive in directives if directive.retry_safety == NOT_SAFE]
        if once:  # should we die in the middle, nobody may take the end of our claim for leave to begin anew
            await self._store.renew(once, RETENTION_SECONDS)
        self._journal.begin(directives)

    async def _turn_away(self, directives: Sequence[Directive], claimed: bool) -> None:
        """Pulled, and we stop before it could be begun: another may have it. Where the bus can't take it back that is
        said at once, rather than wait for ACK deadlines."""
        if claimed:
            await self._release(directives)
        for directive, given in zip(directives, await self._give_back(directives), strict=True):
            if not given:
                self._results.report(directive, _stopped(directive))

    async def _release(self, directives: Sequence[Directive]) -> None:
        """First of all: whoever gets them must not find that we are at them."""
        try:
            for directive in directives:
                await self._store.release(key_of(directive))
        except StoreDown as down:
            log.warning("claims not released, they will run out", reason=str(down))

    async def _give_back(self, directives: Sequence[Directive]) -> list[bool]:
        try:
            return await self._consumer.give_back(directives)
        except BusDown as down:
            log.warning("the bus can't take back what was not begun", reason=str(down), directives=len(directives))
            return [False] * len(directives)

    async def _insist(self, act: Callable[[], Awaitable[T]], directives: int) -> T:
        """What was pulled is ours: a store that is away must not cost its attempts. Nothing more is pulled meanwhile.

        Raises _Stopping if we are to stop before it is back.
        """
        failures = 0
        while True:
            try:
                return await act()
            except (StoreDown, BusDown) as down:
                failures += 1
                self._connected = False
                pause = self._timing.backoff(failures, cap=LONGEST_PAUSE)
                log.warning(
                    "store away, not pulling", reason=str(down), directives=directives, retry_in=round(pause, 2)
                )
            if self._stopping.is_set():
                log.error("stopping before the store is back: directives not begun", directives=directives)
                raise _Stopping
            await first_of(self._timing.sleep(pause), self._stopping.wait())

    def _is_at_it(self, directive: Directive) -> bool:
        """Whether we know already what becomes of it, and perhaps better than the store, which may have been away."""
        if key_of(directive) not in self._running and not self._results.has(directive):
            return False
        log.info("directive seen before, its result is told in time", **names_of(directive))
        return True

    def _leave_to_another(self, directive: Directive) -> None:
        self._elsewhere[key_of(directive)] = directive
        if len(self._elsewhere) > self._options.concurrency:  # the oldest is left to its lease
            self._is_told(self._elsewhere.pop(next(iter(self._elsewhere))))
        self._look_again_at = self._timing.now() + CLAIM_SECONDS / 3

    def _to_look_at_again(self, room: int) -> list[Directive]:
        """What another was at when we asked: it may have finished, or died."""
        if not self._elsewhere or self._timing.now() < self._look_again_at:
            return []
        keys = list(self._elsewhere)[:room]
        return [self._elsewhere.pop(key) for key in keys]

    def _is_told(self, directive: Directive) -> None:
        """The orchestrator knows how it ended, or will never: the bus need not keep it for another."""
        self._elsewhere.pop(key_of(directive), None)
        self._settler.done_with(directive)

    def _is_sound(self, directive: Directive) -> bool:
        fault = fault_of(directive, self._service.name)
        if fault:
            log.error("directive ignored", reason=fault, **names_of(directive))
            self._metrics.ignored(self._service.name)
            self._settler.done_with(directive)
        return not fault

    def _start(self, directive: Directive) -> None:
        attempt = Attempt(directive, self._executor, self._sender, self._timing, self._consumer.gives_once)
        self._running[key_of(directive)] = attempt
        self._keep(attempt.start(self._ended))

    def _keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("an attempt could not be seen off", service=self._service.name, exc_info=error)

    async def _ended(self, attempt: Attempt, result: bytes | None) -> None:
        directive = attempt.directive
        key = key_of(directive)
        if self._running.get(key) is not attempt:
            return  # given up: it was reported without waiting for it
        self._metrics.ended(directive, result, self._timing.now() - attempt.started)
        try:
            if result is None:
                await self._results.none_for(directive)
            else:
                await self._results.conclude(directive, result)
        finally:
            self._running.pop(key, None)
            self._room.set()

    async def _look_after_forever(self) -> None:
        """Keep the claims of what runs, tell the store what it missed, and see to processes that died beside us."""
        while True:
            await self._timing.sleep(CLAIM_SECONDS / 3)
            try:
                if self._running:
                    await self._store.renew(list(self._running), CLAIM_SECONDS)
            except StoreDown as down:
                log.warning("claims not renewed", reason=str(down), attempts=len(self._running))
            else:
                await self._results.catch_up()
            await self._results.take_up_left_overs()

    async def _drain(self) -> None:
        """Let what runs finish; after the grace period say that it will not."""
        if self._tasks:
            grace = self._timing.sleep(self._options.grace_seconds)
            await first_of(self._until_idle(), grace, self._hurry.wait())
        if self._taking is not None:
            self._taking.cancel()  # nothing of it has begun
        for attempt in self.attempts:
            log.warning("attempt abandoned: the service is stopping", **names_of(attempt.directive))
            attempt.abandon()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=UNWIND_SECONDS)
        for key, attempt in list(self._running.items()):
            if not attempt.over:
                log.error("attempt does not end though it was cancelled", **names_of(attempt.directive))
                del self._running[key]
                await self._results.conclude(attempt.directive, _stopped(attempt.directive))
        self._results.write_down_what_waits()

    async def _shut_down(self) -> None:
        """The author's hooks have their time, or until we are told once more to stop: then we end without them."""
        self._hurry.clear()
        closing = asyncio.create_task(call_all(self._service.shutdowns))
        await first_of(asyncio.wait({closing}), self._timing.sleep(SHUTDOWN_SECONDS), self._hurry.wait())
        if closing.done():
            closing.result()
        else:
            closing.cancel()
            log.error("a shutdown hook does not end; going without it", service=self._service.name)

    async def _until_idle(self) -> None:
        while self._tasks:  # what was pulled last may only begin now
            await asyncio.wait(set(self._tasks))


class _Stopping(Exception):
    """There is no time left to begin."""


def _stopped(directive: Directive) -> bytes:
    return failure(directive, Stopped(StopReason.SHUTDOWN))


async def _end(task: asyncio.Task[None]) -> BaseException | None:
    """End a task; returns what it failed with, if it had failed. Does not wait long for one that will not end."""
    task.cancel()
    await asyncio.wait({task}, timeout=UNWIND_SECONDS)
    return task.exception() if task.done() and not task.cancelled() else None
