-- name: revision
SELECT revision FROM protocol_revision;

-- name: move
UPDATE protocol_revision SET revision = revision + 1 WHERE revision = $1 RETURNING revision;

-- name: all
-- In one statement, so that the revision is that of these versions.
SELECT revision, body FROM protocol_revision LEFT JOIN protocol_versions ON true ORDER BY request_type, version;

-- name: one
SELECT body FROM protocol_versions WHERE request_type = $1 AND version = $2;

-- name: put
INSERT INTO protocol_versions (request_type, version, status, digest, body) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (request_type, version) DO UPDATE
SET status = excluded.status, digest = excluded.digest, body = excluded.body;

-- name: delete
DELETE FROM protocol_versions WHERE request_type = $1 AND version = $2;
