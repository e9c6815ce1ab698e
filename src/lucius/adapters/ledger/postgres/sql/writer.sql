-- name: several
SELECT j.job_id, j.id, l.version AS live, d.version AS done
FROM jobs AS j LEFT JOIN live AS l ON l.id = j.id LEFT JOIN done AS d ON d.id = j.id
WHERE j.job_id = ANY ($1);

-- name: counters
SELECT name, value FROM counters WHERE name = ANY ($1);

-- name: protocol
INSERT INTO protocols (digest, body) VALUES ($1, $2) ON CONFLICT DO NOTHING;
