-- name: review
SELECT body FROM reviews WHERE review_id = $1;

-- name: open
SELECT kind, count(*) AS n FROM reviews WHERE status = 'OPEN' GROUP BY kind;

-- name: of_job (filters)
-- A job has few items; they are materialised, so that the sort does not scan an index over all jobs.
WITH found AS MATERIALIZED (SELECT id, status, body FROM reviews WHERE true {filters})
SELECT id, body FROM found WHERE status = ANY($1) AND id < $2 ORDER BY id DESC LIMIT $3

-- name: of_all (filters)
SELECT found.id, found.body FROM unnest($1::text[]) AS wanted (status) CROSS JOIN LATERAL (
    SELECT id, body FROM reviews
    WHERE (status, id) < (wanted.status, $2) AND (status, id) >= (wanted.status, 0) {filters}
    ORDER BY status DESC, id DESC LIMIT $3
) AS found ORDER BY id DESC LIMIT $3

-- name: of_tenants (tenants, filters)
SELECT found.id, found.body
FROM unnest({tenants}::text[]) AS owner (tenant_id) CROSS JOIN unnest($1::text[]) AS wanted (status)
CROSS JOIN LATERAL (
    SELECT id, body FROM reviews
    WHERE (tenant_id, status, id) < (owner.tenant_id, wanted.status, $2)
    AND (tenant_id, status, id) >= (owner.tenant_id, wanted.status, 0) {filters}
    ORDER BY tenant_id DESC, status DESC, id DESC LIMIT $3
) AS found ORDER BY id DESC LIMIT $3

-- name: groups (filters)
SELECT signature, kind, n, (SELECT body FROM reviews WHERE id = newest) AS body FROM (
    SELECT signature, kind, count(*) AS n, max(id) AS newest FROM reviews WHERE true {filters}
    GROUP BY signature, kind ORDER BY count(*) DESC, signature LIMIT $1
) AS largest ORDER BY n DESC, signature

-- name: where_kind (value)
AND kind = {value}

-- name: where_status (value)
AND status = {value}

-- name: where_signature (value)
AND signature = {value}

-- name: where_job_id (value)
AND job_id = {value}

-- name: where_kinds (value)
AND kind = ANY({value}::text[])

-- name: where_tenants (value)
AND tenant_id = ANY({value}::text[])
