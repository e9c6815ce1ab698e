-- name: page (kinds, branches, limit)
WITH RECURSIVE {kinds} page AS (SELECT id FROM ({branches}) AS found ORDER BY id DESC LIMIT {limit})
SELECT id, (SELECT command FROM jobs WHERE jobs.id = page.id) AS command, coalesce(
    (SELECT body FROM live WHERE live.id = page.id), (SELECT body FROM done WHERE done.id = page.id)
) AS head
FROM page ORDER BY id DESC

-- name: live (below, floor, filters, limit)
-- Live jobs are scanned: their number is bounded by the jobs in flight.
(SELECT id FROM live WHERE id < {below} AND id >= {floor} {filters} ORDER BY id DESC LIMIT {limit})

-- name: all_done (below, floor, filters, limit)
(SELECT id FROM done WHERE id < {below} AND id >= {floor} {filters} ORDER BY id DESC LIMIT {limit})

-- name: by_prefix (first, end, filters, below, floor, limit)
(
    SELECT id FROM (SELECT id FROM jobs WHERE job_id >= {first} AND job_id < {end} {filters} OFFSET 0) AS named
    WHERE id < {below} AND id >= {floor} ORDER BY id DESC LIMIT {limit}
)

-- name: done_of_kinds (below, floor, filters, limit, wanted)
-- There are few states and request types. Each combination is a range of an index in page order; those that occur are
-- found by a loose index scan.
(
    SELECT found.id FROM kinds CROSS JOIN LATERAL (
        SELECT id FROM done
        WHERE (status, request_type, id) < (kinds.status, kinds.request_type, {below})
          AND (status, request_type, id) >= (kinds.status, kinds.request_type, {floor}) {filters}
        ORDER BY status DESC, request_type DESC, id DESC LIMIT {limit}
    ) AS found WHERE true {wanted}
)

-- name: done_of_tenants (below, floor, filters, limit, wanted)
(
    SELECT found.id FROM kinds CROSS JOIN LATERAL (
        SELECT id FROM done
        WHERE (tenant_id, status, request_type, id) < (kinds.tenant_id, kinds.status, kinds.request_type, {below})
          AND (tenant_id, status, request_type, id) >= (kinds.tenant_id, kinds.status, kinds.request_type, {floor})
          {filters}
        ORDER BY tenant_id DESC, status DESC, request_type DESC, id DESC LIMIT {limit}
    ) AS found WHERE true {wanted}
)

-- name: kinds
kinds AS (
    (SELECT status, request_type FROM done ORDER BY status, request_type LIMIT 1)
    UNION ALL
    SELECT next.* FROM kinds CROSS JOIN LATERAL (
        SELECT status, request_type FROM done WHERE (status, request_type) > (kinds.status, kinds.request_type)
        ORDER BY status, request_type LIMIT 1
    ) AS next
),

-- name: kinds_of_tenants (tenants)
-- The tenant is compared outside the lateral query: after a tenant's last row comes the next tenant's first.
kinds AS (
    SELECT first.* FROM unnest({tenants}::text[]) AS wanted (tenant_id) CROSS JOIN LATERAL (
        SELECT tenant_id, status, request_type FROM done WHERE tenant_id >= wanted.tenant_id
        ORDER BY tenant_id, status, request_type LIMIT 1
    ) AS first WHERE first.tenant_id = wanted.tenant_id
    UNION ALL
    SELECT next.* FROM kinds CROSS JOIN LATERAL (
        SELECT tenant_id, status, request_type FROM done
        WHERE (tenant_id, status, request_type) > (kinds.tenant_id, kinds.status, kinds.request_type)
        ORDER BY tenant_id, status, request_type LIMIT 1
    ) AS next WHERE next.tenant_id = kinds.tenant_id
),

-- name: live_created_after (value)
AND (SELECT created_at FROM jobs WHERE jobs.id = live.id) > {value}::bigint

-- name: done_created_after (value)
AND (SELECT created_at FROM jobs WHERE jobs.id = done.id) > {value}::bigint

-- name: kind_status (value)
AND kinds.status = {value}

-- name: kind_request_type (value)
AND kinds.request_type = {value}

-- name: tenants (value)
AND tenant_id = ANY({value}::text[])

-- name: status (value)
AND status = {value}

-- name: request_type (value)
AND request_type = {value}

-- name: is_blocked
AND blocked_on IS NOT NULL

-- name: blocked_on (value)
AND blocked_on = {value}

-- name: blocked_services (value)
AND blocked_service = ANY({value}::text[])

-- name: except_services (value)
AND blocked_service <> ALL({value}::text[])
