-- name: oldest
SELECT created_at FROM outbox WHERE status = 'PENDING' AND service = ? AND claimed = 0 AND tenant_id = ?;

-- name: oldest_ready
{oldest} AND next_attempt_at IS NULL ORDER BY seq LIMIT 1;

-- name: oldest_deferred
{oldest} AND next_attempt_at <= ? ORDER BY next_attempt_at, seq LIMIT 1;

-- name: job_by_id
SELECT commands.body, jobs.body FROM jobs JOIN commands ON commands.job = jobs.id WHERE jobs.id = ?;

-- name: of_all (filters)
SELECT id FROM jobs WHERE id < ? AND id >= ? {filters} ORDER BY id DESC LIMIT ?

-- name: of_kind (filters)
SELECT id FROM jobs WHERE status = ? AND request_type = ? AND id < ? AND id >= ? {filters} ORDER BY id DESC LIMIT ?

-- name: of_tenant (filters)
SELECT id FROM jobs
WHERE tenant_id = ? AND status = ? AND request_type = ? AND id < ? AND id >= ? {filters} ORDER BY id DESC LIMIT ?

-- name: blocked (filters)
SELECT id FROM jobs WHERE blocked_on = ? AND id < ? AND id >= ? {filters} ORDER BY id DESC LIMIT ?

-- name: by_prefix (filters)
-- A range of the index on `job_id`. The plus keeps SQLite from walking the table in page order.
SELECT id FROM jobs WHERE job_id >= ? AND job_id < ? AND +id < ? {filters} ORDER BY +id DESC LIMIT ?

-- name: where_created_after
AND created_at > ?

-- name: where_tenants (marks)
AND tenant_id IN ({marks})

-- name: where_status
AND status = ?

-- name: where_request_type
AND request_type = ?

-- name: where_blocked_services (marks)
AND blocked_service IN ({marks})

-- name: where_except_services (marks)
AND blocked_service NOT IN ({marks})
