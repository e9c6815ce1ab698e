-- name: keep
INSERT INTO secrets (name, value) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: secret
SELECT value FROM secrets WHERE name = $1;
