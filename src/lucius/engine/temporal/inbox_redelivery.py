"""Redelivers inbox messages whose senders died or could not reach Temporal."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import structlog

from lucius.core.model.records import Instant, Millis
from lucius.engine.temporal.messages import CLAIM_MARKER, decode_inbox_message
from lucius.engine.temporal.repeat_limiter import MAX_REMEMBERED_NAMES, RepeatLimiter
from lucius.engine.temporal.signal_batcher import MAX_BATCH_BYTES
from lucius.engine.temporal.workflow_client import NoAnswer, NoWorkflow, WorkflowClient
from lucius.ports.clock import Clock
from lucius.ports.errors import EngineDown
from lucius.ports.inbox import Inbox, InboxMessage
from lucius.ports.ledger import Ledger

log = structlog.get_logger(__name__)

INTERVAL_SECONDS = 2.0
GRACE_MS: Millis = 5_000
"""Workflows mostly read a message within this time."""
CLAIM_TTL_MS: Millis = 30_000  # longer than it takes to publish
PAGE_MESSAGES = 200
MAX_PAGES = MAX_REMEMBERED_NAMES // PAGE_MESSAGES  # with more, entries would be forgotten before they are used again


class InboxRedelivery:
    """Signals the messages in the ledger's inbox to their workflows again, at growing intervals."""

    def __init__(
        self,
        ledger: Ledger,
        inbox: Inbox,
        clock: Clock,
        workflows: WorkflowClient,
        poll_backoff: Callable[[], float] = lambda: 1.0,
    ) -> None:
        """`poll_backoff` returns the factor by which replicas that share this work slow down."""
        self._ledger = ledger
        self._inbox = inbox
        self._clock = clock
        self._workflows = workflows
        self._poll_backoff = poll_backoff
        self._repeats = RepeatLimiter()

    async def turn(self) -> None:
        if not await self.read_inbox():
            await asyncio.sleep(INTERVAL_SECONDS * self._poll_backoff())

    async def read_inbox(self) -> int:
        """Deliver messages whose senders died or could not reach Temporal; return how many there were.

        Delivered messages stay in the inbox until their workflow has read them; they are repeated at growing intervals.
        Raises EngineDown.
        """
        now, found = self._clock.now(), 0
        last: InboxMessage | None = None
        for _ in range(MAX_PAGES):
            messages = await self._inbox.list_pending(now - GRACE_MS, PAGE_MESSAGES, last)
            due = [message for message in messages if self._is_redelivery_due(message, now)]
            for group in batch_by_job(due):
                await self._try_to_deliver(group)
                for message in group:
                    self._repeats.is_due(message.message_id, now)
            found += len(due)
            if len(messages) < PAGE_MESSAGES:
                break
            last = messages[-1]
        return found

    def _is_redelivery_due(self, message: InboxMessage, now: Instant) -> bool:
        is_claim = CLAIM_MARKER in message.message_id and message.at >= now - CLAIM_TTL_MS
        return not is_claim and self._repeats.is_due(message.message_id, now, mark=False)

    async def _try_to_deliver(self, messages: Sequence[InboxMessage]) -> None:
        """Deliver messages of one job; only log a failure, as those of other jobs must not wait for it.

        Raises EngineDown if Temporal can't be reached.
        """
        job_id = messages[0].job_id
        try:
            await self._deliver(job_id, messages)
        except (EngineDown, NoWorkflow) as error:
            await self._workflows.check()
            if self._workflows.down:
                raise EngineDown(self._workflows.down) from error
            about = {
                "message_id": messages[0].message_id,
                "messages": len(messages),
                "job_id": job_id,
                "reason": str(error),
            }
            if isinstance(error, NoAnswer):
                log.info("inbox messages will be delivered later", **about)
            else:
                log.error("inbox messages can't be delivered", **about)

    async def _deliver(self, job_id: str, messages: Sequence[InboxMessage]) -> None:
        snapshot = await self._ledger.load(job_id, fresh=True)
        if snapshot is not None and snapshot.job.live:
            decoded = [one for message in messages for one in decode_inbox_message(message)]
            try:
                await self._workflows.signal(job_id, "resync", decoded)
                return
            except NoWorkflow:
                await self._workflows.start(snapshot.job)
                await self._workflows.signal(job_id, "resync", decoded)
                return
        await self._inbox.delete([message.message_id for message in messages])


def batch_by_job(messages: Sequence[InboxMessage]) -> Iterator[list[InboxMessage]]:
    """Group messages by job, for one signal each; split groups that are too large for one."""
    jobs: dict[str, list[InboxMessage]] = {}
    for message in messages:
        group = jobs.setdefault(message.job_id, [])
        if group and sum(len(one.body) for one in group) + len(message.body) > MAX_BATCH_BYTES:
            yield group
            group = jobs[message.job_id] = []
        group.append(message)
    yield from jobs.values()
