"""Sends ACKs, heartbeats and RESULTs, and goes on sending until someone has heard or it no longer matters.

Callbacks queued in the same tick leave as one request, in order: an attempt that is done before its ACK has left
sends both together, and the orchestrator applies both in one commit. One request is under way at a time, so what
comes up meanwhile makes the next batch, and no RESULT overtakes its own ACK. What goes to other addresses goes singly,
and in order if all of an attempt does.

Each callback ends as exactly one Delivery, told to whoever sent it:
    Delivered   the orchestrator answered 2xx, whatever it made of it
    Refused     it will never be taken (4xx): the attempt was fenced, or the message is wrong
    GaveUp      nobody answered in time
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from math import inf
from typing import Literal, NoReturn

import msgspec
import structlog

from lucius.contract import AckCallback, Directive, HeartbeatCallback
from lucius.worker.context import names_of
from lucius.worker.timing import Timing, first_of
from lucius.worker.transport import Reply, Transport, Unreachable

log: structlog.stdlib.BoundLogger = structlog.get_logger()

BATCH_LIMIT = 200
BATCH_BYTES = 512 * 1024
LATE_WINDOW = 24 * 3600.0
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
TOO_LARGE = 413
BAD_GATEWAY = 502
SHORTEST_PATIENCE = 0.25
AWAY = frozenset({429, 502, 503, 504})  # the orchestrator as a whole, not this message

Kind = Literal["ack", "heartbeat", "result"]


class Delivered(msgspec.Struct, frozen=True):
    disposition: str
    cancel_requested: bool = False
    wanted: bool = True


class Refused(msgspec.Struct, frozen=True):
    status: int
    code: str = ""


class GaveUp(msgspec.Struct, frozen=True):
    reason: str


Delivery = Delivered | Refused | GaveUp


class Answer(msgspec.Struct):
    """An answer or a problem, as far as we look at either."""

    status: int = 0
    disposition: str = ""
    cancel_requested: bool = False
    lease_expires_at: str | None = None
    code: str = ""
    retry_after_seconds: float | None = None


class _BatchAnswer(msgspec.Struct):
    results: list[Answer]


class Callback:
    __slots__ = ("body", "directive", "expires", "failures", "kind", "lease_until", "on_delivery")

    def __init__(
        self,
        kind: Kind,
        directive: Directive,
        body: bytes,
        *,
        now: float,
        expires: float,
        on_delivery: Callable[[Delivery], None],
    ) -> None:
        self.kind = kind
        self.lease_until = now + directive.lease_seconds
        self.directive = directive
        self.body = body
        self.expires = expires
        self.on_delivery = on_delivery
        self.failures = 0

    def patience(self, now: float) -> float:
        """How long it may wait while the orchestrator is away: a few tries must fit into what a lease leaves. Once that
        is over there is no hurry."""
        return max(SHORTEST_PATIENCE, self.directive.lease_seconds / 6) if now < self.lease_until else inf

    @property
    def url(self) -> str:
        return str(getattr(self.directive.callback_urls, self.kind))

    def goes_to(self, base_url: str) -> bool:
        """Whether it is for that orchestrator's own callback route, which is what its batch stands for."""
        return self.url == f"{base_url}/v1/callbacks/{self.kind}"

    def as_batch_item(self) -> bytes:
        token = _encode(self.directive.callback_token)
        return b'{"type":"%s","callback_token":%s,%s' % (self.kind.encode(), token, self.body[1:])


_encode = msgspec.json.Encoder().encode
_decode_answer = msgspec.json.Decoder(Answer).decode
_decode_batch = msgspec.json.Decoder(_BatchAnswer).decode


