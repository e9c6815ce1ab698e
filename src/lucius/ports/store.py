"""A store of jobs as a record of its ports, so that each consumer is handed exactly the port it needs."""

from collections.abc import Awaitable, Callable

from msgspec import Struct

from lucius.core.model.decision import Decision, JobSnapshot
from lucius.core.model.records import OutboxRow
from lucius.ports.clock import Clock
from lucius.ports.inbox import Inbox
from lucius.ports.ledger import Ledger
from lucius.ports.outbox import Outbox
from lucius.ports.peers import EngineLiveness, SharedSecrets, Wake
from lucius.ports.protocols import ProtocolStore
from lucius.ports.readers import HistoryReader, JobReader, ReviewReader
from lucius.ports.sightings import ServiceSightings


def _is_never_awaited(row: OutboxRow) -> bool:
    return False


class StoreHooks(Struct, eq=False):
    """Callbacks that a store calls, set once the application is wired. An exception of one is logged, not raised."""

    on_commit: Callable[[Decision], None] | None = None
    """Called with every durable decision, in order: wakes the relay, waiting pulls and watchers."""
    on_end: Callable[[JobSnapshot], None] | None = None
    """Called before `on_commit` with all of a job that ends, by stores that know it without a read."""
    on_flush: Callable[[int, float], None] | None = None
    """Called with the size of every group of commits and the seconds that it took."""
    on_wake: Callable[[Wake], None] | None = None
    """Called with what other processes made durable; never, where there are none."""
    awaited: Callable[[OutboxRow], bool] = _is_never_awaited
    """Returns True if this process would take the row at once."""


class BlockedTime(Struct, eq=False):
    """Total time for which writes kept the event loop waiting for the disk."""

    seconds: float = 0.0


class Store(Struct, frozen=True, kw_only=True, eq=False):
    """The ports of one store. One that processes share also has liveness, shared secrets and a clock."""

    ledger: Ledger
    outbox: Outbox
    jobs: JobReader
    history: HistoryReader
    reviews: ReviewReader
    protocols: ProtocolStore
    inbox: Inbox
    sightings: ServiceSightings
    hooks: StoreHooks
    blocked_time: BlockedTime
    liveness: EngineLiveness | None = None
    secrets: SharedSecrets | None = None
    clock: Clock | None = None
    close: Callable[[], Awaitable[None]]
    """Finishes the running commits and closes the store."""
