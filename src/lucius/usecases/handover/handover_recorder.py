"""Records in a job what happened to its outbox row, and withholds rows that their jobs can't accept."""

import structlog

from lucius.core.model.decision import Applied, Decision
from lucius.core.model.inputs import HandedOver, Input
from lucius.core.model.records import OutboxRow
from lucius.ports.engine import Engine
from lucius.ports.errors import ForeignEngine, LedgerAway, LimitReached
from lucius.usecases.errors import RejectCode, Rejected
from lucius.usecases.handover.row_holds import RowHolds
from lucius.usecases.handover.unacked_caps import UnackedCaps, counter_of
from lucius.usecases.notifier import Notifier

log = structlog.get_logger(__name__)


class HandoverRecorder:
    """Applies the claim, hand-over, failure or release of a row to its job."""

    def __init__(self, engine: Engine, holds: RowHolds, caps: UnackedCaps, notifier: Notifier) -> None:
        self._engine = engine
        self._holds = holds
        self._caps = caps
        self._notifier = notifier

    async def record(self, row: OutboxRow, happened: Input) -> Decision | None:
        """Apply an input and return the decision; None if the row must wait or is no longer wanted."""
        is_bound = isinstance(happened, HandedOver) and bool(happened.tenant_bound)
        counter = counter_of(row, is_bound=is_bound)
        seen = self._notifier.pick_ups(counter)
        try:
            decision = await self._engine.apply(row.job_id, (happened,), row.step_id)
        except LimitReached:
            self._caps.note_refusal(counter, seen)
            return None
        except LedgerAway:
            raise
        except ForeignEngine as foreign:
            self._holds.set_aside(row)
            log.error("outbox row belongs to an engine that is not used here", job_id=row.job_id, reason=str(foreign))
            return None
        except Rejected as rejected:
            if rejected.code is not RejectCode.JOB_NOT_FOUND:
                raise
            self._holds.set_aside(row)
            log.error("an outbox row has no job", outbox_id=row.outbox_id)
            return None
        except Exception:
            self._holds.set_aside(row)
            raise
        applied = isinstance(decision.reply, Applied)
        if not decision.job.is_ledger_driven and isinstance(happened, HandedOver):
            if applied:
                self._holds.withhold_until_settled(row)
            else:
                self._holds.set_aside_with_backoff(row)
        return decision if applied else None
