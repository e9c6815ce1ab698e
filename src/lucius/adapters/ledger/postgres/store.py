"""Opens a schema of a PostgreSQL database and composes its ports."""

import random
from collections.abc import Sequence

from lucius.adapters.ledger.postgres.batched_reads import JobLoader
from lucius.adapters.ledger.postgres.cache import JobCache
from lucius.adapters.ledger.postgres.claims import OutboxClaims
from lucius.adapters.ledger.postgres.clock import DatabaseClock
from lucius.adapters.ledger.postgres.database import Database
from lucius.adapters.ledger.postgres.history import PostgresHistoryReader
from lucius.adapters.ledger.postgres.inbox import PostgresInbox
from lucius.adapters.ledger.postgres.jobs import PostgresJobReader
from lucius.adapters.ledger.postgres.ledger import PostgresLedger
from lucius.adapters.ledger.postgres.liveness import PostgresLiveness
from lucius.adapters.ledger.postgres.outbox import PostgresOutbox
from lucius.adapters.ledger.postgres.peer_registry import PeerRegistry
from lucius.adapters.ledger.postgres.replica import Replica
from lucius.adapters.ledger.postgres.reviews import PostgresReviews
from lucius.adapters.ledger.postgres.schema import MIGRATIONS, Migration
from lucius.adapters.ledger.postgres.secrets import PostgresSecrets
from lucius.adapters.ledger.postgres.sightings import PostgresSightings
from lucius.adapters.ledger.postgres.versions import PostgresVersions
from lucius.adapters.ledger.postgres.writer import Writer
from lucius.ports.errors import LedgerTooNew
from lucius.ports.store import BlockedTime, Store, StoreHooks

DEFAULT_CONNECTIONS = 8


class PostgresStore(Store, frozen=True, kw_only=True, eq=False):
    """A store and the parts that its ports share."""

    database: Database
    cache: JobCache
    claims: OutboxClaims
    writer: Writer
    replica: Replica


async def open_postgres(
    url: str, connections: int = DEFAULT_CONNECTIONS, migrations: Sequence[Migration] = MIGRATIONS
) -> PostgresStore:
    """Open or create a ledger. Raises LedgerDown, LedgerTooNew, LedgerTooOld or LedgerError."""
    database = Database(url, connections)
    await database.open(migrations)
    store = _compose(database)
    try:
        await store.replica.notifier.poll()
        if database.outdated_reason:
            raise LedgerTooNew(database.outdated_reason)
        await store.replica.notifier.start()
    except BaseException:
        await database.close()
        raise
    return store


def _compose(database: Database) -> PostgresStore:
    hooks, clock, cache, replica_id = StoreHooks(), DatabaseClock(), JobCache(), random.getrandbits(62) + 1
    peers, loader = PeerRegistry(clock.steady), JobLoader(database, cache)
    claims = OutboxClaims(database, clock, replica_id, hooks, peers.is_alone)
    replica = Replica(database, clock, replica_id, peers, cache, claims, hooks)
    writer = Writer(database, cache, claims.choose_hold, replica.on_durable, replica.on_group)

    async def close() -> None:
        await writer.close()
        await replica.close()
        await database.close()

    return PostgresStore(
        database=database,
        cache=cache,
        claims=claims,
        writer=writer,
        replica=replica,
        ledger=PostgresLedger(database, cache, loader, writer, claims),
        outbox=PostgresOutbox(claims, replica.notifier),
        jobs=PostgresJobReader(database, loader.load_protocol),
        history=PostgresHistoryReader(database),
        reviews=PostgresReviews(database),
        protocols=PostgresVersions(database, replica),
        inbox=PostgresInbox(database, replica.notifier),
        sightings=PostgresSightings(database),
        hooks=hooks,
        blocked_time=BlockedTime(),  # its writes do not block the event loop
        liveness=PostgresLiveness(database, peers, claims.skip_next_due_query),
        secrets=PostgresSecrets(database),
        clock=clock,
        close=close,
    )
