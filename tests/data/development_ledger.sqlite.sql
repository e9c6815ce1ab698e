-- A ledger as the last development version left it before migrations were squashed: schema version 8, one job.
-- Test data for the refusal of such ledgers.
PRAGMA application_id = 1282753385;
PRAGMA user_version = 8;
BEGIN TRANSACTION;
CREATE TABLE attempts (
        job        INTEGER NOT NULL,
        step_id    TEXT NOT NULL,
        attempt_no INTEGER NOT NULL,
        body       TEXT NOT NULL,
        PRIMARY KEY (job, step_id, attempt_no)
    ) WITHOUT ROWID
    ;
CREATE TABLE commands (job INTEGER PRIMARY KEY, body TEXT NOT NULL, doc_id TEXT, correlation_id TEXT, target TEXT);
INSERT INTO "commands" VALUES(4096000,'{"tenant_id":"acme","request_type":"OCR","input_ref":"blob://in/a.pdf","output_ref":"blob://out/a.json","payload":{"ocr":{"language":"de"}},"schema_version":"v1","workspace_ref":"file:///w/lucius/acme/j1","correlation_id":"c-j1","idempotency_hash":"hash-of-j1"}',NULL,'c-j1',NULL);
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
        job  INTEGER NOT NULL,
        seq  INTEGER NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (job, seq)
    ) WITHOUT ROWID
    ;
INSERT INTO "events" VALUES(4096000,1,'{"job_id":"j1","seq":1,"type":"JOB_ACCEPTED","at":1000}');
INSERT INTO "events" VALUES(4096000,2,'{"job_id":"j1","seq":2,"type":"STEP_DISPATCHED","at":1000,"step_id":"ocr","attempt_no":1}');
CREATE TABLE idempotency (
        tenant_id        TEXT NOT NULL,
        key              TEXT NOT NULL,
        job_id           TEXT NOT NULL,
        idempotency_hash TEXT NOT NULL,
        PRIMARY KEY (tenant_id, key)
    ) WITHOUT ROWID
    ;
INSERT INTO "idempotency" VALUES('acme','sha256:hash-of-j1','j1','hash-of-j1');
CREATE TABLE inbox (
        letter_id TEXT PRIMARY KEY,
        job_id    TEXT NOT NULL,
        at        INTEGER NOT NULL,
        body      TEXT NOT NULL
    ) WITHOUT ROWID
    ;
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
    , completed_at INTEGER, error_code TEXT);
INSERT INTO "jobs" VALUES(4096000,'j1','acme','OCR',1000,'DISPATCHING',1,NULL,'HANDOVER','ocr','{"job_id":"j1","protocol_id":"p","protocol_version":1,"protocol_digest":"20fb4034d4cfc1de8f7b9893f36ebb3cee15397cfaa307379c9122c156235814","routing":{"resolved_mode":"DEFAULT","lane":3,"routing_key_used":"acme","decision_source":"default","decision_reason":"no mode was asked for"},"status":"DISPATCHING","created_at":1000,"updated_at":1000,"version":1,"event_seq":2,"current_step_id":"ocr","active":["ocr"],"blocked":{"reason":"HANDOVER","since":1000,"step_id":"ocr","service":"ocr"}}',NULL,NULL);
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
        body            TEXT NOT NULL, tenant_id TEXT NOT NULL DEFAULT '',
        PRIMARY KEY (job, outbox_id)
    ) WITHOUT ROWID
    ;
INSERT INTO "outbox" VALUES(4096000,'j1/ocr/1',1,'PENDING','ocr',3,0,NULL,1000,'{"outbox_id":"j1/ocr/1","job_id":"j1","tenant_id":"acme","step_id":"ocr","attempt_no":1,"lease_id":"lease-1","service":"ocr","topic":"global-bus-p3","lane":3,"status":"PENDING","created_at":1000}','acme');
CREATE TABLE protocol_revision (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL);
INSERT INTO "protocol_revision" VALUES(1,0);
CREATE TABLE protocol_versions (
        request_type TEXT NOT NULL,
        version      INTEGER NOT NULL,
        status       TEXT NOT NULL,
        digest       TEXT NOT NULL,
        body         TEXT NOT NULL,
        PRIMARY KEY (request_type, version)
    );
