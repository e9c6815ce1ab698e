"""Group commit: all decisions of one turn of the event loop become durable in one write."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from time import perf_counter, thread_time

import structlog

from lucius.core.model.decision import Decision
from lucius.ports.errors import LedgerError
from lucius.ports.store import BlockedTime, StoreHooks

MAX_GROUP_DECISIONS = 256

log = structlog.get_logger()

Write = Callable[[Sequence[Decision]], list[Exception | None]]


class GroupCommit:
    """Queue in front of a ledger's writes.

    `write` makes a group durable and returns for each decision None or why it was refused; a refusal must not affect
    other decisions. `finish` is called after each group.
    """

    def __init__(
        self, write: Write, hooks: StoreHooks, blocked_time: BlockedTime, finish: Callable[[], None] = lambda: None
    ) -> None:
        self._write = write
        self._hooks = hooks
        self._blocked_time = blocked_time
        self._finish = finish
        self.queue: deque[tuple[Decision, asyncio.Future[None]]] = deque()
        """Decisions that the next groups write."""
        self._flush_is_due = False
        self.is_closed = False

    async def commit(self, decision: Decision) -> None:
        if self.is_closed:
            raise LedgerError("the ledger is closed")
        if not decision.changes:
            return
        loop = asyncio.get_running_loop()
        durable: asyncio.Future[None] = loop.create_future()
        self.queue.append((decision, durable))
        self.schedule(loop)
        await durable

    def schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        """Schedule a write at the end of this turn of the loop."""
        if not self._flush_is_due:
            self._flush_is_due = True
            loop.call_soon(self._flush_and_go_on, loop)

    def _flush_and_go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flush_is_due = False
        self._flush()
        if self.queue:  # leave the rest to the next turn, so that reads get theirs
            self.schedule(loop)

    def _flush(self) -> None:
        group = list(islice(self.queue, MAX_GROUP_DECISIONS))
        if group:
            self._write_group(group)
        self._finish()

    def _write_group(self, group: list[tuple[Decision, asyncio.Future[None]]]) -> None:
        for _ in group:
            self.queue.popleft()
        started, worked = perf_counter(), thread_time()
        outcomes = self._outcomes([decision for decision, _ in group])
        seconds = perf_counter() - started
        self._blocked_time.seconds += max(0.0, seconds - (thread_time() - worked))
        for (decision, durable), refusal in zip(group, outcomes, strict=True):
            set_outcome(durable, refusal)
            if refusal is None and self._hooks.on_commit is not None:
                call_hook(self._hooks.on_commit, decision)
        if self._hooks.on_flush is not None:
            call_hook(self._hooks.on_flush, len(group), seconds)

    def _outcomes(self, decisions: list[Decision]) -> list[Exception | None]:
        try:
            return self._write(decisions)
        except Exception as error:  # a future left unsettled would hang its caller for ever
            log.exception("ledger.write_failed", decisions=len(decisions))
            return [error] * len(decisions)

    def drain(self) -> None:
        """Refuse new decisions and write the queued ones."""
        self.is_closed = True
        while self.queue:
            self._flush()


def set_outcome(durable: asyncio.Future[None], refusal: Exception | None) -> None:
    if durable.done():  # the caller was cancelled; the decision stands
        return
    if refusal is None:
        durable.set_result(None)
    else:
        durable.set_exception(refusal)


def call_hook(hook: Callable[..., None], *args: object) -> None:
    try:
        hook(*args)
    except Exception:  # the commit is durable, even if a listener fails
        log.exception("ledger.hook_failed", hook=getattr(hook, "__name__", str(hook)))
