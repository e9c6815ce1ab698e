"""Opens a ledger file and composes its ports."""

from collections.abc import Sequence
from pathlib import Path

from lucius.adapters.ledger.sqlite.file import SqliteFile
from lucius.adapters.ledger.sqlite.history import SqliteHistoryReader
from lucius.adapters.ledger.sqlite.inbox import SqliteInbox
from lucius.adapters.ledger.sqlite.inbox_queue import InboxQueue
from lucius.adapters.ledger.sqlite.jobs import SqliteJobReader
from lucius.adapters.ledger.sqlite.ledger import SqliteLedger
from lucius.adapters.ledger.sqlite.memory_state import MemoryState
from lucius.adapters.ledger.sqlite.outbox import SqliteOutbox
from lucius.adapters.ledger.sqlite.recount import recount
from lucius.adapters.ledger.sqlite.reviews import SqliteReviews
from lucius.adapters.ledger.sqlite.schema import MIGRATIONS, Migration
from lucius.adapters.ledger.sqlite.sightings import SqliteSightings
from lucius.adapters.ledger.sqlite.versions import SqliteVersions
from lucius.ports.store import BlockedTime, Store, StoreHooks


class SqliteStore(Store, frozen=True, kw_only=True, eq=False):
    """A store, its file and the in-memory state that its ports share."""

    file: SqliteFile
    state: MemoryState


def open_sqlite(
    path: str | Path, max_page_count: int | None = None, migrations: Sequence[Migration] = MIGRATIONS
) -> SqliteStore:
    """Open or create a ledger file. Raises LedgerBusy, LedgerTooNew, LedgerTooOld or LedgerCorrupt."""
    file = SqliteFile.open(Path(path), max_page_count, migrations)
    try:
        state = MemoryState(file)
        recount(file, state)
    except BaseException:
        file.close()
        raise
    return _compose(file, state)


def _compose(file: SqliteFile, state: MemoryState) -> SqliteStore:
    hooks, blocked_time, queue = StoreHooks(), BlockedTime(), InboxQueue(file)
    ledger = SqliteLedger(file, state, queue, hooks, blocked_time)
    return SqliteStore(
        file=file,
        state=state,
        ledger=ledger,
        outbox=SqliteOutbox(file, state),
        jobs=SqliteJobReader(file, state),
        history=SqliteHistoryReader(file),
        reviews=SqliteReviews(file),
        protocols=SqliteVersions(file),
        inbox=SqliteInbox(file, queue, ledger.commits.schedule),
        sightings=SqliteSightings(file),
        hooks=hooks,
        blocked_time=blocked_time,
        close=ledger.close,
    )
