-- name: put
INSERT INTO inbox (message_id, job_id, at, body) VALUES (?, ?, ?, ?);

-- name: delete
DELETE FROM inbox WHERE message_id = ?;
