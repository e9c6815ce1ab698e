-- Version 1. Never change a released migration; add another file.

CREATE TABLE jobs (
    id             bigint PRIMARY KEY,
    job_id         text COLLATE "C" NOT NULL UNIQUE,
    tenant_id      text COLLATE "C" NOT NULL,
    request_type   text COLLATE "C" NOT NULL,
    created_at     bigint NOT NULL,
    key            text COLLATE "C" NOT NULL,              -- idempotency key, kept as long as the job
    hash           text COLLATE "C" NOT NULL,
    command        text NOT NULL,
    doc_id         text COLLATE "C",
    correlation_id text COLLATE "C",    -- NULL if it is the job's own id, which `job_id` finds
    target         text COLLATE "C",
    UNIQUE (tenant_id, key)
);

CREATE INDEX jobs_by_doc ON jobs (doc_id, id) WHERE doc_id IS NOT NULL;

CREATE INDEX jobs_by_correlation ON jobs (correlation_id, id) WHERE correlation_id IS NOT NULL;

CREATE INDEX jobs_by_target ON jobs (target, id) WHERE target IS NOT NULL;

-- `look_at` is at or before `due_at` and updated only when the sweeper reaches it: otherwise every callback that
-- moves the deadline would also write an index entry.
CREATE TABLE live (
    id              bigint PRIMARY KEY,
    version         integer NOT NULL,
    status          text COLLATE "C" NOT NULL,
    tenant_id       text COLLATE "C" NOT NULL,
    request_type    text COLLATE "C" NOT NULL,
    due_at          bigint,
    look_at         bigint,
    blocked_on      text COLLATE "C",
    blocked_service text COLLATE "C",
    holder          bigint NOT NULL DEFAULT 0,
    held_until      bigint NOT NULL DEFAULT 0,
    body            text NOT NULL       -- the job's head without its command
) WITH (fillfactor = 50);

CREATE INDEX live_look_at ON live (look_at) WHERE look_at IS NOT NULL;

CREATE TABLE done (
    id           bigint PRIMARY KEY,
    version      integer NOT NULL,
    status       text COLLATE "C" NOT NULL,
    tenant_id    text COLLATE "C" NOT NULL,
    request_type text COLLATE "C" NOT NULL,
    completed_at bigint NOT NULL,
    body         text NOT NULL,
    error_code   text COLLATE "C"
);

CREATE INDEX done_by_status ON done (status, request_type, id);

CREATE INDEX done_by_tenant ON done (tenant_id, status, request_type, id);

CREATE INDEX done_by_error ON done (error_code, id) WHERE error_code IS NOT NULL;

CREATE INDEX done_by_completion ON done (completed_at, id);

CREATE INDEX done_by_tenant_completion ON done (tenant_id, completed_at, id);

CREATE TABLE steps (
    job       bigint NOT NULL,
    step_id   text COLLATE "C" NOT NULL,
    status    text COLLATE "C" NOT NULL,
    outbox_id text COLLATE "C" NOT NULL,
    body      text NOT NULL,
    PRIMARY KEY (job, step_id)
) WITH (fillfactor = 70);

CREATE TABLE attempts (
    job        bigint NOT NULL,
    step_id    text COLLATE "C" NOT NULL,
    attempt_no integer NOT NULL,
    body       text NOT NULL,
    PRIMARY KEY (job, step_id, attempt_no)
);

-- One row for all events of a commit, keyed by the first one's number; bodies omit the job's id.
CREATE TABLE events (
    job  bigint NOT NULL,
    seq  integer NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (job, seq)
);

-- PENDING rows only. Until `held_until` a row is reserved for the replica `holder`.
CREATE TABLE outbox (
    job             bigint NOT NULL,
    outbox_id       text COLLATE "C" NOT NULL,
    seq             bigint NOT NULL,    -- order of writing
    job_id          text COLLATE "C" NOT NULL,
    tenant_id       text COLLATE "C" NOT NULL,
    step_id         text COLLATE "C" NOT NULL,
    attempt_no      integer NOT NULL,
    lease_id        text COLLATE "C" NOT NULL,
    service         text COLLATE "C" NOT NULL,
    topic           text COLLATE "C" NOT NULL,
    lane            smallint NOT NULL,
    created_at      bigint NOT NULL,
    next_attempt_at bigint,
    claimed_at      bigint,
    holder          bigint NOT NULL DEFAULT 0,
    held_until      bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (job, outbox_id)
) WITH (fillfactor = 70);

-- By tenant before age, for round-robin over tenants.
CREATE INDEX outbox_ready ON outbox (service, tenant_id, seq, lane)
WHERE next_attempt_at IS NULL AND claimed_at IS NULL;

CREATE INDEX outbox_later ON outbox (service, next_attempt_at, seq) WHERE next_attempt_at IS NOT NULL;

