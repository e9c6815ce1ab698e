"""Sends ACKs, heartbeats and RESULTs, and retries until they are answered or expire.

Callbacks queued in the same tick are sent as one request, in order: an attempt that is done before its ACK was sent
sends both together, and the orchestrator applies both in one commit. One request is in flight at a time, so callbacks
queued meanwhile form the next batch, and no RESULT overtakes its own ACK. Callbacks to other addresses are sent
singly, and in order if all of an attempt's go there.

Each callback ends with exactly one Delivery, passed to the sender's `on_delivery`:
    Delivered          the orchestrator answered 2xx, with any disposition
    CallbackRefused    it will never be accepted (4xx): the attempt was fenced, or the message is wrong
    GaveUp             no answer in time
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Literal, NoReturn

import msgspec
import structlog

from lucius.contract import AckCallback, Directive, HeartbeatCallback
from lucius.contract.trace_context import trace_headers as job_headers
from lucius.worker.context import log_fields
from lucius.worker.progress import Progress
from lucius.worker.timing import Timing, wait_first
from lucius.worker.transport import HttpReply, OrchestratorUnreachable, Transport

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_BATCH_CALLBACKS = 200
MAX_BATCH_BYTES = 512 * 1024
LATE_RESULT_SECONDS = 24 * 3600.0
TOO_LARGE = 413
HEADERS_TOO_LARGE = 431
BAD_GATEWAY = 502
MIN_PAUSE_SECONDS = 0.25
UNAVAILABLE_STATUSES = frozenset({429, 502, 503, 504})  # the orchestrator as a whole, not this message

CallbackKind = Literal["ack", "heartbeat", "result"]


class Delivered(msgspec.Struct, frozen=True):
    disposition: str
    cancel_requested: bool = False
    is_current: bool = True


class CallbackRefused(msgspec.Struct, frozen=True):
    status: int
    code: str = ""


class GaveUp(msgspec.Struct, frozen=True):
    reason: str


Delivery = Delivered | CallbackRefused | GaveUp


class AnswerMembers(msgspec.Struct):
    """The members read from a callback's answer or problem document."""

    status: int = 0
    disposition: str = ""
    cancel_requested: bool = False
    lease_expires_at: str | None = None
    code: str = ""
    retry_after_seconds: float | None = None


class _BatchAnswer(msgspec.Struct):
    results: list[AnswerMembers]


