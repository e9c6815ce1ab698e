"""Tables and migrations. A schema is upgraded while older code still runs on it.

Rows are indexed columns plus a JSON `body`, so a new field of a record needs no new column. But code that does not know
the field erases it with its next commit: unless that loss is acceptable, the migration excludes such code with
`compatible_with`. A test lists the stored fields, so that this is decided for each new one.

Internally a job is identified by an integer, `jobs.id`, which starts with the time of acceptance in milliseconds (see
`batch.IdGenerator`). So "newest first" and "accepted after" are ranges of a primary key, and a job's rows are adjacent.

PostgreSQL writes a new row version, and an entry in each index, for every update that changes an indexed column. So
immutable and changing data are separate: `jobs` is written once, `live` has one small row per running job whose updates
touch no index, and a job that ends moves to `done`. Settled outbox rows are deleted; attempts and events record their
outcome. Queries for live jobs thus never search among finished ones.

Migrations only add: tables, columns with defaults, functions under a new name. Code of the previous version keeps
running; what it needs is dropped one release later. A migration that excludes older code drops the function with which
that code commits, since a process may take half a minute to notice that it is excluded. Migrations touch tables in the
order in which a commit does, jobs first, so that the two never deadlock.
"""

from msgspec import Struct

from lucius.adapters.ledger.postgres.functions import COMMIT, DUE, POLL, TAKE, TICK
from lucius.adapters.ledger.sql_files import load_script


class Migration(Struct, frozen=True):
    """Statements that upgrade the schema by one version.

    `compatible_with` is the oldest version whose code can still run on the result. Statements that can't run
    `in_transaction`, such as CREATE INDEX CONCURRENTLY, may be interrupted anywhere and are then repeated from the
    first one: they must be idempotent, hence DROP INDEX CONCURRENTLY IF EXISTS before.
    """

    statements: tuple[str, ...]
    compatible_with: int
    in_transaction: bool = True


_FIRST = (*load_script(__package__, "schema_1"), COMMIT, TAKE, DUE, TICK, POLL)

MIGRATIONS: tuple[Migration, ...] = (Migration(_FIRST, compatible_with=1),)
"""Migration n upgrades a schema from version n-1 to n. Never change a released migration; add another."""
