-- name: job
SELECT jobs.command, coalesce(live.body, done.body) AS head,
       ARRAY(SELECT body FROM steps WHERE job = jobs.id) AS steps
FROM jobs LEFT JOIN live ON live.id = jobs.id LEFT JOIN done ON done.id = jobs.id
WHERE jobs.job_id = $1;

-- name: counters
-- `OFFSET` keeps each family an index range of its own: joined, PostgreSQL would search all counters.
SELECT name, value FROM counters WHERE name = ANY ($1) AND value <> 0
UNION ALL
SELECT of_family.* FROM unnest($2::text[], $3::text[]) AS family (first, beyond) CROSS JOIN LATERAL (
    SELECT name, value FROM counters WHERE name >= first AND name < beyond AND value <> 0 OFFSET 0
) AS of_family;

-- name: ready
next_attempt_at IS NULL AND claimed_at IS NULL

-- name: later
next_attempt_at IS NOT NULL AND claimed_at IS NULL

-- name: oldest
-- The first row of each tenant's queue, by a loose index scan, and the earliest of the deferred rows. A hop
-- compares its service for equality, not the pair as greater: else PostgreSQL begins each at the first tenant.
SELECT service, least(ready.oldest, later.created_at) AS oldest, ready.tenants >= {max_tenants} AS older_possible
FROM asked CROSS JOIN LATERAL (
    WITH RECURSIVE first AS (
        (
            SELECT tenant_id, created_at, 1 AS hop FROM outbox
            WHERE {ready} AND service = asked.service ORDER BY service, tenant_id, seq LIMIT 1
        )
        UNION ALL
        SELECT next.*, first.hop + 1 FROM first CROSS JOIN LATERAL (
            SELECT tenant_id, created_at FROM outbox
            WHERE {ready} AND service = asked.service AND tenant_id > first.tenant_id
            ORDER BY service, tenant_id, seq LIMIT 1
        ) AS next WHERE first.hop < {max_tenants}
    )
    SELECT min(created_at) AS oldest, count(*) AS tenants FROM first
) AS ready LEFT JOIN LATERAL (
    SELECT created_at FROM outbox WHERE {later} AND service = asked.service AND next_attempt_at <= $1
    ORDER BY service, next_attempt_at, seq LIMIT 1
) AS later ON true
WHERE ready.tenants > 0 OR later.created_at IS NOT NULL;

-- name: oldest_of_one
WITH asked AS (SELECT $2::text COLLATE "C" AS service) {oldest};

-- name: oldest_of_all
WITH RECURSIVE are_ready AS (
    (SELECT service FROM outbox WHERE {ready} ORDER BY service, tenant_id, seq LIMIT 1)
    UNION ALL
    SELECT next.* FROM are_ready CROSS JOIN LATERAL (
        SELECT service FROM outbox WHERE {ready} AND service > are_ready.service ORDER BY service, tenant_id, seq LIMIT 1
    ) AS next
), come_later AS (
    (SELECT service FROM outbox WHERE {later} ORDER BY service, next_attempt_at, seq LIMIT 1)
    UNION ALL
    SELECT next.* FROM come_later CROSS JOIN LATERAL (
        SELECT service FROM outbox WHERE {later} AND service > come_later.service ORDER BY service, next_attempt_at, seq LIMIT 1
    ) AS next
), asked AS (
    SELECT service FROM are_ready UNION SELECT service FROM come_later
) {oldest};
