"""The tables, and how an older file becomes a newer one.

Rows are indexed columns plus a JSON `body`, so that a field added to a record needs no migration. Inside the file a
job is an integer, `jobs.id`: it starts with the instant of acceptance in milliseconds (see `live.next_id`), so
"newest first" and "accepted after" are both ranges of the primary key, and a job's rows lie next to each other.

Every index here is either small (it covers only what is live or PENDING) or written once per change of what it
indexes; none makes the cost of a commit or of a sweep grow with the number of finished jobs.
"""

APPLICATION_ID = 0x4C754369  # "LuCi": tells a ledger from any other SQLite file

Migration = tuple[str, ...]

_FIRST: Migration = (
    """
    CREATE TABLE jobs (
        id              INTEGER PRIMARY KEY,
        job_id          TEXT NOT NULL UNIQUE,
        tenant_id       TEXT NOT NULL,
        request_type    TEXT NOT NULL,
        created_at      INTEGER NOT NULL,
        status          TEXT NOT NULL,
        live            INTEGER NOT NULL,
        due_at          INTEGER,            -- of live jobs only
        blocked_on      TEXT,
        blocked_service TEXT,
        body            TEXT NOT NULL       -- the job's head without its command
    )
    """,
    # Apart, because SQLite rewrites a whole row: a head changes ten times in a job's life, a command never.
    "CREATE TABLE commands (job INTEGER PRIMARY KEY, body TEXT NOT NULL)",
    "CREATE INDEX jobs_live ON jobs (due_at) WHERE live = 1",
    "CREATE INDEX jobs_by_status ON jobs (status, request_type)",
    "CREATE INDEX jobs_by_tenant ON jobs (tenant_id, status, request_type)",
    # The rowid comes before the columns that only filter: a page is then a range of the index, in order.
    "CREATE INDEX jobs_blocked ON jobs (blocked_on, id, blocked_service, tenant_id) WHERE blocked_on IS NOT NULL",
    """
    CREATE TABLE steps (
        id        INTEGER PRIMARY KEY,      -- results can be long, which a rowid table stores better
        job       INTEGER NOT NULL,
        step_id   TEXT NOT NULL,
        status    TEXT NOT NULL,
        outbox_id TEXT NOT NULL,
        body      TEXT NOT NULL,
        UNIQUE (job, step_id)
    )
    """,
    "CREATE INDEX steps_dispatching ON steps (job, step_id, outbox_id, status) WHERE status = 'DISPATCHING'",
    """
    CREATE TABLE attempts (
        job        INTEGER NOT NULL,
        step_id    TEXT NOT NULL,
        attempt_no INTEGER NOT NULL,
        body       TEXT NOT NULL,
        PRIMARY KEY (job, step_id, attempt_no)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE outbox (
        job             INTEGER NOT NULL,
        outbox_id       TEXT NOT NULL,
        seq             INTEGER NOT NULL,   -- order of writing, among the PENDING
        status          TEXT NOT NULL,
        service         TEXT NOT NULL,
        lane            INTEGER NOT NULL,
        claimed         INTEGER NOT NULL,
        next_attempt_at INTEGER,
        created_at      INTEGER NOT NULL,
        body            TEXT NOT NULL,
        PRIMARY KEY (job, outbox_id)
    ) WITHOUT ROWID
    """,
    # What follows `seq` only filters. `status` is there because SQLite looks it up in the table otherwise.
    """
    CREATE INDEX outbox_pending ON outbox (service, claimed, next_attempt_at, seq, lane, created_at, status)
    WHERE status = 'PENDING'
    """,
    """
    CREATE TABLE events (
        job  INTEGER NOT NULL,
        seq  INTEGER NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (job, seq)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE idempotency (
        tenant_id        TEXT NOT NULL,
        key              TEXT NOT NULL,
        job_id           TEXT NOT NULL,
        idempotency_hash TEXT NOT NULL,
        PRIMARY KEY (tenant_id, key)
    ) WITHOUT ROWID
    """,
    """
    CREATE TABLE quarantine (
        id         INTEGER PRIMARY KEY,
        job        INTEGER NOT NULL,
        step_id    TEXT NOT NULL,
        attempt_no INTEGER NOT NULL,
        lease_id   TEXT NOT NULL,
        body       TEXT NOT NULL,
        UNIQUE (job, step_id, attempt_no, lease_id)
    )
    """,
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE protocols (digest TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
)

_PROTOCOL_VERSIONS: Migration = (
    # Apart from `protocols`, which holds what jobs have pinned and is never read by name.
    """
    CREATE TABLE protocol_versions (
        request_type TEXT NOT NULL,
        version      INTEGER NOT NULL,
        status       TEXT NOT NULL,
        digest       TEXT NOT NULL,
        body         TEXT NOT NULL,
        PRIMARY KEY (request_type, version)
    )
    """,
    "CREATE TABLE protocol_revision (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL)",
    "INSERT INTO protocol_revision (id, revision) VALUES (1, 0)",
)

_REVIEWS: Migration = (
    """
    CREATE TABLE reviews (
        id        INTEGER PRIMARY KEY,      -- the order of their opening
        review_id TEXT NOT NULL UNIQUE,
        job_id    TEXT NOT NULL,
        tenant_id TEXT NOT NULL,
        kind      TEXT NOT NULL,
        status    TEXT NOT NULL,
        signature TEXT NOT NULL,
        body      TEXT NOT NULL
    )
    """,
    "CREATE INDEX reviews_by_status ON reviews (status, id, tenant_id, kind, signature)",
    "CREATE INDEX reviews_by_job ON reviews (job_id)",
    # Answers groups and counts by itself, and holds only what is open.
    "CREATE INDEX reviews_open ON reviews (signature, kind, tenant_id, id, status) WHERE status = 'OPEN'",
)

# What was written before there were hashes is told from what has lost them.
_SEALS: Migration = (
    "UPDATE jobs SET body = json_set(body, '$.unsealed', coalesce(json_extract(body, '$.event_seq'), 0))",
)

# Tenants take turns, so a tenant's rows must be found without reading another's. Rows that were settled before are
# never asked for again and keep no name.
_TURNS: Migration = (
    "ALTER TABLE outbox ADD COLUMN tenant_id TEXT NOT NULL DEFAULT ''",
    "UPDATE outbox SET tenant_id = json_extract(body, '$.tenant_id') WHERE status = 'PENDING'",
    "DROP INDEX outbox_pending",
    """
    CREATE INDEX outbox_pending ON outbox
        (service, claimed, tenant_id, next_attempt_at, seq, lane, created_at, status)
    WHERE status = 'PENDING'
    """,
)

_INBOX: Migration = (
    """
    CREATE TABLE inbox (
        letter_id TEXT PRIMARY KEY,
        job_id    TEXT NOT NULL,
        at        INTEGER NOT NULL,
        body      TEXT NOT NULL
    ) WITHOUT ROWID
    """,
    "CREATE INDEX inbox_at ON inbox (at, letter_id)",
)

MIGRATIONS: tuple[Migration, ...] = (_FIRST, _PROTOCOL_VERSIONS, _REVIEWS, _SEALS, _TURNS, _INBOX)
"""Number n brings a file from version n-1 to n. Never edit one that was released; add another."""
