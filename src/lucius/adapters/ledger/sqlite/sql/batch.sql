-- name: insert_job
INSERT INTO jobs (id, job_id, tenant_id, request_type, created_at, body,
                  status, live, due_at, blocked_on, blocked_service, completed_at, error_code)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: update_job (columns)
UPDATE jobs SET {columns} WHERE id = ?

-- name: find_key
SELECT job_id, idempotency_hash FROM idempotency WHERE tenant_id = ? AND key = ?;

-- name: insert_command
INSERT INTO commands (job, body, doc_id, correlation_id, target) VALUES (?, ?, ?, ?, ?);

-- name: insert_key
INSERT INTO idempotency (tenant_id, key, job_id, idempotency_hash) VALUES (?, ?, ?, ?);

-- name: insert_protocol
INSERT OR IGNORE INTO protocols (digest, body) VALUES (?, ?);

-- name: put_step
INSERT INTO steps (job, step_id, status, outbox_id, body) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (job, step_id) DO UPDATE
SET status = excluded.status, outbox_id = excluded.outbox_id, body = excluded.body;

-- name: put_attempt
-- A timed-out attempt can still succeed (rule 3), so its row in the history may be updated once more.
INSERT OR REPLACE INTO attempts (job, step_id, attempt_no, body) VALUES (?, ?, ?, ?);

-- name: put_outbox
-- A settled row never changes.
INSERT INTO outbox
    (job, outbox_id, seq, status, service, tenant_id, lane, claimed, next_attempt_at, created_at, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (job, outbox_id) DO UPDATE
SET status = excluded.status, claimed = excluded.claimed, next_attempt_at = excluded.next_attempt_at,
    body = excluded.body
WHERE status = 'PENDING';

-- name: insert_event
INSERT INTO events (job, seq, body) VALUES (?, ?, ?);

-- name: insert_quarantined
-- The same late success may be sent twice; keep the first.
INSERT INTO quarantine (job, step_id, attempt_no, lease_id, body) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING;

-- name: insert_review
-- A new item is inserted once: a repeated late success must not reopen a closed review.
INSERT INTO reviews (review_id, job_id, tenant_id, kind, status, signature, body) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (review_id) DO NOTHING;

-- name: put_review
INSERT INTO reviews (review_id, job_id, tenant_id, kind, status, signature, body) VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (review_id) DO UPDATE
SET kind = excluded.kind, status = excluded.status, signature = excluded.signature, body = excluded.body;

-- name: put_counter
INSERT INTO counters (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: delete_counter
DELETE FROM counters WHERE name = ?;
