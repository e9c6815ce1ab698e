"""Delivery of one service's RESULTs: journaled, stored for idempotency, sent, and dropped once they are settled.

Includes those of dead processes.
"""

from collections.abc import Callable

import structlog

from lucius.contract import Directive
from lucius.worker.callbacks import CallbackRefused, CallbackSender, Delivered, Delivery, GaveUp
from lucius.worker.context import log_fields
from lucius.worker.execution import encode_failure
from lucius.worker.failure import NonRetryable, StepFailure, Transient
from lucius.worker.idempotency import (
    MAX_FINISHED_ATTEMPTS,
    MAX_FINISHED_BYTES,
    AttemptKey,
    IdempotencyStore,
    StoreDown,
    attempt_key,
)
from lucius.worker.journal import Journal, OrphanedAttempt

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MAX_UNSTORED_RESULTS = MAX_FINISHED_ATTEMPTS
MAX_UNSTORED_BYTES = MAX_FINISHED_BYTES
MALFORMED_STATUSES = frozenset({400, 413, 422})
NOT_SAFE = "NOT_SAFE_TO_RETRY"


class ResultReporter:
    """Reports results to the orchestrator; calls `on_settled` with each directive that is settled."""

    def __init__(
        self, journal: Journal, store: IdempotencyStore, sender: CallbackSender, on_settled: Callable[[Directive], None]
    ) -> None:
        self._journal = journal
        self._store = store
        self._sender = sender
        self._on_result_settled = on_settled
        self._reporting: set[AttemptKey] = set()
        self._unstored: dict[AttemptKey, bytes] = {}
        """Results that the store lacks because it was down."""
        self._unstored_bytes = 0
        self._unjournaled: dict[AttemptKey, tuple[Directive, bytes]] = {}
        """Results that could not be journaled, until they are settled."""

    async def report_orphans(self) -> None:
        """Adopt attempts of dead processes: send finished results again, report interrupted attempts as failed."""
        self.retry_journal_writes()
        try:
            orphans = self._journal.adopt_orphans()
        except StoreDown as down:
            log.error("can't look for orphaned results", reason=str(down))
            return
        is_store_down = False
        for orphan in orphans:
            is_store_down = await self._report_orphan(orphan, is_store_down)

    async def _report_orphan(self, orphan: OrphanedAttempt, is_store_down: bool) -> bool:
        """Report one orphaned attempt; return whether the store is down, so that the next one skips it."""
        log.info("reporting an orphaned attempt", finished=orphan.result is not None, **log_fields(orphan.directive))
        key = attempt_key(orphan.directive)
        result = orphan.result or encode_failure(orphan.directive, _interrupted(orphan))
        if is_store_down:
            self._add_unstored(key, result)
        else:  # before the journal: the store may have a result that was not journaled
            result = await self._remember(key, result)
        if orphan.result is None:
            result = self._journal_result(orphan.directive, result)
        self.report(orphan.directive, result)
        return key in self._unstored

    async def complete(self, directive: Directive, result: bytes) -> None:
        """Journal the RESULT, store it for idempotency, then send it.

        With this order, no interruption makes the attempt run again once its result was sent. The result sent is the
        one stored first, so if another process ran the attempt too, both report the same.
        """
        try:
            result = self._journal_result(directive, result)
            result = await self._remember(attempt_key(directive), result)
        finally:  # it must be sent in any case
            self.report(directive, result)

    def _journal_result(self, directive: Directive, result: bytes) -> bytes:
        key = attempt_key(directive)
        try:
            stored = self._journal.finish(directive, result)
        except StoreDown as down:  # such as a full disk: it is sent anyway, and the write is retried meanwhile
            log.error("result not journaled", reason=str(down), **log_fields(directive))
            self._unjournaled[key] = directive, result
            return result
        self._unjournaled.pop(key, None)
        return stored

    def retry_journal_writes(self) -> None:
        for key, (directive, result) in list(self._unjournaled.items()):
            self._journal_result(directive, result)
            if key in self._unjournaled:
                return

    async def _remember(self, key: AttemptKey, result: bytes) -> bytes:
        try:
            stored = await self._store.finish(key, result)
        except StoreDown as down:
            log.warning("result not in the idempotency store", reason=str(down), jobId=key.jobId, stepId=key.stepId)
            self._add_unstored(key, result)
            return result
        self._forget_unstored(key)
        return stored

    def _add_unstored(self, key: AttemptKey, result: bytes) -> None:
        self._pop_unstored(key)
        self._unstored[key] = result  # moved to the end, so that the next round begins with another
        self._unstored_bytes += len(result)
        while len(self._unstored) > 1 and (
            len(self._unstored) > MAX_UNSTORED_RESULTS or self._unstored_bytes > MAX_UNSTORED_BYTES
        ):
            self._forget_unstored(next(iter(self._unstored)))

    def _pop_unstored(self, key: AttemptKey) -> bool:
        result = self._unstored.pop(key, None)
        self._unstored_bytes -= len(result or b"")
        return result is not None

    def _forget_unstored(self, key: AttemptKey) -> None:
        if self._pop_unstored(key) and key not in self._reporting:
            self._journal.drop(key)

    async def discard(self, directive: Directive) -> None:
        """Drop an attempt whose lease was lost, without a report, and release its claim."""
        key = attempt_key(directive)
        self._on_result_settled(directive)
        self._journal.drop(key)
        try:
            await self._store.release(key)
        except StoreDown as down:
            log.warning("claim not released, it will expire", reason=str(down), jobId=key.jobId, stepId=key.stepId)

    async def retry_store_writes(self) -> None:
        """Store the results that the store missed while it was down; stop at the first failure."""
        for key, result in list(self._unstored.items()):
            await self._remember(key, result)
            if key in self._unstored:
                return

    def is_reporting(self, directive: Directive) -> bool:
        """Return whether its result is being sent; starts sending a finished one that the store lacks."""
        key = attempt_key(directive)
        result = self._unstored.get(key)
        if result is not None:
            self.report(directive, result)
        return key in self._reporting

    def report(self, directive: Directive, result: bytes) -> None:
        key = attempt_key(directive)
        if key in self._reporting:
            return
        self._reporting.add(key)
        self._sender.result(directive, result, lambda delivery: self._reported(directive, delivery))

    def _reported(self, directive: Directive, delivery: Delivery) -> None:
        match delivery:
            case CallbackRefused(status, code) if status in MALFORMED_STATUSES:
                # Without a report the job would wait until the lease ends, and a retry would be refused again.
                reason = NonRetryable("RESULT_REFUSED", f"the orchestrator refused the result: {status} {code}")
                instead = encode_failure(directive, reason)
                self._journal_result(directive, instead)
                self._sender.result(directive, instead, lambda _: self._on_settled(directive))
                return
            case GaveUp(reason=why):
                log.error("result lost: orchestrator unreachable for too long", reason=why, **log_fields(directive))
            case Delivered() | CallbackRefused():
                pass  # delivered; or fenced, which the sender has logged
        self._on_settled(directive)

    def _on_settled(self, directive: Directive) -> None:
        key = attempt_key(directive)
        self._on_result_settled(directive)
        self._reporting.discard(key)
        self._unjournaled.pop(key, None)
        if key not in self._unstored:  # else the journal has the only copy
            self._journal.drop(key)


def _interrupted(orphan: OrphanedAttempt) -> StepFailure:
    if orphan.directive.retry_safety == NOT_SAFE:
        return NonRetryable("INTERRUPTED", "the service was interrupted during a step that must not be repeated")
    return Transient("SERVICE_RESTARTED", "the service was interrupted during this attempt")
