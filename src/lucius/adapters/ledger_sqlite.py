"""The default ledger: one SQLite file, one process that writes it, one transaction per group of decisions."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from lucius.adapters import rows
from lucius.adapters.group_commit import GroupCommit
from lucius.adapters.sqlite.batch import Batch, find_key
from lucius.adapters.sqlite.inbox import SqliteInbox
from lucius.adapters.sqlite.live import Mirror
from lucius.adapters.sqlite.outbox import SqliteOutbox
from lucius.adapters.sqlite.queries import SqliteReader
from lucius.adapters.sqlite.reviews import SqliteReviews
from lucius.adapters.sqlite.schema import MIGRATIONS, Migration
from lucius.adapters.sqlite.store import Store
from lucius.adapters.sqlite.versions import SqliteVersions
from lucius.core.decide import counted
from lucius.core.decision import Decision
from lucius.ports.errors import LedgerBusy, LedgerCorrupt, LedgerError, LedgerFull
from lucius.ports.ledger import IdempotencyRow

log = structlog.get_logger()

_LIVE_JOBS = """
    SELECT jobs.id, commands.body, jobs.body FROM jobs JOIN commands ON commands.job = jobs.id WHERE jobs.live = 1
"""


class SqliteLedger(GroupCommit, SqliteReader, SqliteOutbox, SqliteReviews, SqliteVersions, SqliteInbox):
    """Implements Ledger, Outbox, Reader, ReviewReader, ProtocolStore and Inbox."""

    def __init__(self, store: Store) -> None:
        GroupCommit.__init__(self)
        SqliteInbox.__init__(self)
        SqliteReader.__init__(self, store, Mirror(store))

    @classmethod
    def open(
        cls,
        path: str | Path,
        max_page_count: int | None = None,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> "SqliteLedger":
        """Open or create a ledger file. Raises LedgerBusy, LedgerTooNew or LedgerCorrupt."""
        store = Store.open(Path(path), max_page_count, migrations)
        try:
            ledger = cls(store)
            ledger._recount()
        except BaseException:
            store.close()
            raise
        return ledger

    async def accepted(self, tenant_id: str, key: str) -> IdempotencyRow | None:
        return find_key(self._store, tenant_id, key)

    async def close(self) -> None:
        if not self._closed:
            self._drain()
            self._write_letters()
            with suppress(LedgerError):  # they are read once more
                self._write_along(())
            self._store.close()

    def _flush(self) -> None:
        super()._flush()
        self._write_letters()

    def _write(self, decisions: Sequence[Decision]) -> list[Exception | None]:
        batch = Batch(self._store, self._mirror)
        outcomes = [_refusal(batch, decision) for decision in decisions]
        try:
            batch.write(self._write_along)
        except LedgerBusy as error:
            # Waiting again for each would only stall the loop for longer; and a refusal that rests on another of this
            # group would speak of a commit that never was.
            return [error] * len(decisions)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one decision must not fail the others
            if len(decisions) == 1:
                return [error]
            # All of them anew, the refused too: what stood in their way may turn out to be the one that fails.
            return [outcome for decision in decisions for outcome in self._write([decision])]
        return outcomes

    def _recount(self) -> None:
        """Counters move with the jobs they count, so a difference means that someone edited the file."""
        try:
            actual = self._counted()
        except msgspec.MsgspecError as error:
            raise LedgerCorrupt(
                f"ledger {self._store.path} has a row that cannot be read ({error}); restore it from a backup"
            ) from error
        if actual != self._mirror.counters:
            self._repair_counters(actual)

    def _counted(self) -> dict[str, int]:
        actual: dict[str, int] = {}
        for id_, command, head in self._store.rows(_LIVE_JOBS):
            job = rows.job(command, head)
            bodies = self._store.rows("SELECT body FROM steps WHERE job = ?", (id_,))
            steps = [step for step in (rows.step(body) for (body,) in bodies) if step.step_id in job.active]
            for name, n in counted(job, steps).items():
                actual[name] = actual.get(name, 0) + n
        return actual

    def _repair_counters(self, actual: dict[str, int]) -> None:
        stored = self._mirror.counters
        wrong = sorted(name for name in actual.keys() | stored.keys() if actual.get(name) != stored.get(name))
        log.warning("ledger.counters_repaired", path=str(self._store.path), counters=wrong)
        self._mirror.counters = actual
        forget = ("DELETE FROM counters WHERE name = ?", [(name,) for name in stored])
        count = ("INSERT INTO counters (name, value) VALUES (?, ?)", list(actual.items()))
        try:
            self._store.write([forget, count])
        except LedgerFull:  # a full disk must not keep anyone from opening the ledger; the next start repairs it
            log.warning("ledger.counters_not_saved", path=str(self._store.path))


def _refusal(batch: Batch, decision: Decision) -> Exception | None:
    try:
        batch.add(decision)
    except Exception as error:  # noqa: BLE001 - a read may fail too; either way it is this decision's outcome
        return error
    return None
