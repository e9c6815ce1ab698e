-- Version 1. Never change a released migration; add another file.

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
    body            TEXT NOT NULL,      -- the job's head without its command
    completed_at    INTEGER,
    error_code      TEXT
);

-- A table of its own: SQLite rewrites whole rows, and a head changes ten times in a job's life, a command never.
CREATE TABLE commands (
    job            INTEGER PRIMARY KEY,
    body           TEXT NOT NULL,
    doc_id         TEXT,
    correlation_id TEXT,                -- NULL if it is the job's own id, which `job_id` finds
    target         TEXT
);

CREATE INDEX commands_by_doc ON commands (doc_id) WHERE doc_id IS NOT NULL;

CREATE INDEX commands_by_correlation ON commands (correlation_id) WHERE correlation_id IS NOT NULL;

CREATE INDEX commands_by_target ON commands (target) WHERE target IS NOT NULL;

CREATE INDEX jobs_live ON jobs (due_at) WHERE live = 1;

CREATE INDEX jobs_by_status ON jobs (status, request_type);

CREATE INDEX jobs_by_tenant ON jobs (tenant_id, status, request_type);

-- The rowid comes before the columns that only filter: a page is then a range of the index, in order.
CREATE INDEX jobs_blocked ON jobs (blocked_on, id, blocked_service, tenant_id) WHERE blocked_on IS NOT NULL;

CREATE INDEX jobs_by_completion ON jobs (completed_at) WHERE completed_at IS NOT NULL;

CREATE INDEX jobs_by_tenant_completion ON jobs (tenant_id, completed_at) WHERE completed_at IS NOT NULL;

CREATE INDEX jobs_by_error ON jobs (error_code) WHERE error_code IS NOT NULL;

CREATE TABLE steps (
    id        INTEGER PRIMARY KEY,      -- results can be long, which a rowid table stores better
    job       INTEGER NOT NULL,
    step_id   TEXT NOT NULL,
    status    TEXT NOT NULL,
    outbox_id TEXT NOT NULL,
    body      TEXT NOT NULL,
    UNIQUE (job, step_id)
);

CREATE INDEX steps_dispatching ON steps (job, step_id, outbox_id, status) WHERE status = 'DISPATCHING';

CREATE TABLE attempts (
    job        INTEGER NOT NULL,
    step_id    TEXT NOT NULL,
    attempt_no INTEGER NOT NULL,
    body       TEXT NOT NULL,
    PRIMARY KEY (job, step_id, attempt_no)
) WITHOUT ROWID;

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
    tenant_id       TEXT NOT NULL,
    PRIMARY KEY (job, outbox_id)
) WITHOUT ROWID;

-- By tenant before age, for round-robin over tenants. Columns after `seq` only filter. Without `status`, SQLite
-- would look it up in the table.
CREATE INDEX outbox_pending ON outbox
    (service, claimed, tenant_id, next_attempt_at, seq, lane, created_at, status)
WHERE status = 'PENDING';

CREATE TABLE events (
    job  INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (job, seq)
) WITHOUT ROWID;

CREATE TABLE idempotency (
    tenant_id        TEXT NOT NULL,
    key              TEXT NOT NULL,
    job_id           TEXT NOT NULL,
    idempotency_hash TEXT NOT NULL,
    PRIMARY KEY (tenant_id, key)
) WITHOUT ROWID;

CREATE TABLE quarantine (
    id         INTEGER PRIMARY KEY,
    job        INTEGER NOT NULL,
    step_id    TEXT NOT NULL,
    attempt_no INTEGER NOT NULL,
    lease_id   TEXT NOT NULL,
    body       TEXT NOT NULL,
    UNIQUE (job, step_id, attempt_no, lease_id)
);

CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;

CREATE TABLE protocols (digest TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;

-- Separate from `protocols`, which holds what jobs have pinned and is never read by name.
CREATE TABLE protocol_versions (
    request_type TEXT NOT NULL,
    version      INTEGER NOT NULL,
    status       TEXT NOT NULL,
    digest       TEXT NOT NULL,
    body         TEXT NOT NULL,
    PRIMARY KEY (request_type, version)
);

CREATE TABLE protocol_revision (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL);

INSERT INTO protocol_revision (id, revision) VALUES (1, 0);

CREATE TABLE reviews (
    id        INTEGER PRIMARY KEY,      -- the order of their opening
    review_id TEXT NOT NULL UNIQUE,
    job_id    TEXT NOT NULL,
    tenant_id TEXT NOT NULL,
    kind      TEXT NOT NULL,
    status    TEXT NOT NULL,
    signature TEXT NOT NULL,
    body      TEXT NOT NULL
);

CREATE INDEX reviews_by_status ON reviews (status, id, tenant_id, kind, signature);

CREATE INDEX reviews_by_job ON reviews (job_id);

-- Covers groups and counts, and holds only open items.
CREATE INDEX reviews_open ON reviews (signature, kind, tenant_id, id, status) WHERE status = 'OPEN';

CREATE TABLE inbox (
    message_id TEXT PRIMARY KEY,
    job_id    TEXT NOT NULL,
    at        INTEGER NOT NULL,
    body      TEXT NOT NULL
) WITHOUT ROWID;

CREATE INDEX inbox_at ON inbox (at, message_id);

CREATE TABLE sightings (
    service      TEXT NOT NULL,
    instance     TEXT NOT NULL,
    agent        TEXT NOT NULL,
    last_seen_at INTEGER NOT NULL,
    last_pull_at INTEGER,
    PRIMARY KEY (service, instance)
) WITHOUT ROWID;
