-- name: by_correlation_id
SELECT job FROM commands WHERE correlation_id = ? AND job < ? AND job >= ? ORDER BY job DESC LIMIT ?;

-- name: by_doc_id
SELECT job FROM commands WHERE doc_id = ? AND job < ? AND job >= ? ORDER BY job DESC LIMIT ?;

-- name: by_target
SELECT job FROM commands WHERE target = ? AND job < ? AND job >= ? ORDER BY job DESC LIMIT ?;

-- name: by_job_id
-- A job without a correlation id of its own has its job id as that.
SELECT id FROM jobs JOIN commands ON commands.job = jobs.id
WHERE job_id = ? AND correlation_id IS NULL AND id < ? AND id >= ?;

-- name: by_error
SELECT id FROM jobs WHERE error_code = ? AND id < ? AND id >= ? ORDER BY id DESC LIMIT ?;

-- name: by_completion
SELECT completed_at, id FROM jobs
WHERE completed_at <= ? AND completed_at > ? AND (completed_at < ? OR id < ?)
ORDER BY completed_at DESC, id DESC LIMIT ?;

-- name: by_tenant_completion
SELECT completed_at, id FROM jobs
WHERE tenant_id = ? AND completed_at <= ? AND completed_at > ? AND (completed_at < ? OR id < ?)
ORDER BY completed_at DESC, id DESC LIMIT ?;

-- name: pick (marks, filters)
-- By primary key alone: statistics may make the planner prefer an index of a filter, which holds all jobs of a tenant.
SELECT jobs.id FROM jobs NOT INDEXED CROSS JOIN commands NOT INDEXED ON commands.job = jobs.id
WHERE jobs.id IN ({marks}) {filters}

-- name: load
SELECT commands.body, jobs.body FROM jobs JOIN commands ON commands.job = jobs.id WHERE jobs.id = ?;

-- name: where_status
AND jobs.status = ?

-- name: where_request_type
AND jobs.request_type = ?

-- name: where_doc_id
AND commands.doc_id = ?

-- name: where_correlation_id
AND coalesce(commands.correlation_id, jobs.job_id) = ?

-- name: where_target
AND commands.target = ?

-- name: where_error_code
AND jobs.error_code = ?

-- name: where_blocked_on
AND jobs.blocked_on = ?

-- name: where_tenants (marks)
AND jobs.tenant_id IN ({marks})

-- name: where_blocked_services (marks)
AND jobs.blocked_service IN ({marks})

-- name: where_except_services (marks)
AND jobs.blocked_service NOT IN ({marks})

-- name: where_created_after
AND jobs.created_at > ?

-- name: where_completed
AND jobs.completed_at > ? AND jobs.completed_at < ?
