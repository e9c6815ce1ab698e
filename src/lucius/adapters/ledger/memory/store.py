"""Composes the ledger in memory."""

from lucius.adapters.ledger.memory.history import MemoryHistoryReader
from lucius.adapters.ledger.memory.inbox import MemoryInbox
from lucius.adapters.ledger.memory.jobs import MemoryJobReader
from lucius.adapters.ledger.memory.ledger import MemoryLedger
from lucius.adapters.ledger.memory.outbox import MemoryOutbox
from lucius.adapters.ledger.memory.sightings import MemorySightings
from lucius.adapters.ledger.memory.tables import MemoryTables
from lucius.adapters.ledger.memory.versions import MemoryVersions
from lucius.ports.store import BlockedTime, Store, StoreHooks


class MemoryStore(Store, frozen=True, kw_only=True, eq=False):
    """A store and the dictionaries that its ports share."""

    tables: MemoryTables


def open_memory(tables: MemoryTables | None = None) -> MemoryStore:
    """Return a store over these tables; without them, an empty one."""
    tables, hooks, blocked_time = tables or MemoryTables(), StoreHooks(), BlockedTime()
    ledger = MemoryLedger(tables, hooks, blocked_time)
    return MemoryStore(
        tables=tables,
        ledger=ledger,
        outbox=MemoryOutbox(tables),
        jobs=MemoryJobReader(tables),
        history=MemoryHistoryReader(tables),
        reviews=tables.reviews,
        protocols=MemoryVersions(lambda: ledger.commits.is_closed),
        inbox=MemoryInbox(),
        sightings=MemorySightings(tables),
        hooks=hooks,
        blocked_time=blocked_time,
        close=ledger.close,
    )
