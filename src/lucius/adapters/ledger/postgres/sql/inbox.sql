-- name: put
INSERT INTO inbox (message_id, job_id, at, body)
SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
ON CONFLICT DO NOTHING RETURNING message_id;

-- name: delete
DELETE FROM inbox WHERE message_id = ANY ($1);

-- name: delete_lazily
WITH soon AS (SELECT set_config('synchronous_commit', 'off', true))
DELETE FROM inbox USING soon WHERE message_id = ANY ($1);

-- name: pending
SELECT message_id, job_id, body, at FROM inbox WHERE at < $1 AND (at, message_id) > ($2, $3)
ORDER BY at, message_id LIMIT $4;

-- name: get_many
SELECT message_id, job_id, body, at FROM inbox WHERE message_id = ANY ($1);
