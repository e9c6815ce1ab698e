-- name: revision
SELECT revision FROM protocol_revision;

-- name: move
UPDATE protocol_revision SET revision = ?;

-- name: all
SELECT body FROM protocol_versions ORDER BY request_type, version;

-- name: one
SELECT body FROM protocol_versions WHERE request_type = ? AND version = ?;

-- name: put
INSERT OR REPLACE INTO protocol_versions (request_type, version, status, digest, body) VALUES (?, ?, ?, ?, ?);

-- name: delete
DELETE FROM protocol_versions WHERE request_type = ? AND version = ?;
