"""Runtime of one service: pulls directives up to its free capacity, and runs each attempt once.

State that must survive this process is written first: the attempt before its ACK, its RESULT before it is sent.
`Journal` keeps undelivered RESULTs on local disk. The idempotency store knows which attempts were run, by any process.
`ResultReporter` writes results to both.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import structlog

from lucius.contract import Directive
from lucius.ports.bus import Consumer
from lucius.ports.errors import BusDown
from lucius.worker.attempt import RunningAttempt
from lucius.worker.callbacks import CallbackSender
from lucius.worker.context import log_fields
from lucius.worker.definition import ServiceDefinition
from lucius.worker.directive_checks import check_directive
from lucius.worker.directive_settler import DirectiveSettler
from lucius.worker.execution import Executor, encode_failure
from lucius.worker.failure import Stopped, StopReason
from lucius.worker.hooks import call_all
from lucius.worker.idempotency import (
    RETENTION_SECONDS,
    AttemptKey,
    Finished,
    IdempotencyStore,
    New,
    Running,
    StoreDown,
    attempt_key,
)
from lucius.worker.journal import Journal
from lucius.worker.metrics import Metrics
from lucius.worker.results import NOT_SAFE, ResultReporter
from lucius.worker.timing import Timing, wait_first
from lucius.worker.workspace import Places

log: structlog.stdlib.BoundLogger = structlog.get_logger()
T = TypeVar("T")

MAX_PULL_DIRECTIVES = 500
EMPTY_PULL_PAUSE_SECONDS = 0.05
CANCEL_TIMEOUT_SECONDS = 5.0
SHUTDOWN_HOOKS_SECONDS = 10.0
CLAIM_TTL_SECONDS = 60.0
MAX_RETRY_PAUSE_SECONDS = 5.0  # well below the ACK deadline of 30 s


class RuntimeOptions(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int = 16
    wait_seconds: float = 20.0
    grace_seconds: float = 20.0
    max_undelivered: int = 1000
    """Number of undelivered callbacks at which pulling stops."""
    delay_seconds: float = 0.0
    places: Places = Places()


class Runtime:
    """Runs one service until `stop`, or until the bus refuses its pulls."""

    def __init__(
        self,
        service: ServiceDefinition,
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
        self._settler = DirectiveSettler(consumer, self._timing)
        self._results = ResultReporter(journal, store, sender, self._on_result_settled)
        self._room = asyncio.Event()
        self._executor = Executor(service, options.places, self._timing, self._room.set, options.delay_seconds)
        self._running: dict[AttemptKey, RunningAttempt] = {}
        self._claimed_elsewhere: dict[AttemptKey, Directive] = {}
        """Directives pulled here that another process executes; claimed here if that process dies."""
        self._recheck_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Task[None] | None = None
        self._asked_to_stop = False
        self._stopping = asyncio.Event()
        self._abandon_now = asyncio.Event()
        self._connected = False
        self._started = False

    @property
    def is_ready(self) -> bool:
        """True if the last pull was answered and the runtime is not stopping."""
        return self._connected and not self._stopping.is_set()

    @property
    def attempts(self) -> list[RunningAttempt]:
        return list(self._running.values())

    @property
    def stray(self) -> int:
        return self._executor.stray

    @property
    def is_stuck(self) -> bool:
        """True if stray threads, which can't be ended, take up all the concurrency: only a restart helps."""
        return self._executor.stray >= self._options.concurrency

    def stop(self) -> None:
        """Pull no more and finish running attempts. A second call abandons them immediately."""
        if self._asked_to_stop:
            self._abandon_now.set()
        self._asked_to_stop = True
        self._stopping.set()

    async def close(self) -> None:
        """Settle finished directives on the bus. Call it after the last callback."""
        await self._settler.close()

    async def run(self) -> None:
        working = [asyncio.create_task(self._pull_forever()), asyncio.create_task(self._maintain())]
        try:
            await wait_first(asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED), self._stopping.wait())
        except asyncio.CancelledError:
            self._abandon_now.set()
            raise
        finally:
            self._stopping.set()
            refused = await _cancel_and_wait(working[0])
            await self._give_back(())  # the bus may have answered the cancelled pull
            await self._drain()
            failed = await _cancel_and_wait(working[1])
            self._executor.close()
            if self._started:
                await self._shut_down()
        for error in (refused, failed):
            if error is not None:
                raise error

    async def _pull_forever(self) -> None:
        await self._results.report_orphans()
        await call_all(self._service.startups)
        self._started = True
        failures = 0
        while (room := await self._wait_for_room()) and not self._stopping.is_set():
            if again := self._take_rechecks(room):
                await self._run_uncancelled(self._take(again, was_claimed_elsewhere=True))
                continue
            asked = self._timing.now()
            patience = self._options.wait_seconds if self._connected else 0.0  # the first pull only probes the bus
            try:
                if not self._connected:
                    await self._check_stores()
                directives = await self._consumer.pull(min(room, MAX_PULL_DIRECTIVES), patience)
            except (BusDown, StoreDown) as down:
                failures += 1
                self._connected = False
                pause = self._timing.backoff(failures, cap=MAX_RETRY_PAUSE_SECONDS)
                log.warning("not pulling", service=self._service.name, reason=str(down), retry_in=round(pause, 2))
                self._metrics.pull_failed(self._service.name)
                await self._timing.sleep(pause)
                continue
            failures = 0
            await self._run_uncancelled(self._take(directives))
            self._connected = True
            self._sender.end_pause()
            if not directives and patience and self._timing.now() - asked < EMPTY_PULL_PAUSE_SECONDS:
                await self._timing.sleep(EMPTY_PULL_PAUSE_SECONDS)  # avoid a busy loop if the bus does not wait

    async def _check_stores(self) -> None:
        """Raise StoreDown if journal or store is down: directives pulled then can't be begun and waste attempts."""
        self._journal.begin(())
        await self._store.claim((), CLAIM_TTL_SECONDS)

    async def _run_uncancelled(self, taking: Coroutine[Any, Any, None]) -> None:
        """Run `taking` to its end even if the caller is cancelled: pulled directives must be begun or given back."""
        self._taking = self._keep(asyncio.create_task(taking))
        await asyncio.shield(self._taking)

    async def _wait_for_room(self) -> int:
        while True:
            await self._sender.wait_until_below(self._options.max_undelivered)
            room = self._options.concurrency - len(self._running) - self._executor.stray
            if room > 0:
                return room
            self._room.clear()
            await self._room.wait()

    async def _take(self, directives: Sequence[Directive], was_claimed_elsewhere: bool = False) -> None:
        """Start new directives, send finished results again, skip running ones.

        `was_claimed_elsewhere`: another process had claimed them before.
        """
        ours = [
            directive for directive in directives if self._is_valid(directive) and not self._is_in_progress(directive)
        ]
        if not ours:
            return
        # Until the store has answered, another process may execute them. If the runtime stops before, a directive that
        # must not be repeated is left to its ACK deadline, and one claimed elsewhere to its owner.
        not_begun = [
            directive for directive in ours if directive.retry_safety != NOT_SAFE and not was_claimed_elsewhere
        ]
        claimed = False
        try:
            not_begun = await self._retry_until_stopped(lambda: self._claim(ours), len(ours))
            claimed = True
            not_begun = await self._retry_until_stopped(lambda: self._settle_unrepeatable(not_begun), len(not_begun))
            begun = await self._begin_all(not_begun)
        except _Stopping:
            await self._return_unstarted(not_begun, claimed)
            return
        except asyncio.CancelledError:
            await self._return_unstarted(not_begun, claimed)
            raise
        for directive in begun:
            self._start(directive)

    async def _claim(self, directives: Sequence[Directive]) -> list[Directive]:
        """Claim the directives in the store; return the new ones. Raises StoreDown."""
        standings = await self._store.claim([attempt_key(directive) for directive in directives], CLAIM_TTL_SECONDS)
        new: list[Directive] = []
        for directive, standing in zip(directives, standings, strict=True):
            match standing:
                case New():
                    new.append(directive)
                case Running():
                    log.info("duplicate directive: attempt still running", **log_fields(directive))
                    self._track_elsewhere(directive)
                case Finished(result):
                    log.info("duplicate directive: sending its result again", **log_fields(directive))
                    self._results.report(directive, result)
        return new

    async def _settle_unrepeatable(self, directives: list[Directive]) -> list[Directive]:
        """Settle directives that must not be repeated before they begin, so that the bus never delivers them again.

        Return the directives without those that may have been delivered to another process: their jobs move on at
        their ACK deadlines.
        """
        once = [directive for directive in directives if directive.retry_safety == NOT_SAFE]
        if not once:
            return directives
        ours = await self._consumer.settle(once)
        lost = [attempt_key(directive) for directive, still in zip(once, ours, strict=True) if not still]
        for key in lost:
            log.warning(
                "directive not begun: the bus may have delivered it to another process",
                jobId=key.jobId,
                stepId=key.stepId,
            )
        return [directive for directive in directives if attempt_key(directive) not in lost]

    async def _begin_all(self, directives: list[Directive]) -> list[Directive]:
        """Journal the directives as begun; return those to start.

        Each retry claims them again, since the claims may have expired meanwhile. Raises _Stopping.
        """
        to_begin, waited = directives, False

        async def begin() -> list[Directive]:
            nonlocal to_begin, waited
            if waited:
                for directive in to_begin:
                    await self._store.release(attempt_key(directive))
                to_begin = await self._claim(to_begin)
            waited = True
            await self._begin(to_begin)
            return to_begin

        return await self._retry_until_stopped(begin, len(directives)) if directives else []

    async def _begin(self, directives: Sequence[Directive]) -> None:
        once = [attempt_key(directive) for directive in directives if directive.retry_safety == NOT_SAFE]
        if once:  # if this process dies, an expired claim must not let another process begin them again
            await self._store.renew(once, RETENTION_SECONDS)
        self._journal.begin(directives)

    async def _return_unstarted(self, directives: Sequence[Directive], claimed: bool) -> None:
        """Return directives that were not begun to the bus, as the runtime stops.

        If the bus can't take them back, report them as failed rather than wait for ACK deadlines.
        """
        if claimed:
            await self._release(directives)
        for directive, given in zip(directives, await self._give_back(directives), strict=True):
            if not given:
                self._results.report(directive, _stopped(directive))

    async def _release(self, directives: Sequence[Directive]) -> None:
        """Release the claims. Do so before giving directives back, or the next process would skip them as running."""
        try:
            for directive in directives:
                await self._store.release(attempt_key(directive))
        except StoreDown as down:
            log.warning("claims not released, they will expire", reason=str(down))

    async def _give_back(self, directives: Sequence[Directive]) -> list[bool]:
        try:
            return await self._consumer.give_back(directives)
        except BusDown as down:
            log.warning("can't give back directives that were not begun", reason=str(down), directives=len(directives))
            return [False] * len(directives)

    async def _retry_until_stopped(self, act: Callable[[], Awaitable[T]], directives: int) -> T:
        """Retry `act` while store or bus is down, so that pulled directives lose no attempts; return its result.

        Nothing more is pulled meanwhile. Raises _Stopping if the runtime stops before `act` succeeds.
        """
        failures = 0
        while True:
            try:
                return await act()
            except (StoreDown, BusDown) as down:
                failures += 1
                self._connected = False
                pause = self._timing.backoff(failures, cap=MAX_RETRY_PAUSE_SECONDS)
                log.warning(
                    "idempotency store unavailable, not pulling",
                    reason=str(down),
                    directives=directives,
                    retry_in=round(pause, 2),
                )
            if self._stopping.is_set():
                log.error(
                    "stopping while the idempotency store is unavailable: directives not begun", directives=directives
                )
                raise _Stopping
            await wait_first(self._timing.sleep(pause), self._stopping.wait())

    def _is_in_progress(self, directive: Directive) -> bool:
        """Return whether the attempt runs or is being reported here, which the store may not know if it was down."""
        if attempt_key(directive) not in self._running and not self._results.is_reporting(directive):
            return False
        log.info("duplicate directive: its result will be reported", **log_fields(directive))
        return True

    def _track_elsewhere(self, directive: Directive) -> None:
        self._claimed_elsewhere[attempt_key(directive)] = directive
        if len(self._claimed_elsewhere) > self._options.concurrency:  # the oldest is left to its lease
            self._on_result_settled(self._claimed_elsewhere.pop(next(iter(self._claimed_elsewhere))))
        self._recheck_at = self._timing.now() + CLAIM_TTL_SECONDS / 3

    def _take_rechecks(self, room: int) -> list[Directive]:
        """Return up to `room` directives left to other processes, once it is time to check whether those finished."""
        if not self._claimed_elsewhere or self._timing.now() < self._recheck_at:
            return []
        keys = list(self._claimed_elsewhere)[:room]
        return [self._claimed_elsewhere.pop(key) for key in keys]

    def _on_result_settled(self, directive: Directive) -> None:
        """Settle a directive on the bus, as there is nothing more to report about it."""
        self._claimed_elsewhere.pop(attempt_key(directive), None)
        self._settler.settle(directive)

    def _is_valid(self, directive: Directive) -> bool:
        fault = check_directive(directive, self._service.name)
        if fault:
            log.error("directive ignored", reason=fault, **log_fields(directive))
            self._metrics.ignored(self._service.name)
            self._settler.settle(directive)
        return not fault

    def _start(self, directive: Directive) -> None:
        attempt = RunningAttempt(directive, self._executor, self._sender, self._timing, self._consumer.gives_once)
        self._running[attempt_key(directive)] = attempt
        self._keep(attempt.start(self._on_attempt_end))

    def _keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("ending an attempt failed", service=self._service.name, exc_info=error)

    async def _on_attempt_end(self, attempt: RunningAttempt, result: bytes | None) -> None:
        directive = attempt.directive
        key = attempt_key(directive)
        if self._running.get(key) is not attempt:
            return  # abandoned: it was reported without waiting for its end
        self._metrics.ended(directive, result, self._timing.now() - attempt.started)
        try:
            if result is None:
                await self._results.discard(directive)
            else:
                await self._results.complete(directive, result)
        finally:
            self._running.pop(key, None)
            self._room.set()

    async def _maintain(self) -> None:
        """Every 20 s renew claims, retry writes to the store, and report attempts of dead processes."""
        while True:
            await self._timing.sleep(CLAIM_TTL_SECONDS / 3)
            try:
                if self._running:
                    await self._store.renew(list(self._running), CLAIM_TTL_SECONDS)
            except StoreDown as down:
                log.warning("claims not renewed", reason=str(down), attempts=len(self._running))
            else:
                await self._results.retry_store_writes()
            await self._results.report_orphans()

    async def _drain(self) -> None:
        """Wait for running attempts; after the grace period abandon them and report them as stopped."""
        if self._tasks:
            grace = self._timing.sleep(self._options.grace_seconds)
            await wait_first(self._until_idle(), grace, self._abandon_now.wait())
        if self._taking is not None:
            self._taking.cancel()  # none of its directives has begun
        for attempt in self.attempts:
            log.warning("attempt abandoned: the service is stopping", **log_fields(attempt.directive))
            attempt.abandon()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=CANCEL_TIMEOUT_SECONDS)
        for key, attempt in list(self._running.items()):
            if not attempt.has_ended:
                log.error("attempt does not end though it was cancelled", **log_fields(attempt.directive))
                del self._running[key]
                await self._results.complete(attempt.directive, _stopped(attempt.directive))
        self._results.retry_journal_writes()

    async def _shut_down(self) -> None:
        """Run the shutdown hooks; stop waiting for them after ten seconds or at another `stop`."""
        self._abandon_now.clear()
        closing = asyncio.create_task(call_all(self._service.shutdowns))
        await wait_first(asyncio.wait({closing}), self._timing.sleep(SHUTDOWN_HOOKS_SECONDS), self._abandon_now.wait())
        if closing.done():
            closing.result()
        else:
            closing.cancel()
            log.error("shutdown hook does not end; stopping without it", service=self._service.name)

    async def _until_idle(self) -> None:
        while self._tasks:  # directives pulled last may start new tasks
            await asyncio.wait(set(self._tasks))


class _Stopping(Exception):
    """The runtime stops before pulled directives could be begun."""


def _stopped(directive: Directive) -> bytes:
    return encode_failure(directive, Stopped(StopReason.SHUTDOWN))


async def _cancel_and_wait(task: asyncio.Task[None]) -> BaseException | None:
    """Cancel a task, wait up to 5 s for its end, and return its error, if any."""
    task.cancel()
    await asyncio.wait({task}, timeout=CANCEL_TIMEOUT_SECONDS)
    return task.exception() if task.done() and not task.cancelled() else None