CREATE TABLE protocols (digest TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "protocols" VALUES('20fb4034d4cfc1de8f7b9893f36ebb3cee15397cfaa307379c9122c156235814','{"protocol_id":"p","version":1,"request_type":"OCR","steps":[{"step_id":"ocr","step_type":"OCR","service":"ocr"},{"step_id":"embedding","step_type":"EMBEDDING","service":"embedding"}]}');
CREATE TABLE quarantine (
        id         INTEGER PRIMARY KEY,
        job        INTEGER NOT NULL,
        step_id    TEXT NOT NULL,
        attempt_no INTEGER NOT NULL,
        lease_id   TEXT NOT NULL,
        body       TEXT NOT NULL,
        UNIQUE (job, step_id, attempt_no, lease_id)
    );
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
CREATE TABLE sightings (
        service      TEXT NOT NULL,
        instance     TEXT NOT NULL,
        agent        TEXT NOT NULL,
        last_seen_at INTEGER NOT NULL,
        last_pull_at INTEGER,
        PRIMARY KEY (service, instance)
    ) WITHOUT ROWID
    ;
CREATE TABLE steps (
        id        INTEGER PRIMARY KEY,      -- results can be long, which a rowid table stores better
        job       INTEGER NOT NULL,
        step_id   TEXT NOT NULL,
        status    TEXT NOT NULL,
        outbox_id TEXT NOT NULL,
        body      TEXT NOT NULL,
        UNIQUE (job, step_id)
    );
INSERT INTO "steps" VALUES(1,4096000,'ocr','DISPATCHING','j1/ocr/1','{"job_id":"j1","step_id":"ocr","index":0,"kind":"task","step_type":"OCR","service":"ocr","status":"DISPATCHING","attempt":{"attempt_no":1,"lease_id":"lease-1","run_no":1,"routing":{"resolved_mode":"DEFAULT","lane":3,"routing_key_used":"acme","decision_source":"default","decision_reason":"no mode was asked for"},"outbox_id":"j1/ocr/1","created_at":1000},"tries":1,"idempotency_key":"key-ocr","created_at":1000,"updated_at":1000}');
CREATE INDEX jobs_live ON jobs (due_at) WHERE live = 1;
CREATE INDEX jobs_by_status ON jobs (status, request_type);
CREATE INDEX jobs_by_tenant ON jobs (tenant_id, status, request_type);
CREATE INDEX jobs_blocked ON jobs (blocked_on, id, blocked_service, tenant_id) WHERE blocked_on IS NOT NULL;
CREATE INDEX steps_dispatching ON steps (job, step_id, outbox_id, status) WHERE status = 'DISPATCHING';
CREATE INDEX reviews_by_status ON reviews (status, id, tenant_id, kind, signature);
CREATE INDEX reviews_by_job ON reviews (job_id);
CREATE INDEX reviews_open ON reviews (signature, kind, tenant_id, id, status) WHERE status = 'OPEN';
CREATE INDEX outbox_pending ON outbox
        (service, claimed, tenant_id, next_attempt_at, seq, lane, created_at, status)
    WHERE status = 'PENDING'
    ;
CREATE INDEX inbox_at ON inbox (at, letter_id);
CREATE INDEX commands_by_doc ON commands (doc_id) WHERE doc_id IS NOT NULL;
CREATE INDEX commands_by_correlation ON commands (correlation_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX commands_by_target ON commands (target) WHERE target IS NOT NULL;
CREATE INDEX jobs_by_completion ON jobs (completed_at) WHERE completed_at IS NOT NULL;
CREATE INDEX jobs_by_tenant_completion ON jobs (tenant_id, completed_at) WHERE completed_at IS NOT NULL;
CREATE INDEX jobs_by_error ON jobs (error_code) WHERE error_code IS NOT NULL;
COMMIT;