class OutgoingCallback:
    __slots__ = ("body", "directive", "expires", "failures", "kind", "lease_until", "on_delivery")

    def __init__(
        self,
        kind: CallbackKind,
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

    def max_pause(self, now: float) -> float:
        """Return the longest pause between tries, in seconds: a few must fit into the lease; unlimited after it."""
        return max(MIN_PAUSE_SECONDS, self.directive.lease_seconds / 6) if now < self.lease_until else inf

    @property
    def url(self) -> str:
        return str(getattr(self.directive.callback_urls, self.kind))

    def is_addressed_to(self, base_url: str) -> bool:
        """Return whether its URL is the callback route of that orchestrator, so that it may be sent in a batch."""
        return self.url == f"{base_url}/v1/callbacks/{self.kind}"

    def as_batch_item(self) -> bytes:
        token = _encode(self.directive.callback_token)
        return b'{"type":"%s","callback_token":%s,%s' % (self.kind.encode(), token, self.body[1:])


_encode = msgspec.json.Encoder().encode
_decode_answer = msgspec.json.Decoder(AnswerMembers).decode
_decode_batch = msgspec.json.Decoder(_BatchAnswer).decode


class CallbackSender:
    """Callback queue of a process, shared by its services. `run` sends; the owner starts and cancels it."""

    def __init__(
        self,
        base_url: str,
        transport: Transport,
        timing: Timing | None = None,
        late_window: float = LATE_RESULT_SECONDS,
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._transport = transport
        self._timing = timing or Timing()
        self._late_window = late_window
        self._queue: deque[OutgoingCallback] = deque()
        self._queued = asyncio.Event()
        self._settled = asyncio.Event()
        self._resumed = asyncio.Event()
        self._paused_until = 0.0
        self._chains: dict[str, deque[OutgoingCallback]] = {}
        self._chain_tasks: asyncio.TaskGroup | None = None
        self._failures = 0
        self.undelivered = 0

    def ack(self, directive: Directive, on_delivery: Callable[[Delivery], None], within: float | None = None) -> None:
        """Queue an ACK. It expires after `within` seconds, by default at the ACK deadline."""
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

    def heartbeat(
        self, directive: Directive, progress: Progress | None, on_delivery: Callable[[Delivery], None]
    ) -> None:
        body = heartbeat_body(directive, progress)
        self._send("heartbeat", directive, body, directive.lease_seconds, on_delivery)

    def result(self, directive: Directive, body: bytes, on_delivery: Callable[[Delivery], None]) -> None:
        """Queue a RESULT; `body` is an encoded ResultCallback.

        It expires `late_window` seconds (24 hours by default) after the lease: a late one is still recorded.
        """
        self._send("result", directive, body, directive.lease_seconds + self._late_window, on_delivery)

    @property
    def is_unreachable(self) -> bool:
        """True if callbacks are undelivered and the last batch failed."""
        return self._failures > 0 and self.undelivered > 0

    async def wait_until_below(self, limit: int) -> None:
        while self.undelivered >= limit:
            self._settled.clear()
            await self._settled.wait()

    async def run(self) -> NoReturn:
        async with asyncio.TaskGroup() as self._chain_tasks:
            while True:
                await self._queued.wait()
                await asyncio.sleep(0)  # callbacks queued in the same tick share the request
                pause = await self._post_batch(batch) if (batch := self._take()) else 0.0
                if pause:
                    self._resumed.clear()
                    self._paused_until = self._timing.now() + pause
                    await wait_first(self._timing.sleep(pause), self._resumed.wait())
                    self._paused_until = 0.0

    def end_pause(self) -> None:
        """End the current pause, as the bus has just answered: ACKs of a new pull must not wait for it."""
        self._resumed.set()

    def _send(
        self,
        kind: CallbackKind,
        directive: Directive,
        body: bytes,
        within: float,
        on_delivery: Callable[[Delivery], None],
    ) -> None:
        now = self._timing.now()
        self.undelivered += 1
        self._enqueue(OutgoingCallback(kind, directive, body, now=now, expires=now + within, on_delivery=on_delivery))

    def _enqueue(self, callback: OutgoingCallback) -> None:
        if self._chain_tasks is not None and self._must_go_singly(callback):
            self._post_singly(callback)
            return
        self._queue.append(callback)
        self._queued.set()
        now = self._timing.now()
        if self._paused_until - now > 2 * callback.max_pause(now):
            self._resumed.set()

    def _must_go_singly(self, callback: OutgoingCallback) -> bool:
        """Return whether it has another address, or must follow such a one of its attempt; heartbeats need no order."""
        behind = callback.directive.lease_id in self._chains and callback.kind != "heartbeat"
        return behind or not callback.is_addressed_to(self._base_url)

    def _take(self) -> list[OutgoingCallback]:
        """Remove and return the next batch for the orchestrator; start sending the others on the way singly."""
        ours: list[OutgoingCallback] = []
        size = 0
        while self._queue and len(ours) < MAX_BATCH_CALLBACKS:
            callback = self._queue[0]
            if self._must_go_singly(callback):
                self._post_singly(self._queue.popleft())
                continue
            size += len(callback.body)
            if size > MAX_BATCH_BYTES and ours:
                break
            ours.append(self._queue.popleft())
        if not self._queue:
            self._queued.clear()
        return ours

    async def _post_batch(self, batch: list[OutgoingCallback]) -> float:
        """Send a batch; return the seconds to pause before the next."""
        body = b'{"callbacks":[%s]}' % b",".join([callback.as_batch_item() for callback in batch])
        try:
            url = batch_url(self._base_url)
            reply = await self._deliver(url, body, batch_token(batch), batch_headers(batch))
        except OrchestratorUnreachable as error:
            return self._put_back(batch, str(error), 0.0)
        if reply.status in UNAVAILABLE_STATUSES:
            return self._put_back(batch, f"HTTP {reply.status}", reply.retry_after)
        self._failures = 0
        answers = _batch_answers(reply, len(batch))
        if answers is None:
            # One bad item may have caused the refusal of all: sent singly, the others get through.
            log.warning("callback batch refused, sending singly", status=reply.status, callbacks=len(batch))
            for callback in batch:
                self._post_singly(callback)
        else:
            for callback, answer in zip(batch, answers, strict=True):
                self._settle(callback, answer)
        return 0.0

    def _put_back(self, batch: list[OutgoingCallback], reason: str, at_least: float) -> float:
        """Requeue a failed batch in order, give up what expires before the next try, return the pause in seconds."""
        self._failures += 1
        waiting = [*batch, *self._queue]
        pause = _pause(waiting, self._timing.now(), at_least, self._timing.backoff(self._failures))
        again = self._timing.now() + pause
        kept = [callback for callback in batch if callback.expires >= again]
        self._queue.extendleft(reversed(kept))
        if self._queue:
            self._queued.set()
        log.warning("orchestrator unreachable", reason=reason, waiting=len(self._queue), retry_in=round(pause, 2))
        for callback in batch:
            if callback.expires < again:
                self._resolve(callback, GaveUp(reason))
        return pause

    def _post_singly(self, callback: OutgoingCallback) -> None:
        """Send it to its own address: one attempt's callbacks in order, different attempts concurrently.

        No attempt waits for an address of another that does not answer.
        """
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

    async def _post(self, callback: OutgoingCallback) -> float | None:
        """Send one callback; return the pause in seconds before the next try, None if it is settled."""
        directive = callback.directive
        try:
            reply = await self._deliver(
                callback.url,
                callback.body,
                directive.callback_token,
                trace_headers(directive),
                aside=callback.kind != "heartbeat",
            )
        except OrchestratorUnreachable as error:
            return self._pause_before_retry(callback, str(error), 0.0)
        answer = _answer(reply)
        if _is_temporary(answer.status):
            return self._pause_before_retry(callback, f"HTTP {answer.status}", answer.retry_after_seconds or 0.0)
        self._settle(callback, answer)
        return None

    async def _deliver(
        self, url: str, body: bytes, token: str, headers: Mapping[str, str], *, aside: bool = False
    ) -> HttpReply:
        """POST with trace headers, and again without them if the server or a proxy finds the headers too large."""
        reply = await self._transport.post(url, body, token, headers, aside=aside)
        if reply.status == HEADERS_TOO_LARGE and headers:
            log.warning("callback refused for the size of its headers, sending it without the trace", url=url)
            reply = await self._transport.post(url, body, token, aside=aside)
        return reply

    def _settle(self, callback: OutgoingCallback, answer: AnswerMembers) -> None:
        status = answer.status
        if 200 <= status < 300:
            # A LATE or DUPLICATE answer without a lease end means that the step or job has ended. With one, a success
            # until then still counts.
            wanted = answer.disposition not in ("LATE", "DUPLICATE") or answer.lease_expires_at is not None
            self._resolve(callback, Delivered(answer.disposition, answer.cancel_requested, wanted))
        elif _is_temporary(status):
            pause = self._pause_before_retry(callback, f"HTTP {status}", answer.retry_after_seconds or 0.0)
            if pause is not None:
                self._timing.call_later(pause, lambda: self._enqueue(callback))
        else:
            directive = callback.directive
            about = {"callback": callback.kind, "status": status, "code": answer.code}
            log.warning("callback refused", **about, **log_fields(directive))
            self._resolve(callback, CallbackRefused(status, answer.code))

    def _pause_before_retry(self, callback: OutgoingCallback, reason: str, at_least: float) -> float | None:
        callback.failures += 1
        pause = _pause([callback], self._timing.now(), at_least, self._timing.backoff(callback.failures))
        if self._timing.now() + pause <= callback.expires:
            return pause
        self._resolve(callback, GaveUp(reason))
        return None

    def _resolve(self, callback: OutgoingCallback, delivery: Delivery) -> None:
        self.undelivered -= 1
        self._settled.set()
        try:
            callback.on_delivery(delivery)
        except Exception:  # one failing handler must not stop the sender
            log.exception("delivery handler failed", callback=callback.kind, **log_fields(callback.directive))


def _pause(callbacks: Sequence[OutgoingCallback], now: float, at_least: float, backoff: float) -> float:
    """Return the backoff, raised to the pause the server asked for, both capped so that no lease runs out."""
    patience = min(callback.max_pause(now) for callback in callbacks)
    return max(min(at_least, 2 * patience), min(backoff, patience))


def _is_temporary(status: int) -> bool:
    """Return whether the status is temporary: the message itself was not judged."""
    return status in (408, 425, 429) or status >= 500 or status < 200 or 300 <= status < 400


def batch_url(base_url: str) -> str:
    return f"{base_url}/v1/callbacks:batch"


def batch_token(batch: Sequence[OutgoingCallback]) -> str:
    """Return the token that authorizes a batch: the newest, as it expires last. Each item also carries its own."""
    return batch[-1].directive.callback_token


def heartbeat_body(directive: Directive, progress: Progress | None) -> bytes:
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
    """Return headers with the job's trace context and correlation id, without values that are invalid there."""
    return dict(job_headers(directive.traceparent, directive.tracestate, directive.correlation_id))


def batch_headers(batch: Sequence[OutgoingCallback]) -> dict[str, str]:
    """Return the trace headers of a batch that belongs to one job; none for several jobs."""
    first = batch[0].directive
    return trace_headers(first) if all(one.directive.jobId == first.jobId for one in batch) else {}


def _instant(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def _batch_answers(reply: HttpReply, expected: int) -> list[AnswerMembers] | None:
    if not 200 <= reply.status < 300:
        return None
    try:
        answers = _decode_batch(reply.body).results
    except msgspec.DecodeError:
        return None
    return answers if len(answers) == expected else None


def _answer(reply: HttpReply) -> AnswerMembers:
    try:
        answer = _decode_answer(reply.body)
    except msgspec.DecodeError:
        answer = AnswerMembers()
    # An answer in another format comes from an intermediary, such as a gateway without a route: the orchestrator has
    # neither accepted nor refused the callback.
    ours = answer.disposition or answer.code or reply.status == TOO_LARGE
    answer.status = reply.status if ours or reply.status in UNAVAILABLE_STATUSES else BAD_GATEWAY
    answer.retry_after_seconds = max(answer.retry_after_seconds or 0.0, reply.retry_after)
    return answer
