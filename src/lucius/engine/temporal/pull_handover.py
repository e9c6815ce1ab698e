"""Hands directives over to services that pull, for jobs driven by workflows.

A directive belongs to the process that first inserts its hand-over message into the inbox. The workflow is signalled
in the background. The ledger counts the hand-over once the workflow has projected it, which deletes the message; until
then it is counted here.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog
from msgspec.structs import replace

from lucius.core.model.decision import Applied, Decision, Ignored, JobSnapshot, unchanged
from lucius.core.model.inputs import Cap, HandedOver
from lucius.core.model.records import Instant, Millis
from lucius.engine.temporal.inbox_claims import claim
from lucius.engine.temporal.messages import JobMessage, encode_input, make_inbox_message
from lucius.engine.temporal.shortcuts import SendSignal
from lucius.ports.clock import Clock
from lucius.ports.errors import EngineDown, LedgerError, LimitReached
from lucius.ports.inbox import Inbox, InboxMessage
from lucius.ports.readers import JobReader

log = structlog.get_logger(__name__)

RETRY_SECONDS = 5.0
CLOSE_SECONDS = 5.0
COUNTER_TTL_MS = 50
MAX_CONFIRM_MS: Millis = 10_000
"""How long a hand-over counts here after its signal at most: without a worker, none is projected."""
CONFIRM_INTERVAL_SECONDS = 0.05
"""Pause between checks whether hand-overs have been projected, while a service waits at its cap."""

Evaluate = Callable[[str, Sequence[HandedOver], str | None], Awaitable[Decision]]


class PullHandover:
    """Hands directives over, and signals their workflows.

    `evaluate` decides about inputs on the ledger's current state without committing, `send` signals the workflow,
    `freed` is called with each counter that a hand-over no longer counts towards here.
    """

    def __init__(
        self,
        jobs: JobReader,
        inbox: Inbox,
        clock: Clock,
        *,
        evaluate: Evaluate,
        send: SendSignal,
        freed: Callable[[str], None],
    ) -> None:
        self._jobs = jobs
        self._inbox = inbox
        self._clock = clock
        self._evaluate = evaluate
        self._send = send
        self._freed = freed
        self._counters: dict[str, tuple[Instant, int]] = {}
        self._uncounted: Counter[str] = Counter()
        """Hand-overs that the ledger may not count yet, by counter."""
        self._signalled: dict[str, tuple[Instant, list[str]]] = {}
        """Time and counters of hand-overs that were signalled, by the id of their inbox message."""
        self._confirming: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    @property
    def is_settled(self) -> bool:
        """Return whether the workflows have been signalled every hand-over made here."""
        return not self._tasks

    async def hand_over(self, view: JobSnapshot, handed_over: Sequence[HandedOver], step_id: str | None) -> Decision:
        """Claim the directives and decide whether they may be handed over. Raises LimitReached."""
        caps = [cap for one in handed_over for cap in one.caps]
        for cap in caps:
            await self._require_room(cap)
        inputs = [replace(one, caps=()) for one in handed_over]
        message = make_inbox_message(view.job.job_id, inputs, self._clock.now())
        counters = [cap.counter for cap in caps]
        self._uncounted.update(counters)
        try:
            decision = await self._claim(view, message, inputs, step_id)
        except BaseException:
            self._stop_counting(counters)
            raise
        if not isinstance(decision.reply, Applied):
            self._stop_counting(counters)
            return decision
        encoded = [encode_input(one, message.message_id) for one in inputs]
        task = asyncio.create_task(self._signal(view.job.job_id, message.message_id, encoded, counters))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return decision

    async def close(self) -> None:
        """Finish signals that are under way; the rest is redelivered from the inbox."""
        self._closing.set()
        tasks = set(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for task in (*tasks, *filter(None, [self._confirming])):
            task.cancel()

    async def _claim(
        self, view: JobSnapshot, message: InboxMessage, inputs: Sequence[HandedOver], step_id: str | None
    ) -> Decision:
        """Insert the message, then decide on a fresh read.

        The order matters: a message is deleted once the ledger shows its effect, so after a successful insert another
        process may already have handed the directive over and finished with it.
        """
        if not await claim(self._inbox, message, lambda: self._release(message)):
            return unchanged(view, Ignored("this attempt does not wait to be handed over"))
        try:
            evaluated = await self._evaluate(message.job_id, inputs, step_id)
        except BaseException:  # also when cancelled: it certainly was not handed over
            with suppress(LedgerError):
                await self._release(message)
            raise
        if not isinstance(evaluated.reply, Applied):
            await self._inbox.delete([message.message_id])
        return evaluated

    async def _release(self, message: InboxMessage) -> None:
        await asyncio.shield(self._inbox.delete([message.message_id]))

    async def _signal(self, job_id: str, message_id: str, messages: Sequence[JobMessage], counters: list[str]) -> None:
        """Signal the workflow, again until Temporal answers; then the ledger soon counts the hand-overs."""
        is_reached = False
        try:
            is_reached = await self._signal_with_retries(job_id, messages)
        except LedgerError as error:
            log.info("hand-over signal failed, the inbox will redeliver it", job_id=job_id, reason=str(error))
        finally:
            if not is_reached:
                self._stop_counting(counters)
        if is_reached:
            self._signalled[message_id] = self._clock.now(), counters
            self._expire()

    async def _signal_with_retries(self, job_id: str, messages: Sequence[JobMessage]) -> bool:
        while True:
            try:
                return await self._send(job_id, messages)
            except EngineDown as error:
                if self._closing.is_set():
                    raise
                log.info("hand-over signal failed, will be sent later", job_id=job_id, reason=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_SECONDS):
                    await self._closing.wait()

    def _stop_counting(self, counters: Sequence[str]) -> None:
        self._uncounted.subtract(counters)
        for counter in counters:
            self._freed(counter)

    def _confirm(self, message_id: str) -> None:
        _, counters = self._signalled.pop(message_id, (0, []))
        self._stop_counting(counters)

    async def _require_room(self, cap: Cap) -> None:
        """Raise LimitReached if the counter, up to 50 ms old, and the hand-overs not yet in the ledger reach the cap.

        No commit guards this, so hand-overs of other processes on their way to the ledger can exceed the cap.
        """
        now = self._clock.now()
        asked_at, n = self._counters.get(cap.counter, (0, 0))
        if now - asked_at > COUNTER_TTL_MS:
            n = await self._read_counter(cap, now)
        if n + self._uncounted[cap.counter] >= cap.limit:
            await self._confirm_projected()  # before the counter is read, which then has these
            n = await self._read_counter(cap, now)
        if n + self._uncounted[cap.counter] >= cap.limit:
            if self._confirming is None or self._confirming.done():
                self._confirming = asyncio.create_task(self._confirm_all())
            raise LimitReached(cap.counter, cap.limit)

    async def _read_counter(self, cap: Cap, now: Instant) -> int:
        n = (await self._jobs.counters(cap.counter)).get(cap.counter, 0)
        self._counters[cap.counter] = now, n
        return n

    async def _confirm_projected(self) -> None:
        """Stop counting the hand-overs that have been projected: their messages are gone."""
        if self._signalled:
            message_ids = list(self._signalled)
            stored = {message.message_id for message in await self._inbox.get_many(message_ids)}
            for message_id in message_ids:
                if message_id not in stored:
                    self._confirm(message_id)
            self._expire()

    def _expire(self) -> None:
        now = self._clock.now()
        while self._signalled and next(iter(self._signalled.values()))[0] <= now - MAX_CONFIRM_MS:
            self._confirm(next(iter(self._signalled)))

    async def _confirm_all(self) -> None:
        """Confirm until nothing is left: a pull that waits at the cap is woken when there is room."""
        while self._signalled or not self.is_settled:
            await asyncio.sleep(CONFIRM_INTERVAL_SECONDS)
            try:
                await self._confirm_projected()
            except LedgerError as error:
                log.info("could not check which hand-overs have been projected", reason=str(error))