CREATE INDEX outbox_claimed ON outbox (claimed_at, seq) WHERE claimed_at IS NOT NULL;

CREATE INDEX outbox_later_of_tenant ON outbox (tenant_id, service, next_attempt_at, seq)
WHERE next_attempt_at IS NOT NULL;

CREATE TABLE counters (name text COLLATE "C" NOT NULL PRIMARY KEY, value bigint NOT NULL) WITH (fillfactor = 20);

CREATE TABLE quarantine (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job        bigint NOT NULL,
    step_id    text COLLATE "C" NOT NULL,
    attempt_no integer NOT NULL,
    lease_id   text COLLATE "C" NOT NULL,
    body       text NOT NULL,
    UNIQUE (job, step_id, attempt_no, lease_id)
);

CREATE TABLE reviews (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- order of opening
    review_id text COLLATE "C" NOT NULL UNIQUE,
    job_id    text COLLATE "C" NOT NULL,
    tenant_id text COLLATE "C" NOT NULL,
    kind      text COLLATE "C" NOT NULL,
    status    text COLLATE "C" NOT NULL,
    signature text COLLATE "C" NOT NULL,
    body      text NOT NULL
);

CREATE INDEX reviews_by_status ON reviews (status, id);

CREATE INDEX reviews_by_tenant ON reviews (tenant_id, status, id);

CREATE INDEX reviews_by_job ON reviews (job_id);

CREATE INDEX reviews_open ON reviews (signature, kind, tenant_id, id) WHERE status = 'OPEN';

CREATE TABLE protocols (digest text COLLATE "C" NOT NULL PRIMARY KEY, body text NOT NULL);

CREATE TABLE protocol_versions (
    request_type text COLLATE "C" NOT NULL,
    version      integer NOT NULL,
    status       text COLLATE "C" NOT NULL,
    digest       text COLLATE "C" NOT NULL,
    body         text NOT NULL,
    PRIMARY KEY (request_type, version)
);

CREATE TABLE protocol_revision (id integer PRIMARY KEY CHECK (id = 1), revision bigint NOT NULL);

INSERT INTO protocol_revision (id, revision) VALUES (1, 0);

-- Signing keys if the environment sets none: all replicas must accept each other's tokens.
CREATE TABLE secrets (name text COLLATE "C" NOT NULL PRIMARY KEY, value text NOT NULL);

-- When an engine last ticked, and since when one has been running without a gap.
CREATE TABLE engine (
    id         integer PRIMARY KEY CHECK (id = 1),
    last_tick  bigint NOT NULL,
    resumed_at bigint NOT NULL
) WITH (fillfactor = 20);

INSERT INTO engine (id, last_tick, resumed_at) VALUES (1, 0, 0);

-- When a callback API was last available, and since when one has been available without a gap.
CREATE TABLE callback_availability (
    id              integer PRIMARY KEY CHECK (id = 1),
    available_at    bigint NOT NULL,
    available_since bigint NOT NULL
) WITH (fillfactor = 20);

INSERT INTO callback_availability (id, available_at, available_since) VALUES (1, 0, 0);

CREATE TABLE inbox (message_id text COLLATE "C" NOT NULL PRIMARY KEY, job_id text COLLATE "C" NOT NULL, at bigint NOT NULL, body text NOT NULL);

CREATE INDEX inbox_at ON inbox (at, message_id);

CREATE TABLE sightings (
    service      text COLLATE "C" NOT NULL,
    instance     text COLLATE "C" NOT NULL,
    agent        text NOT NULL,
    last_seen_at bigint NOT NULL,
    last_pull_at bigint,
    PRIMARY KEY (service, instance)
) WITH (fillfactor = 50);

-- Small tables with many updates: vacuum early and without cost delay.
ALTER TABLE live SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE outbox SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE counters SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE steps SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE engine SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE callback_availability SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE inbox SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE sightings SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

ALTER TABLE live SET (autovacuum_analyze_scale_factor = 0.1);
ALTER TABLE outbox SET (autovacuum_analyze_scale_factor = 0.1);
ALTER TABLE counters SET (autovacuum_analyze_scale_factor = 0.1);
ALTER TABLE steps SET (autovacuum_analyze_scale_factor = 0.1);
ALTER TABLE engine SET (autovacuum_analyze_scale_factor = 0.1);

-- Append-only tables: vacuum as they grow, so that rows are frozen and index-only scans work.
ALTER TABLE jobs SET (autovacuum_vacuum_insert_scale_factor = 0.05);
ALTER TABLE done SET (autovacuum_vacuum_insert_scale_factor = 0.05);
ALTER TABLE attempts SET (autovacuum_vacuum_insert_scale_factor = 0.05);
ALTER TABLE events SET (autovacuum_vacuum_insert_scale_factor = 0.05);
