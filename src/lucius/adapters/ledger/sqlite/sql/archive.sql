-- name: next (filters)
-- Walks the primary key up to the cut-off: no job ends before it is accepted. Bodies are read as bytes, because
-- other programs may have written something that is not text.
SELECT jobs.id, jobs.job_id, CAST(commands.body AS BLOB), CAST(jobs.body AS BLOB),
       EXISTS (SELECT 1 FROM reviews WHERE job_id = jobs.job_id AND status = 'OPEN'),
       EXISTS (SELECT 1 FROM outbox WHERE job = jobs.id AND status = 'PENDING')
FROM jobs JOIN commands ON commands.job = jobs.id
WHERE jobs.id > ? AND jobs.id < ? AND jobs.live = 0 {filters} ORDER BY jobs.id LIMIT 1

-- name: where_tenant
AND jobs.tenant_id = ?

-- name: where_status
AND jobs.status = ?

-- name: steps
SELECT CAST(body AS BLOB) FROM steps WHERE job = ? ORDER BY id;

-- name: attempts
SELECT CAST(body AS BLOB) FROM attempts WHERE job = ? ORDER BY step_id, attempt_no;

-- name: events
SELECT CAST(body AS BLOB) FROM events WHERE job = ? ORDER BY seq;

-- name: quarantined
SELECT CAST(body AS BLOB) FROM quarantine WHERE job = ? ORDER BY id;

-- name: reviews
SELECT CAST(body AS BLOB) FROM reviews WHERE job_id = ? ORDER BY id;

-- name: protocol
SELECT CAST(body AS BLOB) FROM protocols WHERE digest = ?;

-- name: standing
SELECT jobs.id, jobs.live, jobs.tenant_id, CAST(commands.body AS BLOB), CAST(jobs.body AS BLOB)
FROM jobs JOIN commands ON commands.job = jobs.id WHERE jobs.job_id = ?;

-- name: delete_steps
DELETE FROM steps WHERE job = ?;

-- name: delete_attempts
DELETE FROM attempts WHERE job = ?;

-- name: delete_outbox
DELETE FROM outbox WHERE job = ?;

-- name: delete_events
DELETE FROM events WHERE job = ?;

-- name: delete_quarantined
DELETE FROM quarantine WHERE job = ?;

-- name: delete_command
DELETE FROM commands WHERE job = ?;

-- name: delete_reviews
DELETE FROM reviews WHERE job_id = ?;

-- name: delete_key
DELETE FROM idempotency WHERE tenant_id = ? AND key = ? AND job_id = ?;

-- name: delete_job
DELETE FROM jobs WHERE id = ?;
