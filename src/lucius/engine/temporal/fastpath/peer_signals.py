"""Passes signals sent by other processes to workflow tasks that are open here.

Other processes announce the ids of the inbox messages that Temporal has signals for. They are read from the inbox and
added to the open task. This is only a shortcut: on any failure the signals still arrive.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence

import structlog

from lucius.engine.temporal.fastpath.open_tasks import OpenTask, OpenTasks
from lucius.engine.temporal.messages import JobMessage, decode_inbox_message
from lucius.ports.errors import LedgerError
from lucius.ports.inbox import Inbox, InboxMessage

log = structlog.get_logger(__name__)

MAX_PENDING_READS = 1_000


class PeerSignals:
    """Reads announced inbox messages and adds them to open tasks."""

    def __init__(self, inbox: Inbox, open_tasks: OpenTasks) -> None:
        self._inbox = inbox
        self._open_tasks = open_tasks
        self._pending: dict[str, OpenTask] = {}
        self._reading: asyncio.Task[None] | None = None
        self._closed = False

    def on_announcement(self, message_ids: Sequence[str]) -> None:
        """Read the announced messages of open tasks; ids that arrive during a read are read together after it."""
        if self._closed or len(self._pending) >= MAX_PENDING_READS:
            return
        for message_id in message_ids:
            task = self._open_tasks.get(message_id.partition("/")[0])
            if task is not None:
                self._pending.pop(message_id, None)
                self._pending[message_id] = task
        if self._pending and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read())

    async def close(self) -> None:
        self._closed = True
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        while self._pending:
            pending, self._pending = self._pending, {}
            try:
                self._add_to_open_tasks(pending, await self._inbox.get_many(pending))
            except LedgerError as error:
                log.info("could not read announced messages, their signals will deliver them", reason=str(error))
            except Exception:
                log.exception("reading announced messages failed, their signals will deliver them")

    def _add_to_open_tasks(self, pending: Mapping[str, OpenTask], messages: Iterable[InboxMessage]) -> None:
        """Add messages only to the task that was open at the announcement: a later one may already have the signal."""
        by_job: dict[str, list[JobMessage]] = {}
        for message in messages:
            if self._open_tasks.get(message.job_id) is pending[message.message_id]:
                by_job.setdefault(message.job_id, []).extend(decode_inbox_message(message))
        for job_id, decoded in by_job.items():
            self._open_tasks.add_messages(job_id, decoded)
