"""Sees the RESULTs of one service off: written down, then sent, remembered, and dropped once they were heard.

Also those that processes before us left, or processes beside us that died.
"""

from collections.abc import Callable

import structlog

from lucius.contract import Directive
from lucius.worker.callbacks import CallbackSender, Delivered, Delivery, GaveUp, Refused
from lucius.worker.context import names_of
from lucius.worker.execution import failure
from lucius.worker.failure import NonRetryable, StepFailure, Transient
from lucius.worker.idempotency import CAPACITY, MEMORY_BYTES, IdempotencyStore, Key, StoreDown, key_of
from lucius.worker.journal import Journal, LeftOver

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MOST_UNREMEMBERED = CAPACITY
MOST_UNREMEMBERED_BYTES = MEMORY_BYTES
MALFORMED = frozenset({400, 413, 422})
NOT_SAFE = "NOT_SAFE_TO_RETRY"


class Results:
    """`on_told` hears of each directive about which there is nothing more to tell."""

    def __init__(
        self, journal: Journal, store: IdempotencyStore, sender: CallbackSender, on_told: Callable[[Directive], None]
    ) -> None:
        self._journal = journal
        self._store = store
        self._sender = sender
        self._on_told = on_told
        self._reporting: set[Key] = set()
        self._unremembered: dict[Key, bytes] = {}
        """What the store has not heard, being away."""
        self._unremembered_bytes = 0
        self._unwritten: dict[Key, tuple[Directive, bytes]] = {}
        """What the journal had no room for, until it was heard."""

    async def take_up_left_overs(self) -> None:
        """What processes before us finished is sent again; what they were cut off from is reported as failed."""
        self.write_down_what_waits()
        try:
            left_overs = self._journal.left_over()
        except StoreDown as down:
            log.error("can't look for results left over", reason=str(down))
            return
        away = False
        for left in left_overs:
            away = await self._take_up(left, away)

    async def _take_up(self, left: LeftOver, away: bool) -> bool:
        """Returns whether the store is away. Then the next need not wait for it, too."""
        log.info("result left over, sending it again", finished=left.result is not None, **names_of(left.directive))
        key = key_of(left.directive)
        result = left.result or failure(left.directive, _interrupted(left))
        if away:
            self._miss(key, result)
        else:  # first: it may know of a result that found no room in the journal
            result = await self._remember(key, result)
        if left.result is None:
            result = self._write_down(left.directive, result)
        self.report(left.directive, result)
        return key in self._unremembered

    async def conclude(self, directive: Directive, result: bytes) -> None:
        """In this order: whatever cuts us off, nobody runs the attempt again once somebody has heard of its result.

        Sent is what was stored first, should another have been at it, too: all who are asked say the same.
        """
        try:
            result = self._write_down(directive, result)
            result = await self._remember(key_of(directive), result)
        finally:  # nothing may keep it from being sent
            self.report(directive, result)

    def _write_down(self, directive: Directive, result: bytes) -> bytes:
        key = key_of(directive)
        try:
            stored = self._journal.finish(directive, result)
        except StoreDown as down:  # a full disk: it is sent all the same, and written while it waits, if that goes
            log.error("result could not be written down", reason=str(down), **names_of(directive))
            self._unwritten[key] = directive, result
            return result
        self._unwritten.pop(key, None)
        return stored

    def write_down_what_waits(self) -> None:
        for key, (directive, result) in list(self._unwritten.items()):
            self._write_down(directive, result)
            if key in self._unwritten:
                return

    async def _remember(self, key: Key, result: bytes) -> bytes:
        try:
            stored = await self._store.finish(key, result)
        except StoreDown as down:
            log.warning("result not in the idempotency store", reason=str(down), jobId=key.jobId, stepId=key.stepId)
            self._miss(key, result)
            return result
        self._no_longer_missed(key)
        return stored

    def _miss(self, key: Key, result: bytes) -> None:
        self._unmiss(key)
        self._unremembered[key] = result  # as the last: the next round begins with another
        self._unremembered_bytes += len(result)
        while len(self._unremembered) > 1 and (
            len(self._unremembered) > MOST_UNREMEMBERED or self._unremembered_bytes > MOST_UNREMEMBERED_BYTES
        ):
            self._no_longer_missed(next(iter(self._unremembered)))

    def _unmiss(self, key: Key) -> bool:
        result = self._unremembered.pop(key, None)
        self._unremembered_bytes -= len(result or b"")
        return result is not None

    def _no_longer_missed(self, key: Key) -> None:
        if self._unmiss(key) and key not in self._reporting:
            self._journal.drop(key)

    async def none_for(self, directive: Directive) -> None:
        """The lease was lost: there is nothing to tell, and whoever is asked next is free to begin."""
        key = key_of(directive)
        self._on_told(directive)
        self._journal.drop(key)
        try:
            await self._store.release(key)
        except StoreDown as down:
            log.warning("claim not released, it will run out", reason=str(down), jobId=key.jobId, stepId=key.stepId)

    async def catch_up(self) -> None:
        """Tell the store what it missed while it was away, or until it is away again."""
        for key, result in list(self._unremembered.items()):
            await self._remember(key, result)
            if key in self._unremembered:
                return

    def has(self, directive: Directive) -> bool:
        """Whether its result is on its way, or is now since the store has forgotten it."""
        key = key_of(directive)
        result = self._unremembered.get(key)
        if result is not None:
            self.report(directive, result)
        return key in self._reporting

    def report(self, directive: Directive, result: bytes) -> None:
        key = key_of(directive)
        if key in self._reporting:
            return
        self._reporting.add(key)
        self._sender.result(directive, result, lambda delivery: self._reported(directive, delivery))

    def _reported(self, directive: Directive, delivery: Delivery) -> None:
        match delivery:
            case Refused(status, code) if status in MALFORMED:
                # Silence would hold the job until the lease ends, and a retry would be refused again.
                reason = NonRetryable("RESULT_REFUSED", f"the orchestrator refused the result: {status} {code}")
                instead = failure(directive, reason)
                self._write_down(directive, instead)
                self._sender.result(directive, instead, lambda _: self._told(directive))
                return
            case GaveUp(reason=why):
                log.error("result lost: orchestrator away for too long", reason=why, **names_of(directive))
            case Delivered() | Refused():
                pass  # heard; or fenced, which the sender has logged
        self._told(directive)

    def _told(self, directive: Directive) -> None:
        key = key_of(directive)
        self._on_told(directive)
        self._reporting.discard(key)
        self._unwritten.pop(key, None)
        if key not in self._unremembered:  # else the journal is the only one who knows
            self._journal.drop(key)


def _interrupted(left: LeftOver) -> StepFailure:
    if left.directive.retry_safety == NOT_SAFE:
        return NonRetryable("INTERRUPTED", "the service was cut off in the middle of a step that may not be repeated")
    return Transient("SERVICE_RESTARTED", "the service was cut off in the middle of this attempt")
