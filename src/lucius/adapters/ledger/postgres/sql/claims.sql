-- name: columns
job_id, outbox_id, tenant_id, step_id, attempt_no, lease_id, service, topic, lane, created_at, next_attempt_at,
claimed_at, seq

-- name: take
SELECT {columns} FROM take_1($1, $2, $3, $4::smallint[], $5::text[], $6, $7, $8);

-- name: free
o.next_attempt_at IS NULL AND o.claimed_at IS NULL AND ($4::smallint[] IS NULL OR o.lane = ANY ($4))
AND (o.held_until < $7::bigint OR o.holder = $6::bigint) AND ($5::text[] IS NULL OR o.outbox_id <> ALL ($5))

-- name: take_of_tenants
-- Like take_1, for given tenants: each is looked up in the index, and rows of other tenants are never read.
WITH waiting AS MATERIALIZED (
    SELECT t.tenant_id, t.place FROM unnest($2::text[]) WITH ORDINALITY AS t (tenant_id, place)
    WHERE EXISTS (
        SELECT FROM outbox AS o
        WHERE o.service = $1 AND o.tenant_id = t.tenant_id COLLATE "C" AND {free}
    ) ORDER BY t.place LIMIT least($3::integer, {max_tenants})
), mine AS MATERIALIZED (
    SELECT one.job, one.outbox_id, one.turn, waiting.place
    FROM waiting CROSS JOIN LATERAL (
        SELECT r.job, r.outbox_id, row_number() OVER (ORDER BY r.seq) AS turn FROM (
            SELECT o.job, o.outbox_id, o.seq FROM outbox AS o
            WHERE o.service = $1 AND o.tenant_id = waiting.tenant_id COLLATE "C" AND {free}
            ORDER BY o.seq
            LIMIT (SELECT least($3::integer, 1 + 2 * $3::integer / greatest(1, count(*))) FROM waiting)
            FOR UPDATE SKIP LOCKED
        ) AS r
    ) AS one
    ORDER BY one.turn, waiting.place LIMIT $3::integer
), held AS (
    UPDATE outbox SET holder = $6::bigint, held_until = $8::bigint FROM mine
    WHERE $8::bigint > 0 AND outbox.job = mine.job AND outbox.outbox_id = mine.outbox_id
)
SELECT {columns} FROM mine JOIN outbox AS o USING (job, outbox_id) ORDER BY mine.turn, mine.place;

-- name: deferred
SELECT {columns} FROM outbox
WHERE service = $1 AND claimed_at IS NULL AND next_attempt_at <= $2 AND ($3::smallint[] IS NULL OR lane = ANY ($3))
  AND (held_until < $4 OR holder = $5) AND ($7::text[] IS NULL OR outbox_id <> ALL ($7))
ORDER BY next_attempt_at, seq LIMIT $6;

-- name: deferred_of_tenants
-- One index lookup per tenant; rows of other tenants are not read.
SELECT {columns} FROM unnest($8::text[]) AS wanted (tenant) CROSS JOIN LATERAL (
    SELECT * FROM outbox
    WHERE tenant_id = wanted.tenant COLLATE "C" AND service = $1 AND claimed_at IS NULL AND next_attempt_at <= $2
      AND ($3::smallint[] IS NULL OR lane = ANY ($3)) AND (held_until < $4 OR holder = $5)
      AND ($7::text[] IS NULL OR outbox_id <> ALL ($7))
    ORDER BY next_attempt_at, seq LIMIT $6
) AS later
ORDER BY next_attempt_at, seq LIMIT $6;

-- name: hold_deferred
UPDATE outbox SET holder = $5, held_until = $8 WHERE (job, outbox_id) IN (
    SELECT job, outbox_id FROM outbox
    WHERE service = $1 AND claimed_at IS NULL AND next_attempt_at <= $2
      AND ($3::smallint[] IS NULL OR lane = ANY ($3)) AND (held_until < $4 OR holder = $5)
      AND ($7::text[] IS NULL OR outbox_id <> ALL ($7))
    ORDER BY next_attempt_at, seq LIMIT $6 FOR UPDATE SKIP LOCKED
) RETURNING {columns};

-- name: claimed
SELECT {columns} FROM outbox
WHERE claimed_at IS NOT NULL AND ($1::text IS NULL OR service = $1) AND ($2::smallint[] IS NULL OR lane = ANY ($2))
ORDER BY claimed_at, seq LIMIT $3;

-- name: ready_services
-- Loose index scan: jumps from service to service.
WITH RECURSIVE heads AS (
    (SELECT service, seq FROM outbox WHERE next_attempt_at IS NULL AND claimed_at IS NULL ORDER BY service, tenant_id, seq LIMIT 1)
    UNION ALL
    SELECT behind.service, behind.seq FROM heads CROSS JOIN LATERAL (
        SELECT service, seq FROM outbox
        WHERE service > heads.service AND next_attempt_at IS NULL AND claimed_at IS NULL ORDER BY service, tenant_id, seq LIMIT 1
    ) AS behind
) SELECT service, seq FROM heads;

-- name: deferred_services
WITH RECURSIVE heads AS (
    (SELECT service, seq FROM outbox WHERE next_attempt_at IS NOT NULL ORDER BY service, next_attempt_at, seq LIMIT 1)
    UNION ALL
    SELECT behind.service, behind.seq FROM heads CROSS JOIN LATERAL (
        SELECT service, seq FROM outbox
        WHERE service > heads.service AND next_attempt_at IS NOT NULL ORDER BY service, next_attempt_at, seq LIMIT 1
    ) AS behind
) SELECT service, seq FROM heads;

-- name: release
-- SKIP LOCKED: a row that is being changed has a new state soon, and its writer publishes it.
WITH mine AS MATERIALIZED (
    SELECT o.job, o.outbox_id FROM unnest($1::text[], $2::text[]) AS r (job_id, outbox_id)
    JOIN jobs ON jobs.job_id = r.job_id JOIN outbox AS o ON o.job = jobs.id AND o.outbox_id = r.outbox_id
    WHERE o.holder = $3 FOR UPDATE OF o SKIP LOCKED
)
UPDATE outbox SET holder = 0, held_until = 0 FROM mine
WHERE outbox.job = mine.job AND outbox.outbox_id = mine.outbox_id;

-- name: due
SELECT jobs.job_id FROM live JOIN jobs ON jobs.id = live.id
WHERE live.look_at <= $1 AND live.due_at <= $1 ORDER BY live.due_at, live.id LIMIT $2;

-- name: take_due
SELECT jobs.job_id FROM due_1($1, $2, $3, $4) AS due JOIN jobs ON jobs.id = due.id ORDER BY due.due_at, due.id;
