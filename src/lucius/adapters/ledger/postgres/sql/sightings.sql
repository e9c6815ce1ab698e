-- name: put
-- Ordered by key, so that two replicas never deadlock. Sightings may be lost in a crash.
INSERT INTO sightings AS old (service, instance, agent, last_seen_at, last_pull_at)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[]) AS new ORDER BY 1, 2
ON CONFLICT (service, instance) DO UPDATE SET
    agent = CASE WHEN excluded.agent = '' THEN old.agent ELSE excluded.agent END,
    last_seen_at = greatest(old.last_seen_at, excluded.last_seen_at),
    last_pull_at = greatest(old.last_pull_at, excluded.last_pull_at);

-- name: forget
DELETE FROM sightings WHERE ctid = ANY (ARRAY(
    SELECT old.ctid FROM sightings AS old
    WHERE old.service = ANY ($1::text[]) AND old.last_seen_at < $2 AND (
        old.last_pull_at IS NULL OR EXISTS (
            SELECT FROM sightings AS other
            WHERE other.service = old.service AND other.last_pull_at > old.last_pull_at
        )
    )
    FOR UPDATE SKIP LOCKED
));

-- name: forget_services
DELETE FROM sightings WHERE ctid = ANY (ARRAY(
    SELECT old.ctid FROM sightings AS old
    WHERE old.last_seen_at < $1 AND old.service <> ALL ($2::text[]) AND NOT EXISTS (
        SELECT FROM sightings AS other WHERE other.service = old.service AND other.last_seen_at >= $1
    )
    FOR UPDATE SKIP LOCKED
));

-- name: ranked
-- An instance's rank is its place among those of its service seen last; the one that pulled last has rank 1 too.
SELECT *, CASE
    WHEN last_pull_at IS NOT NULL
    AND row_number() OVER (PARTITION BY service ORDER BY last_pull_at DESC NULLS LAST, instance) = 1 THEN 1
    ELSE row_number() OVER (PARTITION BY service ORDER BY last_seen_at DESC, instance)
END AS rank
FROM sightings;

-- name: cap
DELETE FROM sightings WHERE ctid = ANY (ARRAY(
    SELECT old.ctid FROM sightings AS old
    WHERE (old.service, old.instance) IN (
        SELECT service, instance FROM ({ranked} WHERE service = ANY ($1::text[])) AS ranked
        WHERE rank > {max_instances}
    )
    FOR UPDATE SKIP LOCKED
));

-- name: all
SELECT service, instance, agent, last_seen_at, last_pull_at
FROM ({ranked} WHERE $1::text IS NULL OR service = $1) AS ranked
WHERE rank <= {max_instances} ORDER BY rank, last_seen_at DESC LIMIT {max_sightings};

-- name: readable_step
-- JSON functions fail on an escaped NUL. Escaped backslashes are removed first, so that the second half of one is not
-- taken for the start of `\u0000`. The result is for lookups, not for display.
(CASE
    WHEN strpos(steps.body, '\u0000') > 0 THEN replace(replace(steps.body, '\\', ''), '\u0000', '') ELSE steps.body
END)::json

-- name: working
SELECT {readable_step} ->> 'service' AS service, count(*) AS working
FROM (SELECT id FROM live LIMIT $1) AS counted JOIN steps ON steps.job = counted.id
WHERE steps.status = 'PROCESSING' GROUP BY 1;
