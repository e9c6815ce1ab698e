"""Group commit: everything that is decided in one turn of the event loop becomes durable in one write."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from time import perf_counter

import structlog

from lucius.core.decision import Decision, JobView
from lucius.ports.clock import Clock
from lucius.ports.errors import LedgerError
from lucius.ports.peers import Presence, SharedSecrets, Wake

MAX_GROUP = 256

log = structlog.get_logger()


class GroupCommit:
    """The queue in front of a ledger's writes. A subclass says how a group is written."""

    def __init__(self) -> None:
        self.on_commit: Callable[[Decision], None] | None = None
        """Told of every durable decision, in order: wakes the relay, waiting pulls and watchers."""
        self.on_end: Callable[[JobView], None] | None = None
        """Told, before that, all of a job that ends with it, by a ledger that knows it without looking."""
        self.on_flush: Callable[[int, float], None] | None = None
        """Told the size of every group and the seconds that it took."""
        self.on_wake: Callable[[Wake], None] | None = None
        """Told what other processes made durable; never, where there are none."""
        self.presence: Presence | None = None
        self.secrets: SharedSecrets | None = None
        self.clock: Clock | None = None
        self.awaited: Callable[[str, int], bool] = lambda service, lane: False
        self._queue: deque[tuple[Decision, asyncio.Future[None]]] = deque()
        self._flush_is_due = False
        self._closed = False

    def _write(self, decisions: Sequence[Decision]) -> list[Exception | None]:
        """Make a group durable; for each decision None or why it was refused. Refusals must not touch others."""
        raise NotImplementedError

    async def commit(self, decision: Decision) -> None:
        if self._closed:
            raise LedgerError("the ledger is closed")
        if not decision.changes:
            return
        loop = asyncio.get_running_loop()
        durable: asyncio.Future[None] = loop.create_future()
        self._queue.append((decision, durable))
        self._schedule(loop)
        await durable

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._flush_is_due:
            self._flush_is_due = True
            loop.call_soon(self._flush_and_go_on, loop)

    def _flush_and_go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flush_is_due = False
        self._flush()
        if self._queue:  # a bounded group leaves the rest to the next turn, so that reads get theirs
            self._schedule(loop)

    def _flush(self) -> None:
        group = list(islice(self._queue, MAX_GROUP))
        if not group:
            return
        for _ in group:
            self._queue.popleft()
        started = perf_counter()
        outcomes = self._outcomes([decision for decision, _ in group])
        seconds = perf_counter() - started
        for (decision, durable), refusal in zip(group, outcomes, strict=True):
            settle(durable, refusal)
            if refusal is None and self.on_commit is not None:
                call_safely(self.on_commit, decision)
        if self.on_flush is not None:
            call_safely(self.on_flush, len(group), seconds)

    def _outcomes(self, decisions: list[Decision]) -> list[Exception | None]:
        try:
            return self._write(decisions)
        except Exception as error:  # a future left unsettled would hang its caller for ever
            log.exception("ledger.write_failed", decisions=len(decisions))
            return [error] * len(decisions)

    def _drain(self) -> None:
        """Refuse new decisions and write those that wait."""
        self._closed = True
        while self._queue:
            self._flush()


def settle(durable: asyncio.Future[None], refusal: Exception | None) -> None:
    if durable.done():  # its caller was cancelled meanwhile; the decision stands all the same
        return
    if refusal is None:
        durable.set_result(None)
    else:
        durable.set_exception(refusal)


def call_safely(hook: Callable[..., None], *args: object) -> None:
    try:
        hook(*args)
    except Exception:  # the commit is durable, whatever its listeners make of it
        log.exception("ledger.hook_failed", hook=getattr(hook, "__name__", str(hook)))
