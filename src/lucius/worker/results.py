"""Sees the RESULTs of one service off: written down, then sent, remembered, and dropped once they were heard.

Also those that processes before us left, or processes beside us that died.
"""

import structlog

from lucius.contract import Directive
from lucius.worker.callbacks import CallbackSender, Delivered, Delivery, GaveUp, Refused
from lucius.worker.context import names_of
from lucius.worker.execution import failure
from lucius.worker.failure import NonRetryable, StepFailure, Transient
from lucius.worker.idempotency import IdempotencyStore, Key, StoreDown, key_of
from lucius.worker.journal import Journal, LeftOver

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MOST_UNREMEMBERED = 200
MALFORMED = frozenset({400, 413, 422})
NOT_SAFE = "NOT_SAFE_TO_RETRY"


class Results:
    def __init__(self, journal: Journal, store: IdempotencyStore, sender: CallbackSender) -> None:
        self._journal = journal
        self._store = store
        self._sender = sender
        self._reporting: set[Key] = set()
        self._unremembered: dict[Key, bytes] = {}
        """What the store has not heard, being away."""

    async def take_up_left_overs(self) -> None:
        """What processes before us finished is sent again; what they were cut off from is reported as failed."""
        try:
            left_overs = self._journal.left_over()
        except StoreDown as down:
            log.error("can't look for results left over", reason=str(down))
            return
        for left in left_overs:
            result = left.result or failure(left.directive, _interrupted(left))
            log.info("result left over, sending it again", finished=left.result is not None, **names_of(left.directive))
            if left.result is None:
                self._write_down(left.directive, result)
            await self._remember(key_of(left.directive), result)
            self.report(left.directive, result)

    async def conclude(self, directive: Directive, result: bytes) -> None:
        """In this order: whatever cuts us off, nobody runs the attempt again once somebody has heard of its result."""
        self._write_down(directive, result)
        await self._remember(key_of(directive), result)
        self.report(directive, result)

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
            self._unremembered[key] = result
            if len(self._unremembered) > MOST_UNREMEMBERED:
                self._no_longer_missed(next(iter(self._unremembered)))
        else:
            self._no_longer_missed(key)

    def _no_longer_missed(self, key: Key) -> None:
        if self._unremembered.pop(key, None) is not None and key not in self._reporting:
            self._journal.drop(key)

    async def none_for(self, key: Key) -> None:
        """The lease was lost: there is nothing to tell, and whoever is asked next is free to begin."""
        self._journal.drop(key)
        try:
            await self._store.release(key)
        except StoreDown as down:
            log.warning("claim not released, it will run out", reason=str(down), jobId=key.jobId, stepId=key.stepId)

    async def catch_up(self) -> None:
        """Tell the store what it missed while it was away."""
        for key, result in list(self._unremembered.items()):
            await self._remember(key, result)

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
        if key not in self._unremembered:  # else the journal is the only one who knows
            self._journal.drop(key)


def _interrupted(left: LeftOver) -> StepFailure:
    if left.directive.retry_safety == NOT_SAFE:
        return NonRetryable("INTERRUPTED", "the service was cut off in the middle of a step that may not be repeated")
    return Transient("SERVICE_RESTARTED", "the service was cut off in the middle of this attempt")
