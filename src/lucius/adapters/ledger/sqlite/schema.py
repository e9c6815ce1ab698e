"""Tables and migrations.

Rows are indexed columns plus a JSON `body`, so that a field added to a record needs no migration. Inside the file a job
is an integer, `jobs.id`: it starts with the instant of acceptance in milliseconds (see `memory_state.next_id`), so
"newest first" and "accepted after" are both ranges of the primary key, and a job's rows are adjacent.

Every index here is either small (it covers only what is live or PENDING) or written once per change of what it indexes;
none makes the cost of a commit or of a sweep grow with the number of finished jobs.
"""

from lucius.adapters.ledger.sql_files import load_script

APPLICATION_ID = 0x4C754C64  # "LuLd": tells a ledger from any other SQLite file
DEVELOPMENT_APPLICATION_IDS = (0x4C754369, 0x4C754C67)
"""Marks ledgers from before version 1, which had schema versions of their own: 8 of theirs is not 8 of these."""

Migration = tuple[str, ...]

_FIRST: Migration = load_script(__package__, "schema_1")

MIGRATIONS: tuple[Migration, ...] = (_FIRST,)
"""Migration n upgrades a file from version n-1 to n. Never change a released migration; add another."""
