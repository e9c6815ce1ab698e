"""Gives back claims of this process on rows that were surely not published."""

import random
import secrets
from collections.abc import Callable

import structlog

from lucius.backoff import KeyedBackoff
from lucius.core.model.inputs import HandOverReleased
from lucius.core.model.records import OutboxRow
from lucius.ports.clock import Clock
from lucius.ports.errors import LedgerAway
from lucius.ports.ledger import Ledger
from lucius.usecases.handover.handover_recorder import HandoverRecorder

log = structlog.get_logger(__name__)

MAX_UNPUBLISHED_CLAIMS = 1_000


class UnpublishedClaims:
    """Claims that may be durable although the directive was not published; one that stays counts as a hand-over."""

    def __init__(
        self,
        ledger: Ledger,
        recorder: HandoverRecorder,
        clock: Clock,
        jitter: Callable[[], float] = random.random,
        on_failure: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._ledger = ledger
        self._recorder = recorder
        self._on_failure = on_failure
        self._rows: dict[str, OutboxRow] = {}
        self._backoff = KeyedBackoff(clock, jitter, most_names=MAX_UNPUBLISHED_CLAIMS)
        self.owner_id = secrets.token_hex(6)
        """Identifies the claims of this process."""

    def note(self, row: OutboxRow) -> None:
        """Note a claim to be given back later; beyond the maximum, forget the oldest."""
        self._rows[row.outbox_id] = row
        if len(self._rows) > MAX_UNPUBLISHED_CLAIMS:
            self.forget(next(iter(self._rows.values())))

    def forget(self, row: OutboxRow) -> None:
        self._rows.pop(row.outbox_id, None)
        self._backoff.forget(row.outbox_id)

    async def release_noted(self) -> None:
        """Give back the noted claims that are still ours. Raises LedgerAway."""
        for row in [row for name, row in self._rows.items() if not self._backoff.waits(name)]:
            try:
                if await self._is_ours(row):
                    await self._release(row)
            except LedgerAway:
                raise
            except Exception:  # concerns this job only: others must not wait for it
                self._on_failure("relay")
                pause = self._backoff.failed(row.outbox_id)
                log.exception("could not give back a claim, will try again", job_id=row.job_id, retry_in_seconds=pause)
                continue
            self.forget(row)

    async def release_or_note(self, row: OutboxRow) -> None:
        """Give back a claim now, or note it if that fails."""
        try:
            await self._release(row)
        except LedgerAway as error:
            self.note(row)
            log.warning("a claim will be given back later", job_id=row.job_id, reason=str(error))
        except Exception:
            self.note(row)
            self._on_failure("relay")
            log.exception("could not give back a claim, will try again", job_id=row.job_id)

    async def _is_ours(self, row: OutboxRow) -> bool:
        """Return True if the ledger shows the claim as ours.

        A crash of the ledger may lose holds, so another process may have claimed and published the row.
        """
        view = await self._ledger.load(row.job_id, (row.step_id,), fresh=True)
        attempt = view.steps[row.step_id].attempt if view and row.step_id in view.steps else None
        return attempt is not None and (attempt.lease_id, attempt.claimed_by) == (row.lease_id, self.owner_id)

    async def _release(self, row: OutboxRow) -> None:
        await self._recorder.record(row, HandOverReleased(row.step_id, row.attempt_no, row.lease_id))
