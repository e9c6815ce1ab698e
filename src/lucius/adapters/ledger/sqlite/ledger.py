"""The default ledger: one SQLite file, one process that writes it, one transaction per group of decisions."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import groupby

from lucius.adapters.ledger.group_commit import GroupCommit
from lucius.adapters.ledger.sql_files import load_statements
from lucius.adapters.ledger.sqlite.batch import StagedTransaction, find_key
from lucius.adapters.ledger.sqlite.file import SqliteFile
from lucius.adapters.ledger.sqlite.inbox_queue import InboxQueue
from lucius.adapters.ledger.sqlite.memory_state import MemoryState
from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.records import Instant, Millis
from lucius.ports.errors import LedgerBusy, LedgerError
from lucius.ports.ledger import Drift, IdempotencyRow
from lucius.ports.store import BlockedTime, StoreHooks

DRIFT_BATCH_ROWS = 2_000
"""Candidates examined by one call of `drifted`; the next call continues where this one stopped.

In an outage every waiting job is a candidate; the event loop must never wait for all of them.
"""

_SQL = load_statements(__package__, "ledger", drift_batch_rows=DRIFT_BATCH_ROWS)
DUE = _SQL["due"]

WITHOUT_DEADLINE = _SQL["without_deadline"]
DISPATCHING = _SQL["dispatching"]


class SqliteLedger:
    """Implements Ledger."""

    def __init__(
        self, file: SqliteFile, state: MemoryState, inbox: InboxQueue, hooks: StoreHooks, blocked_time: BlockedTime
    ) -> None:
        self._file = file
        self._state = state
        self._inbox = inbox
        self.commits = GroupCommit(self._write, hooks, blocked_time, finish=inbox.write_queued_messages)
        self._drift_after_job = 0
        self._drift_after_step = (0, "")

    async def commit(self, decision: Decision) -> None:
        await self.commits.commit(decision)

    async def load(self, job_id: str, step_ids: Collection[str] = (), fresh: bool = False) -> JobSnapshot | None:
        return self._state.view(job_id, step_ids)

    async def accepted(self, tenant_id: str, key: str) -> IdempotencyRow | None:
        return find_key(self._file, tenant_id, key)

    async def due(self, now: Instant, limit: int, hold_ms: Millis = 0) -> list[str]:
        return [job_id for (job_id,) in self._file.fetch_rows(DUE, (now, limit))]

    async def drifted(self, limit: int) -> list[Drift]:
        missing = self._steps_without_a_row()
        missing += [(job, None) for job in self._jobs_without_clock_or_row()]
        found: list[Drift] = []
        for job, items in groupby(sorted(missing, key=lambda item: item[0]), key=lambda item: item[0]):
            row = self._file.fetch_row(_SQL["live_job_id"], (job,))
            if row is not None and len(found) < limit:
                found.append(Drift(row[0], tuple(step_id for _, step_id in items if step_id is not None)))
        return found

    def _steps_without_a_row(self) -> list[tuple[int, str | None]]:
        window = self._file.fetch_rows(DISPATCHING, self._drift_after_step)
        self._drift_after_step = (window[-1][0], window[-1][1]) if len(window) == DRIFT_BATCH_ROWS else (0, "")
        return [(job, step_id) for job, step_id, has_row in window if not has_row]

    def _jobs_without_clock_or_row(self) -> list[int]:
        window = self._file.fetch_rows(WITHOUT_DEADLINE, (self._drift_after_job,))
        self._drift_after_job = window[-1][0] if len(window) == DRIFT_BATCH_ROWS else 0
        return [job for job, has_row in window if not has_row]

    async def close(self) -> None:
        if not self.commits.is_closed:
            self.commits.drain()
            self._inbox.write_queued_messages()
            with suppress(LedgerError):  # what stays is read once more
                self._inbox.write_with(())
            self._file.close()

    def _write(self, decisions: Sequence[Decision]) -> list[Exception | None]:
        batch = StagedTransaction(self._file, self._state)
        outcomes = [_refusal(batch, decision) for decision in decisions]
        try:
            batch.write(self._inbox.write_with)
        except LedgerBusy as error:
            # Waiting again for each would only block the loop longer; and a refusal because of another decision
            # of this group would name a commit that never happened.
            return [error] * len(decisions)
        except Exception as error:  # noqa: BLE001 - a faulty decision must not fail the others
            if len(decisions) == 1:
                return [error]
            # Try all again, also the refused: the decision they conflicted with may be the one that fails.
            return [outcome for decision in decisions for outcome in self._write([decision])]
        return outcomes


def _refusal(batch: StagedTransaction, decision: Decision) -> Exception | None:
    try:
        batch.add(decision)
    except Exception as error:  # noqa: BLE001 - a read may fail too; either way it is this decision's outcome
        return error
    return None
