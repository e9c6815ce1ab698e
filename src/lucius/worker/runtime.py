"""Drives one service: pulls as much as there is room for, runs each attempt once, sees its RESULT off."""

import asyncio

import msgspec
import structlog

from lucius.contract import Directive
from lucius.ports.bus import Consumer
from lucius.ports.errors import BusDown
from lucius.worker.attempt import Attempt, failure, names_of
from lucius.worker.callbacks import CallbackSender, Delivered, Delivery, GaveUp, Refused
from lucius.worker.dedupe import Dedupe, Key, key_of
from lucius.worker.failure import never
from lucius.worker.service import PlatformService
from lucius.worker.timing import Timing, first_of
from lucius.worker.transport import origin
from lucius.worker.workspace import Places

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MOST_PER_PULL = 500
EMPTY_PULL_PAUSE = 0.05
UNWIND_SECONDS = 5.0
MALFORMED = frozenset({400, 413, 422})


class RuntimeOptions(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int = 16
    wait_seconds: float = 20.0
    grace_seconds: float = 20.0
    max_undelivered: int = 1000
    """Callbacks waiting for an orchestrator that is away; with this many, no more work is taken on."""
    places: Places = Places()


class Runtime:
    """`run` until `stop`, or until the bus says that this service may not pull."""

    def __init__(
        self,
        service: PlatformService,
        consumer: Consumer,
        sender: CallbackSender,
        dedupe: Dedupe,
        options: RuntimeOptions,
        timing: Timing | None = None,
    ) -> None:
        self._service = service
        self._consumer = consumer
        self._sender = sender
        self._dedupe = dedupe
        self._options = options
        self._timing = timing or Timing()
        self._running: dict[Key, Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._connected = False

    @property
    def ready(self) -> bool:
        """The last pull was answered and the next will be made."""
        return self._connected and not self._stopping.is_set()

    @property
    def running(self) -> int:
        return len(self._running)

    def stop(self) -> None:
        """Pull no more and finish what runs. Asked twice: give up what runs at once."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def run(self) -> None:
        puller = asyncio.create_task(self._pull_forever())
        try:
            await first_of(asyncio.wait({puller}), self._stopping.wait())
        except asyncio.CancelledError:
            self._hurry.set()
            raise
        finally:
            self._stopping.set()
            refused = await _end(puller)
            await self._drain()
        if refused is not None:
            raise refused

    async def _pull_forever(self) -> None:
        failures = 0
        while (room := await self._wait_for_room()) and not self._stopping.is_set():
            asked = self._timing.now()
            try:
                directives = await self._consumer.pull(min(room, MOST_PER_PULL), self._options.wait_seconds)
            except BusDown as down:
                failures += 1
                self._connected = False
                pause = self._timing.backoff(failures)
                log.warning("bus down", service=self._service.service, reason=str(down), retry_in=round(pause, 2))
                await self._timing.sleep(pause)
                continue
            failures = 0
            self._connected = True
            self._sender.orchestrator_is_back()
            for directive in directives:
                self._take(directive)
            if not directives and self._timing.now() - asked < EMPTY_PULL_PAUSE:
                await self._timing.sleep(EMPTY_PULL_PAUSE)  # a bus that does not wait must not make us spin

    async def _wait_for_room(self) -> int:
        while True:
            await self._sender.undelivered_below(self._options.max_undelivered)
            room = self._options.concurrency - len(self._running)
            if room > 0:
                return room
            self._room.clear()
            await self._room.wait()

    def _take(self, directive: Directive) -> None:
        """Start an attempt, unless the directive is not for us or we have seen it."""
        fault = _fault(directive, self._service.service)
        if fault:
            log.error("directive ignored", reason=fault, **names_of(directive))
            return
        key = key_of(directive)
        known = self._dedupe.result_of(key)
        if known is not None:
            log.info("directive seen before, sending its result again", **names_of(directive))
            self._report(directive, known)
        elif not self._dedupe.begin(key):
            log.info("directive seen before, still at work", **names_of(directive))
        else:
            attempt = Attempt(directive, self._service, self._sender, self._options.places, self._timing)
            self._running[key] = attempt
            task = attempt.start(self._ended)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _ended(self, attempt: Attempt, result: bytes | None) -> None:
        key = key_of(attempt.directive)
        del self._running[key]
        self._room.set()
        if result is None:
            self._dedupe.forget(key)
        else:
            self._dedupe.finish(key, result)
            self._report(attempt.directive, result)

    def _report(self, directive: Directive, result: bytes) -> None:
        self._sender.result(directive, result, lambda delivery: self._reported(directive, delivery))

    def _reported(self, directive: Directive, delivery: Delivery) -> None:
        match delivery:
            case Delivered():
                pass
            case Refused(status, code) if status in MALFORMED:
                # Silence would hold the job until the lease ends, and a retry would be refused again.
                reason = never("RESULT_REFUSED", f"the orchestrator refused the result: {status} {code}")
                self._sender.result(directive, failure(directive, reason), lambda _: None)
            case Refused():
                pass  # fenced; the sender has logged it
            case GaveUp(reason):
                log.error("result lost: orchestrator away for too long", reason=reason, **names_of(directive))

    async def _drain(self) -> None:
        """Let what runs finish; after the grace period say that it will not."""
        if self._tasks:
            grace = self._timing.sleep(self._options.grace_seconds)
            await first_of(asyncio.wait(set(self._tasks)), grace, self._hurry.wait())
        for attempt in list(self._running.values()):
            log.warning("attempt abandoned: the service is stopping", **names_of(attempt.directive))
            attempt.abandon()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=UNWIND_SECONDS)


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


async def _end(puller: asyncio.Task[None]) -> BaseException | None:
    puller.cancel()
    await asyncio.wait({puller})
    return None if puller.cancelled() else puller.exception()
