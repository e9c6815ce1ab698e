-- name: job
SELECT jobs.id, commands.body, jobs.body FROM jobs JOIN commands ON commands.job = jobs.id WHERE jobs.job_id = ?;

-- name: ready
SELECT DISTINCT service, tenant_id, lane, 0 FROM outbox
WHERE status = 'PENDING' AND claimed = 0 AND next_attempt_at IS NULL;

-- name: later
SELECT service, tenant_id, lane, min(next_attempt_at) FROM outbox
WHERE status = 'PENDING' AND claimed = 0 AND next_attempt_at IS NOT NULL GROUP BY service, tenant_id, lane;

-- name: stored_protocols
SELECT digest FROM protocols;

-- name: protocol
SELECT body FROM protocols WHERE digest = ?;

-- name: counters
SELECT name, value FROM counters;

-- name: last_id
SELECT max(id) FROM jobs;

-- name: last_seq
SELECT max(seq) FROM outbox WHERE status = 'PENDING';

-- name: steps
SELECT body FROM steps WHERE job = ?;

-- name: step
SELECT body FROM steps WHERE job = ? AND step_id = ?;

-- name: next_request_type
SELECT min(request_type) FROM jobs WHERE status = ? AND request_type > ?;

-- name: next_service
SELECT min(service) FROM outbox WHERE status = 'PENDING' AND service > ?;