class CallbackSender:
    """One per process, shared by its services. `run` does the sending and is the owner's to start and cancel."""

    def __init__(
        self, base_url: str, transport: Transport, timing: Timing | None = None, late_window: float = LATE_WINDOW
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._transport = transport
        self._timing = timing or Timing()
        self._late_window = late_window
        self._queue: deque[Callback] = deque()
        self._queued = asyncio.Event()
        self._settled = asyncio.Event()
        self._back = asyncio.Event()
        self._away_until = 0.0
        self._chains: dict[str, deque[Callback]] = {}
        self._chain_tasks: asyncio.TaskGroup | None = None
        self._failures = 0
        self.undelivered = 0

    def ack(self, directive: Directive, on_delivery: Callable[[Delivery], None], within: float | None = None) -> None:
        """Worth sending until its deadline, if nobody waits longer for the answer."""
        body = _encode(
            AckCallback(
                jobId=directive.jobId,
                stepId=directive.stepId,
                tenant_id=directive.tenant_id,
                attempt_no=directive.attempt_no,
                lease_id=directive.lease_id,
            )
        )
        if within is None:
            within = max(0.0, _instant(directive.ack_deadline) - self._timing.wall())
        self._send("ack", directive, body, within, on_delivery)

    def heartbeat(self, directive: Directive, progress: float | None, on_delivery: Callable[[Delivery], None]) -> None:
        body = heartbeat_body(directive, progress)
        self._send("heartbeat", directive, body, directive.lease_seconds, on_delivery)

    def result(self, directive: Directive, body: bytes, on_delivery: Callable[[Delivery], None]) -> None:
        """`body` is an encoded ResultCallback. Worth sending for long after the lease: it is still recorded."""
        self._send("result", directive, body, directive.lease_seconds + self._late_window, on_delivery)

    @property
    def cut_off(self) -> bool:
        """Something is to be said, and the last time nobody listened."""
        return self._failures > 0 and self.undelivered > 0

    async def undelivered_below(self, limit: int) -> None:
        while self.undelivered >= limit:
            self._settled.clear()
            await self._settled.wait()

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as self._chain_tasks:
            while True:
                await self._queued.wait()
                await asyncio.sleep(0)  # whatever else this tick brings shares the request
                pause = await self._post_batch(batch) if (batch := self._take()) else 0.0
                if pause:
                    self._back.clear()
                    self._away_until = self._timing.now() + pause
                    await first_of(self._timing.sleep(pause), self._back.wait())
                    self._away_until = 0.0

    def orchestrator_is_back(self) -> None:
        """It answered somebody else: ACKs of what was pulled just now must not sit out a pause from before."""
        self._back.set()

    def _send(
        self, kind: Kind, directive: Directive, body: bytes, within: float, on_delivery: Callable[[Delivery], None]
    ) -> None:
        now = self._timing.now()
        self.undelivered += 1
        self._enqueue(Callback(kind, directive, body, now=now, expires=now + within, on_delivery=on_delivery))

    def _enqueue(self, callback: Callback) -> None:
        if self._chain_tasks is not None and self._goes_singly(callback):
            self._post_singly(callback)
            return
        self._queue.append(callback)
        self._queued.set()
        now = self._timing.now()
        if self._away_until - now > 2 * callback.patience(now):
            self._back.set()

    def _goes_singly(self, callback: Callback) -> bool:
        """What is to be called back elsewhere, and what must not overtake it. A heartbeat has no order to keep."""
        behind = callback.directive.lease_id in self._chains and callback.kind != "heartbeat"
        return behind or not callback.goes_to(self._base_url)

    def _take(self) -> list[Callback]:
        """The next batch for our orchestrator."""
        ours: list[Callback] = []
        size = 0
        while self._queue and len(ours) < BATCH_LIMIT:
            callback = self._queue[0]
            if self._goes_singly(callback):
                self._post_singly(self._queue.popleft())
                continue
            size += len(callback.body)
            if size > BATCH_BYTES and ours:
                break
            ours.append(self._queue.popleft())
        if not self._queue:
            self._queued.clear()
        return ours

    async def _post_batch(self, batch: list[Callback]) -> float:
        """Send a batch; returns how long to leave the orchestrator alone."""
        body = b'{"callbacks":[%s]}' % b",".join([callback.as_batch_item() for callback in batch])
        try:
            reply = await self._transport.post(batch_url(self._base_url), body)
        except Unreachable as error:
            return self._put_back(batch, str(error), 0.0)
        if reply.status in AWAY:
            return self._put_back(batch, f"HTTP {reply.status}", reply.retry_after)
        self._failures = 0
        answers = _batch_answers(reply, len(batch))
        if answers is None:
            # Refused as a whole, perhaps for one bad item: singly, the others do not suffer for it.
            log.warning("callback batch refused, sending singly", status=reply.status, callbacks=len(batch))
            for callback in batch:
                self._post_singly(callback)
        else:
            for callback, answer in zip(batch, answers, strict=True):
                self._settle(callback, answer)
        return 0.0

    def _put_back(self, batch: list[Callback], reason: str, at_least: float) -> float:
        """The orchestrator is away: keep everything, in order, and wait as a whole rather than one by one."""
        self._failures += 1
        waiting = [*batch, *self._queue]
        pause = _pause(waiting, self._timing.now(), at_least, self._timing.backoff(self._failures))
        again = self._timing.now() + pause
        kept = [callback for callback in batch if callback.expires >= again]
        self._queue.extendleft(reversed(kept))
        if self._queue:
            self._queued.set()
        log.warning("orchestrator away", reason=reason, waiting=len(self._queue), retry_in=round(pause, 2))
        for callback in batch:
            if callback.expires < again:
                self._resolve(callback, GaveUp(reason))
        return pause

    def _post_singly(self, callback: Callback) -> None:
        """To its own address: those of one attempt in order, different attempts side by side, and none waits for an
        address that does not answer."""
        assert self._chain_tasks is not None, "only while it runs"
        lease_id = callback.directive.lease_id
        if lease_id in self._chains:
            self._chains[lease_id].append(callback)
        else:
            self._chains[lease_id] = deque([callback])
            self._chain_tasks.create_task(self._post_chain(lease_id))

    async def _post_chain(self, lease_id: str) -> None:
        chain = self._chains[lease_id]
        try:
            while chain:
                callback = chain.popleft()
                while (pause := await self._post(callback)) is not None:
                    await self._timing.sleep(pause)
        finally:
            del self._chains[lease_id]

    async def _post(self, callback: Callback) -> float | None:
        """Send it by itself; returns after which pause to send it again, if at all."""
        directive = callback.directive
        try:
            reply = await self._transport.post(
                callback.url,
                callback.body,
                directive.callback_token,
                trace_headers(directive),
                aside=callback.kind != "heartbeat",
            )
        except Unreachable as error:
            return self._pause_before_retry(callback, str(error), 0.0)
        answer = _answer(reply)
        if _is_passing(answer.status):
            return self._pause_before_retry(callback, f"HTTP {answer.status}", answer.retry_after_seconds or 0.0)
        self._settle(callback, answer)
        return None

    def _settle(self, callback: Callback, answer: Answer) -> None:
        status = answer.status
        if 200 <= status < 300:
            # Without an instant, the step or the job has ended, though an ACK may be a DUPLICATE. With one, a success
            # until then still counts.
            wanted = answer.disposition not in ("LATE", "DUPLICATE") or answer.lease_expires_at is not None
            self._resolve(callback, Delivered(answer.disposition, answer.cancel_requested, wanted))
        elif _is_passing(status):
            pause = self._pause_before_retry(callback, f"HTTP {status}", answer.retry_after_seconds or 0.0)
            if pause is not None:
                self._timing.call_later(pause, lambda: self._enqueue(callback))
        else:
            directive = callback.directive
            said = {"callback": callback.kind, "status": status, "code": answer.code}
            log.warning("callback refused", **said, **names_of(directive))
            self._resolve(callback, Refused(status, answer.code))

    def _pause_before_retry(self, callback: Callback, reason: str, at_least: float) -> float | None:
        callback.failures += 1
        pause = _pause([callback], self._timing.now(), at_least, self._timing.backoff(callback.failures))
        if self._timing.now() + pause <= callback.expires:
            return pause
        self._resolve(callback, GaveUp(reason))
        return None

    def _resolve(self, callback: Callback, delivery: Delivery) -> None:
        self.undelivered -= 1
        self._settled.set()
        try:
            callback.on_delivery(delivery)
        except Exception:  # whatever became of this one, the others are still to be told
            log.exception("delivery not taken note of", callback=callback.kind, **names_of(callback.directive))


def _pause(callbacks: Sequence[Callback], now: float, at_least: float, backoff: float) -> float:
    """Backoff, and no less than was asked for; but no lease runs out because we wait politely."""
    patience = min(callback.patience(now) for callback in callbacks)
    return max(min(at_least, 2 * patience), min(backoff, patience))


def _is_passing(status: int) -> bool:
    """Worth saying again: whoever answered has not judged what we said."""
    return status in (408, 425, 429) or status >= 500 or status < 200 or 300 <= status < 400


def batch_url(base_url: str) -> str:
    return f"{base_url}/v1/callbacks:batch"


def heartbeat_body(directive: Directive, progress: float | None) -> bytes:
    return _encode(
        HeartbeatCallback(
            jobId=directive.jobId,
            stepId=directive.stepId,
            tenant_id=directive.tenant_id,
            attempt_no=directive.attempt_no,
            lease_id=directive.lease_id,
            progress=progress,
        )
    )


def trace_headers(directive: Directive) -> dict[str, str]:
    """The job's trace context, if it is one: clients say what they like. A batch is of many jobs, and has none."""
    trace = directive.traceparent
    return {"traceparent": trace} if trace and _TRACEPARENT.fullmatch(trace) else {}


def _instant(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def _batch_answers(reply: Reply, expected: int) -> list[Answer] | None:
    if not 200 <= reply.status < 300:
        return None
    try:
        answers = _decode_batch(reply.body).results
    except msgspec.DecodeError:
        return None
    return answers if len(answers) == expected else None


def _answer(reply: Reply) -> Answer:
    try:
        answer = _decode_answer(reply.body)
    except msgspec.DecodeError:
        answer = Answer()
    # What does not speak as an orchestrator comes from something in between, a gateway without a route say: nobody has
    # taken the callback, and nobody who may has refused it.
    ours = answer.disposition or answer.code or reply.status == TOO_LARGE
    answer.status = reply.status if ours or reply.status in AWAY else BAD_GATEWAY
    answer.retry_after_seconds = max(answer.retry_after_seconds or 0.0, reply.retry_after)
    return answer
