"""Drives one service: pulls as much as there is room for, runs each attempt once, sees its RESULT off.

What must survive this process is written down before it matters: that an attempt was begun, before its ACK; its
RESULT, before it is sent. `Journal` holds what the orchestrator has not heard yet, on this machine's disk. The
idempotency store knows which attempts were run, perhaps by other processes.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec
import structlog

from lucius.contract import Directive
from lucius.ports.bus import Consumer
from lucius.ports.errors import BusDown
from lucius.worker.attempt import Attempt
from lucius.worker.callbacks import CallbackSender, Delivered, Delivery, GaveUp, Refused
from lucius.worker.context import names_of
from lucius.worker.execution import Executor, failure
from lucius.worker.failure import NonRetryable, StepFailure, Transient
from lucius.worker.idempotency import Finished, IdempotencyStore, Key, New, Running, Standing, StoreDown, key_of
from lucius.worker.journal import Journal, LeftOver
from lucius.worker.metrics import Metrics
from lucius.worker.service import Service
from lucius.worker.timing import Timing, first_of
from lucius.worker.transport import origin
from lucius.worker.workspace import Places

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MOST_PER_PULL = 500
EMPTY_PULL_PAUSE = 0.05
UNWIND_SECONDS = 5.0
CLAIM_SECONDS = 60.0
MOST_CLAIMS = 20
MALFORMED = frozenset({400, 413, 422})
NOT_SAFE = "NOT_SAFE_TO_RETRY"


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
        self._room = asyncio.Event()
        self._executor = Executor(service, options.places, self._timing, self._room.set, options.delay_seconds)
        self._running: dict[Key, Attempt] = {}
        self._reporting: set[Key] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._connected = False

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
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def run(self) -> None:
        await self._take_up_left_overs()
        working = [asyncio.create_task(self._pull_forever()), asyncio.create_task(self._renew_forever())]
        try:
            await first_of(asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED), self._stopping.wait())
        except asyncio.CancelledError:
            self._hurry.set()
            raise
        finally:
            self._stopping.set()
            refused = await _end(working[0])
            await self._drain()
            failed = await _end(working[1])
            self._executor.close()
        for error in (refused, failed):
            if error is not None:
                raise error

    async def _take_up_left_overs(self) -> None:
        """What processes before us finished is sent again; what they were cut off from is reported as failed."""
        try:
            left_overs = self._journal.left_over()
        except StoreDown as down:
            log.error("can't look for results left over", reason=str(down))
            return
        for left in left_overs:
            result = left.result or failure(left.directive, _interrupted(left))
            if left.result is None:
                self._write_down(left.directive, result)
            await self._remember(key_of(left.directive), result)
            log.info("result left over, sending it again", finished=left.result is not None, **names_of(left.directive))
            self._report(left.directive, result)

    async def _pull_forever(self) -> None:
        failures = 0
        while (room := await self._wait_for_room()) and not self._stopping.is_set():
            asked = self._timing.now()
            try:
                directives = await self._consumer.pull(min(room, MOST_PER_PULL), self._options.wait_seconds)
                await self._safely(self._take(directives))
            except (BusDown, StoreDown) as down:
                failures += 1
                self._connected = False
                pause = self._timing.backoff(failures)
                log.warning("not pulling", service=self._service.name, reason=str(down), retry_in=round(pause, 2))
                self._metrics.pull_failed(self._service.name)
                await self._timing.sleep(pause)
                continue
            failures = 0
            self._connected = True
            self._sender.orchestrator_is_back()
            if not directives and self._timing.now() - asked < EMPTY_PULL_PAUSE:
                await self._timing.sleep(EMPTY_PULL_PAUSE)  # a bus that does not wait must not make us spin

    async def _safely(self, taking: Coroutine[Any, Any, None]) -> None:
        """Even if we are told to stop meanwhile: what was pulled is ours to begin."""
        await asyncio.shield(self._keep(asyncio.create_task(taking)))

    async def _wait_for_room(self) -> int:
        while True:
            await self._sender.undelivered_below(self._options.max_undelivered)
            room = self._options.concurrency - len(self._running) - self._executor.stray
            if room > 0:
                return room
            self._room.clear()
            await self._room.wait()

    async def _take(self, directives: Sequence[Directive]) -> None:
        """Start what is new; send again what is finished; leave alone what somebody is at."""
        ours = [directive for directive in directives if self._is_sound(directive)]
        if not ours:
            return
        standings = await self._claim(ours)
        new: list[Directive] = []
        for directive, standing in zip(ours, standings, strict=True):
            match standing:
                case New():
                    new.append(directive)
                case Running():
                    log.info("directive seen before, still at work", **names_of(directive))
                case Finished(result):
                    log.info("directive seen before, sending its result again", **names_of(directive))
                    self._report(directive, result)
        if new:
            self._journal.begin(new)
            for directive in new:
                self._start(directive)

    def _is_sound(self, directive: Directive) -> bool:
        fault = _fault(directive, self._service.name)
        if fault:
            log.error("directive ignored", reason=fault, **names_of(directive))
            self._metrics.ignored(self._service.name)
        return not fault

    async def _claim(self, directives: Sequence[Directive]) -> list[Standing]:
        """They are ours already, so a store that is away for a moment must not cost their attempts."""
        keys = [key_of(directive) for directive in directives]
        failures = 0
        while True:
            try:
                return await self._store.claim(keys, CLAIM_SECONDS)
            except StoreDown as down:
                failures += 1
                pause = self._timing.backoff(failures, cap=2.0)
                self._connected = False
                log.warning("idempotency store away", reason=str(down), directives=len(keys), retry_in=round(pause, 2))
                if failures >= MOST_CLAIMS or self._stopping.is_set():
                    raise
                await self._timing.sleep(pause)

    def _start(self, directive: Directive) -> None:
        attempt = Attempt(directive, self._executor, self._sender, self._timing)
        self._running[key_of(directive)] = attempt
        self._keep(attempt.start(self._ended))

    def _keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _ended(self, attempt: Attempt, result: bytes | None) -> None:
        directive = attempt.directive
        key = key_of(directive)
        self._metrics.ended(directive, result, self._timing.now() - attempt.started)
        if result is None:
            self._journal.drop(key)
            await self._forget(key)
        else:
            self._write_down(directive, result)
            await self._remember(key, result)
            self._report(directive, result)
        del self._running[key]
        self._room.set()

    def _write_down(self, directive: Directive, result: bytes) -> None:
        try:
            self._journal.finish(directive, result)
        except StoreDown as down:  # a full disk: all that is left is to send it while we live
            log.error("result could not be written down", reason=str(down), **names_of(directive))

    async def _remember(self, key: Key, result: bytes) -> None:
        try:
            await self._store.finish(key, result)
        except StoreDown as down:
            log.warning("result not in the idempotency store", reason=str(down), jobId=key.jobId, stepId=key.stepId)

    async def _forget(self, key: Key) -> None:
        try:
            await self._store.release(key)
        except StoreDown as down:
            log.warning("claim not released, it will run out", reason=str(down), jobId=key.jobId, stepId=key.stepId)

    def _report(self, directive: Directive, result: bytes) -> None:
        key = key_of(directive)
        if key in self._reporting:
            return
        self._reporting.add(key)
        self._sender.result(directive, result, lambda delivery: self._reported(directive, delivery))

    def _reported(self, directive: Directive, delivery: Delivery) -> None:
        key = key_of(directive)
        match delivery:
            case Refused(status, code) if status in MALFORMED:
                # Silence would hold the job until the lease ends, and a retry would be refused again.
                reason = NonRetryable("RESULT_REFUSED", f"the orchestrator refused the result: {status} {code}")
                instead = failure(directive, reason)
                self._write_down(directive, instead)
                self._sender.result(directive, instead, lambda _: self._settled(key))
                return
            case GaveUp(reason=why):
                log.error("result lost: orchestrator away for too long", reason=why, **names_of(directive))
            case Delivered() | Refused():
                pass  # heard; or fenced, which the sender has logged
        self._settled(key)

    def _settled(self, key: Key) -> None:
        self._reporting.discard(key)
        self._journal.drop(key)

    async def _renew_forever(self) -> None:
        """Keep the claims of what runs, so that nobody else starts it; and look after processes that died beside us."""
        while True:
            await self._timing.sleep(CLAIM_SECONDS / 3)
            await self._take_up_left_overs()
            if self._running:
                try:
                    await self._store.renew(list(self._running), CLAIM_SECONDS)
                except StoreDown as down:
                    log.warning("claims not renewed", reason=str(down), attempts=len(self._running))

    async def _drain(self) -> None:
        """Let what runs finish; after the grace period say that it will not."""
        if self._tasks:
            grace = self._timing.sleep(self._options.grace_seconds)
            await first_of(asyncio.wait(set(self._tasks)), grace, self._hurry.wait())
        for attempt in self.attempts:
            log.warning("attempt abandoned: the service is stopping", **names_of(attempt.directive))
            attempt.abandon()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=UNWIND_SECONDS)


def _interrupted(left: LeftOver) -> StepFailure:
    if left.directive.retry_safety == NOT_SAFE:
        return NonRetryable("INTERRUPTED", "the service was cut off in the middle of a step that may not be repeated")
    return Transient("SERVICE_RESTARTED", "the service was cut off in the middle of this attempt")


def _fault(directive: Directive, service: str) -> str:
    """Why a directive can't be worked on, or nothing. Its ACK deadline then brings the job forward."""
    if directive.service != service:
        return f"meant for service {directive.service}"
    if directive.attempt_no < 1 or not directive.lease_id or not directive.callback_token:
        return "no attempt number, lease or callback token"
    if directive.lease_seconds <= 0:
        return "no lease"
    urls = directive.callback_urls
    if origin(urls.ack) is None or origin(urls.result) is None or origin(urls.heartbeat) is None:
        return "a callback URL is not an HTTP address"
    return ""


async def _end(task: asyncio.Task[None]) -> BaseException | None:
    """End a task; returns what it failed with, if it had failed."""
    task.cancel()
    await asyncio.wait({task})
    return None if task.cancelled() else task.exception()
