-- Rows are compared as a whole and ordered by all columns of the index, or the planner would rather walk the primary key
-- and leave out what does not match.

-- name: by_doc_id
SELECT id FROM jobs
WHERE doc_id IS NOT NULL AND (doc_id, id) < ($1, $2) AND (doc_id, id) >= ($1, $3)
ORDER BY doc_id DESC, id DESC LIMIT $4;

-- name: by_target
SELECT id FROM jobs
WHERE target IS NOT NULL AND (target, id) < ($1, $2) AND (target, id) >= ($1, $3)
ORDER BY target DESC, id DESC LIMIT $4;

-- name: by_error_code
SELECT id FROM done
WHERE error_code IS NOT NULL AND (error_code, id) < ($1, $2) AND (error_code, id) >= ($1, $3)
ORDER BY error_code DESC, id DESC LIMIT $4;

-- name: with_correlation_id
SELECT id FROM jobs
WHERE correlation_id IS NOT NULL AND (correlation_id, id) < ($1, $2) AND (correlation_id, id) >= ($1, $3)
ORDER BY correlation_id DESC, id DESC LIMIT $4;

-- name: by_correlation_id
-- A job without a correlation id of its own has its job id as that.
SELECT id FROM (
    ({with_correlation_id})
    UNION ALL
    SELECT id FROM jobs WHERE job_id = $1 AND correlation_id IS NULL AND id < $2 AND id >= $3
) AS found ORDER BY id DESC LIMIT $4;

-- name: by_completion
SELECT completed_at, id FROM done
WHERE (completed_at, id) < ($1, $2) AND completed_at > $3 ORDER BY completed_at DESC, id DESC LIMIT $4;

-- name: by_tenant_completion
SELECT completed_at, id FROM done
WHERE (tenant_id, completed_at, id) < ($5, $1, $2) AND (tenant_id, completed_at) > ($5, $3)
ORDER BY tenant_id DESC, completed_at DESC, id DESC LIMIT $4;

-- name: pick (filters)
SELECT walked.id, jobs.command, coalesce(live.body, done.body) AS head
FROM unnest($1::bigint[]) WITH ORDINALITY AS walked (id, turn)
JOIN jobs ON jobs.id = walked.id
LEFT JOIN live ON live.id = walked.id LEFT JOIN done ON done.id = walked.id
WHERE coalesce(live.id, done.id) IS NOT NULL {filters} ORDER BY walked.turn LIMIT $2

-- name: where_status (value)
AND coalesce(live.status, done.status) = {value}

-- name: where_request_type (value)
AND jobs.request_type = {value}

-- name: where_doc_id (value)
AND jobs.doc_id = {value}

-- name: where_correlation_id (value)
AND coalesce(jobs.correlation_id, jobs.job_id) = {value}

-- name: where_target (value)
AND jobs.target = {value}

-- name: where_error_code (value)
AND done.error_code = {value}

-- name: where_blocked_on (value)
AND live.blocked_on = {value}

-- name: where_tenants (value)
AND jobs.tenant_id = ANY({value}::text[])

-- name: where_blocked_services (value)
AND live.blocked_service = ANY({value}::text[])

-- name: where_except_services (value)
AND live.blocked_service <> ALL({value}::text[])

-- name: where_created_after (value)
AND jobs.created_at > {value}

-- name: where_completed_after (value)
AND done.completed_at > {value}

-- name: where_completed_before (value)
AND done.completed_at < {value}
