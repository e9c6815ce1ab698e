-- A ledger as the last development version left it before migrations were squashed: schema version 8, one job.
-- Stored functions are left out. Test data for the refusal of such ledgers; loaded into a schema of each test's own.
CREATE SCHEMA development;
CREATE TABLE development.outbox (
    job bigint NOT NULL,
    outbox_id text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    job_id text NOT NULL COLLATE pg_catalog."C",
    tenant_id text NOT NULL COLLATE pg_catalog."C",
    step_id text NOT NULL COLLATE pg_catalog."C",
    attempt_no integer NOT NULL,
    lease_id text NOT NULL COLLATE pg_catalog."C",
    service text NOT NULL COLLATE pg_catalog."C",
    topic text NOT NULL COLLATE pg_catalog."C",
    lane smallint NOT NULL,
    created_at bigint NOT NULL,
    next_attempt_at bigint,
    claimed_at bigint,
    holder bigint DEFAULT 0 NOT NULL,
    held_until bigint DEFAULT 0 NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.1');
CREATE TABLE development.attempts (
    job bigint NOT NULL,
    step_id text NOT NULL COLLATE pg_catalog."C",
    attempt_no integer NOT NULL,
    body text NOT NULL
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');
CREATE TABLE development.counters (
    name text NOT NULL COLLATE pg_catalog."C",
    value bigint NOT NULL
)
WITH (fillfactor='20', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.1');
CREATE TABLE development.done (
    id bigint NOT NULL,
    version integer NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    tenant_id text NOT NULL COLLATE pg_catalog."C",
    request_type text NOT NULL COLLATE pg_catalog."C",
    completed_at bigint NOT NULL,
    body text NOT NULL,
    error_code text COLLATE pg_catalog."C"
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');
CREATE TABLE development.door (
    id integer NOT NULL,
    open_at bigint NOT NULL,
    reopened_at bigint NOT NULL,
    CONSTRAINT door_id_check CHECK ((id = 1))
)
WITH (fillfactor='20', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');
CREATE TABLE development.engine (
    id integer NOT NULL,
    last_tick bigint NOT NULL,
    resumed_at bigint NOT NULL,
    CONSTRAINT engine_id_check CHECK ((id = 1))
)
WITH (fillfactor='20', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.1');
CREATE TABLE development.events (
    job bigint NOT NULL,
    seq integer NOT NULL,
    body text NOT NULL
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');
CREATE TABLE development.inbox (
    letter_id text NOT NULL COLLATE pg_catalog."C",
    job_id text NOT NULL COLLATE pg_catalog."C",
    at bigint NOT NULL,
    body text NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');
CREATE TABLE development.jobs (
    id bigint NOT NULL,
    job_id text NOT NULL COLLATE pg_catalog."C",
    tenant_id text NOT NULL COLLATE pg_catalog."C",
    request_type text NOT NULL COLLATE pg_catalog."C",
    created_at bigint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    hash text NOT NULL COLLATE pg_catalog."C",
    command text NOT NULL,
    doc_id text COLLATE pg_catalog."C",
    correlation_id text COLLATE pg_catalog."C",
    target text COLLATE pg_catalog."C"
)
WITH (autovacuum_vacuum_insert_scale_factor='0.05');
CREATE TABLE development.live (
    id bigint NOT NULL,
    version integer NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    tenant_id text NOT NULL COLLATE pg_catalog."C",
    request_type text NOT NULL COLLATE pg_catalog."C",
    due_at bigint,
    look_at bigint,
    blocked_on text COLLATE pg_catalog."C",
    blocked_service text COLLATE pg_catalog."C",
    holder bigint DEFAULT 0 NOT NULL,
    held_until bigint DEFAULT 0 NOT NULL,
    body text NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.1');
CREATE TABLE development.protocol_revision (
    id integer NOT NULL,
    revision bigint NOT NULL,
    CONSTRAINT protocol_revision_id_check CHECK ((id = 1))
);
CREATE TABLE development.protocol_versions (
    request_type text NOT NULL COLLATE pg_catalog."C",
    version integer NOT NULL,
    status text NOT NULL COLLATE pg_catalog."C",
    digest text NOT NULL COLLATE pg_catalog."C",
    body text NOT NULL
);
CREATE TABLE development.protocols (
    digest text NOT NULL COLLATE pg_catalog."C",
    body text NOT NULL
);
CREATE TABLE development.quarantine (
    id bigint NOT NULL,
    job bigint NOT NULL,
    step_id text NOT NULL COLLATE pg_catalog."C",
    attempt_no integer NOT NULL,
    lease_id text NOT NULL COLLATE pg_catalog."C",
    body text NOT NULL
);
ALTER TABLE development.quarantine ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME development.quarantine_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE development.reviews (
    id bigint NOT NULL,
    review_id text NOT NULL COLLATE pg_catalog."C",
    job_id text NOT NULL COLLATE pg_catalog."C",
    tenant_id text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL COLLATE pg_catalog."C",
    status text NOT NULL COLLATE pg_catalog."C",
    signature text NOT NULL COLLATE pg_catalog."C",
    body text NOT NULL
);
ALTER TABLE development.reviews ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME development.reviews_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE development.schema_version (
    version integer NOT NULL,
    compatible_with integer NOT NULL
);
CREATE TABLE development.secrets (
    name text NOT NULL COLLATE pg_catalog."C",
    value text NOT NULL
);
CREATE TABLE development.sightings (
    service text NOT NULL COLLATE pg_catalog."C",
    instance text NOT NULL COLLATE pg_catalog."C",
    agent text NOT NULL,
    last_seen_at bigint NOT NULL,
    last_pull_at bigint
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0');
CREATE TABLE development.steps (
    job bigint NOT NULL,
    step_id text NOT NULL COLLATE pg_catalog."C",
    status text NOT NULL COLLATE pg_catalog."C",
    outbox_id text NOT NULL COLLATE pg_catalog."C",
    body text NOT NULL
)
WITH (fillfactor='70', autovacuum_vacuum_scale_factor='0.05', autovacuum_vacuum_threshold='500', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0.1');
INSERT INTO development.door VALUES (1, 0, 0);
INSERT INTO development.engine VALUES (1, 0, 0);
INSERT INTO development.events VALUES (1048674061, 1, '[{"job_id":"","seq":1,"type":"JOB_ACCEPTED","at":1000},{"job_id":"","seq":2,"type":"STEP_DISPATCHED","at":1000,"step_id":"ocr","attempt_no":1}]');
INSERT INTO development.jobs VALUES (1048674061, 'j1', 'acme', 'OCR', 1000, 'sha256:hash-of-j1', 'hash-of-j1', '{"tenant_id":"acme","request_type":"OCR","input_ref":"blob://in/a.pdf","output_ref":"blob://out/a.json","payload":{"ocr":{"language":"de"}},"schema_version":"v1","workspace_ref":"file:///w/lucius/acme/j1","correlation_id":"c-j1","idempotency_hash":"hash-of-j1"}', NULL, 'c-j1', NULL);
INSERT INTO development.live VALUES (1048674061, 1, 'DISPATCHING', 'acme', 'OCR', NULL, NULL, 'HANDOVER', 'ocr', 0, 0, '{"job_id":"j1","protocol_id":"p","protocol_version":1,"protocol_digest":"20fb4034d4cfc1de8f7b9893f36ebb3cee15397cfaa307379c9122c156235814","routing":{"resolved_mode":"DEFAULT","lane":3,"routing_key_used":"acme","decision_source":"default","decision_reason":"no mode was asked for"},"status":"DISPATCHING","created_at":1000,"updated_at":1000,"version":1,"event_seq":2,"current_step_id":"ocr","active":["ocr"],"blocked":{"reason":"HANDOVER","since":1000,"step_id":"ocr","service":"ocr"}}');
INSERT INTO development.outbox VALUES (1048674061, 'j1/ocr/1', 1048591227, 'j1', 'acme', 'ocr', 1, 'lease-1', 'ocr', 'global-bus-p3', 3, 1000, NULL, NULL, 0, 0);
INSERT INTO development.protocol_revision VALUES (1, 0);
INSERT INTO development.protocols VALUES ('20fb4034d4cfc1de8f7b9893f36ebb3cee15397cfaa307379c9122c156235814', '{"protocol_id":"p","version":1,"request_type":"OCR","steps":[{"step_id":"ocr","step_type":"OCR","service":"ocr"},{"step_id":"embedding","step_type":"EMBEDDING","service":"embedding"}]}');
INSERT INTO development.schema_version VALUES (1, 1);
INSERT INTO development.schema_version VALUES (2, 1);
INSERT INTO development.schema_version VALUES (3, 1);
INSERT INTO development.schema_version VALUES (4, 1);
INSERT INTO development.schema_version VALUES (5, 1);
INSERT INTO development.schema_version VALUES (6, 1);
INSERT INTO development.schema_version VALUES (7, 1);
INSERT INTO development.schema_version VALUES (8, 1);
INSERT INTO development.steps VALUES (1048674061, 'ocr', 'DISPATCHING', 'j1/ocr/1', '{"job_id":"j1","step_id":"ocr","index":0,"kind":"task","step_type":"OCR","service":"ocr","status":"DISPATCHING","attempt":{"attempt_no":1,"lease_id":"lease-1","run_no":1,"routing":{"resolved_mode":"DEFAULT","lane":3,"routing_key_used":"acme","decision_source":"default","decision_reason":"no mode was asked for"},"outbox_id":"j1/ocr/1","created_at":1000},"tries":1,"idempotency_key":"key-ocr","created_at":1000,"updated_at":1000}');
SELECT pg_catalog.setval('development.quarantine_id_seq', 1, false);
SELECT pg_catalog.setval('development.reviews_id_seq', 1, false);
ALTER TABLE ONLY development.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (job, step_id, attempt_no);
ALTER TABLE ONLY development.counters
    ADD CONSTRAINT counters_pkey PRIMARY KEY (name);
ALTER TABLE ONLY development.done
    ADD CONSTRAINT done_pkey PRIMARY KEY (id);
ALTER TABLE ONLY development.door
    ADD CONSTRAINT door_pkey PRIMARY KEY (id);
ALTER TABLE ONLY development.engine
    ADD CONSTRAINT engine_pkey PRIMARY KEY (id);
ALTER TABLE ONLY development.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (job, seq);
ALTER TABLE ONLY development.inbox
    ADD CONSTRAINT inbox_pkey PRIMARY KEY (letter_id);
ALTER TABLE ONLY development.jobs
    ADD CONSTRAINT jobs_job_id_key UNIQUE (job_id);
ALTER TABLE ONLY development.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY development.jobs
    ADD CONSTRAINT jobs_tenant_id_key_key UNIQUE (tenant_id, key);
ALTER TABLE ONLY development.live
    ADD CONSTRAINT live_pkey PRIMARY KEY (id);
ALTER TABLE ONLY development.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (job, outbox_id);
ALTER TABLE ONLY development.protocol_revision
    ADD CONSTRAINT protocol_revision_pkey PRIMARY KEY (id);
ALTER TABLE ONLY development.protocol_versions
    ADD CONSTRAINT protocol_versions_pkey PRIMARY KEY (request_type, version);
ALTER TABLE ONLY development.protocols
    ADD CONSTRAINT protocols_pkey PRIMARY KEY (digest);
ALTER TABLE ONLY development.quarantine
    ADD CONSTRAINT quarantine_job_step_id_attempt_no_lease_id_key UNIQUE (job, step_id, attempt_no, lease_id);
ALTER TABLE ONLY development.quarantine
    ADD CONSTRAINT quarantine_pkey PRIMARY KEY (id);
ALTER TABLE ONLY development.reviews
    ADD CONSTRAINT reviews_pkey PRIMARY KEY (id);
ALTER TABLE ONLY development.reviews
    ADD CONSTRAINT reviews_review_id_key UNIQUE (review_id);
ALTER TABLE ONLY development.schema_version
    ADD CONSTRAINT schema_version_pkey PRIMARY KEY (version);
ALTER TABLE ONLY development.secrets
    ADD CONSTRAINT secrets_pkey PRIMARY KEY (name);
ALTER TABLE ONLY development.sightings
    ADD CONSTRAINT sightings_pkey PRIMARY KEY (service, instance);
ALTER TABLE ONLY development.steps
    ADD CONSTRAINT steps_pkey PRIMARY KEY (job, step_id);
CREATE INDEX done_by_completion ON development.done USING btree (completed_at, id);
CREATE INDEX done_by_error ON development.done USING btree (error_code, id) WHERE (error_code IS NOT NULL);
CREATE INDEX done_by_status ON development.done USING btree (status, request_type, id);
CREATE INDEX done_by_tenant ON development.done USING btree (tenant_id, status, request_type, id);
CREATE INDEX done_by_tenant_completion ON development.done USING btree (tenant_id, completed_at, id);
CREATE INDEX inbox_at ON development.inbox USING btree (at, letter_id);
CREATE INDEX jobs_by_correlation ON development.jobs USING btree (correlation_id, id) WHERE (correlation_id IS NOT NULL);
CREATE INDEX jobs_by_doc ON development.jobs USING btree (doc_id, id) WHERE (doc_id IS NOT NULL);
CREATE INDEX jobs_by_target ON development.jobs USING btree (target, id) WHERE (target IS NOT NULL);
CREATE INDEX live_look_at ON development.live USING btree (look_at) WHERE (look_at IS NOT NULL);
CREATE INDEX outbox_claimed ON development.outbox USING btree (claimed_at, seq) WHERE (claimed_at IS NOT NULL);
CREATE INDEX outbox_later ON development.outbox USING btree (service, next_attempt_at, seq) WHERE (next_attempt_at IS NOT NULL);
CREATE INDEX outbox_later_of_tenant ON development.outbox USING btree (tenant_id, service, next_attempt_at, seq) WHERE (next_attempt_at IS NOT NULL);
CREATE INDEX outbox_ready ON development.outbox USING btree (service, tenant_id, seq, lane) WHERE ((next_attempt_at IS NULL) AND (claimed_at IS NULL));
CREATE INDEX reviews_by_job ON development.reviews USING btree (job_id);
CREATE INDEX reviews_by_status ON development.reviews USING btree (status, id);
CREATE INDEX reviews_by_tenant ON development.reviews USING btree (tenant_id, status, id);
CREATE INDEX reviews_open ON development.reviews USING btree (signature, kind, tenant_id, id) WHERE (status = 'OPEN'::text);
