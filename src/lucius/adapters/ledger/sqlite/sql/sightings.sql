-- name: put
INSERT INTO sightings (service, instance, agent, last_seen_at, last_pull_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (service, instance) DO UPDATE SET
    agent = CASE WHEN excluded.agent = '' THEN agent ELSE excluded.agent END,
    last_seen_at = max(last_seen_at, excluded.last_seen_at),
    last_pull_at = max(coalesce(last_pull_at, excluded.last_pull_at), coalesce(excluded.last_pull_at, last_pull_at));

-- name: forget
DELETE FROM sightings WHERE service = ? AND last_seen_at < ? AND (
    last_pull_at IS NULL OR EXISTS (
        SELECT 1 FROM sightings AS other WHERE other.service = sightings.service
        AND other.last_pull_at > sightings.last_pull_at
    )
);

-- name: forget_services
DELETE FROM sightings WHERE service IN (
    SELECT service FROM sightings GROUP BY service HAVING max(last_seen_at) < ?
) AND service NOT IN (SELECT value FROM json_each(?));

-- name: ranked
-- An instance's rank is its place among those of its service seen last; the one that pulled last has rank 1 too.
SELECT *, CASE
    WHEN last_pull_at IS NOT NULL
    AND row_number() OVER (PARTITION BY service ORDER BY last_pull_at DESC, instance) = 1 THEN 1
    ELSE row_number() OVER (PARTITION BY service ORDER BY last_seen_at DESC, instance)
END AS rank
FROM sightings;

-- name: cap
DELETE FROM sightings WHERE service = ?1 AND instance IN (
    SELECT instance FROM ({ranked} WHERE service = ?1) WHERE rank > {max_instances}
);

-- name: all
SELECT service, instance, agent, last_seen_at, last_pull_at FROM ({ranked})
WHERE rank <= {max_instances} ORDER BY rank, last_seen_at DESC LIMIT {max_sightings};

-- name: of_service
SELECT service, instance, agent, last_seen_at, last_pull_at FROM ({ranked} WHERE service = ?)
WHERE rank <= {max_instances} ORDER BY rank, last_seen_at DESC LIMIT {max_sightings};

-- name: working
SELECT json_extract(steps.body, '$.service'), count(*)
FROM (SELECT id FROM jobs WHERE live = 1 LIMIT ?) AS live JOIN steps ON steps.job = live.id
WHERE steps.status = 'PROCESSING' GROUP BY 1;
