-- name: known
SELECT 1 FROM inbox WHERE message_id = ?;

-- name: pending
SELECT message_id, job_id, body, at FROM inbox WHERE at < ? AND (at, message_id) > (?, ?)
ORDER BY at, message_id LIMIT ?;

-- name: by_id
SELECT message_id, job_id, body, at FROM inbox WHERE message_id = ?;
