-- name: candidates
-- Reads along the primary key: no job ends before it is accepted. Computes lengths without fetching long values.
SELECT d.id, d.in_review, d.unsent,
       octet_length(d.body) + (SELECT octet_length(command) FROM jobs WHERE id = d.id)
       + (SELECT coalesce(sum(octet_length(body)), 0) FROM steps WHERE job = d.id)
       + (SELECT coalesce(sum(octet_length(body)), 0) FROM attempts WHERE job = d.id)
       + (SELECT coalesce(sum(octet_length(body)), 0) FROM events WHERE job = d.id)
       + (SELECT coalesce(sum(octet_length(body)), 0) FROM quarantine WHERE job = d.id) AS size
FROM (
    SELECT done.id, done.body,
           EXISTS (SELECT 1 FROM outbox WHERE job = done.id) AS unsent,
           EXISTS (
               SELECT 1 FROM reviews WHERE status = 'OPEN' AND job_id = (SELECT job_id FROM jobs WHERE id = done.id)
           ) AS in_review
    FROM done
    WHERE id > $1 AND id < $2 AND completed_at < $3
      AND ($4::text IS NULL OR tenant_id = $4) AND ($5::text IS NULL OR status = $5)
    ORDER BY id LIMIT $6
) AS d
ORDER BY d.id;

-- name: whole
SELECT jobs.job_id, jobs.command, done.body,
       ARRAY(SELECT body FROM steps WHERE job = jobs.id ORDER BY step_id) AS steps,
       ARRAY(SELECT body FROM attempts WHERE job = jobs.id ORDER BY step_id, attempt_no) AS attempts,
       ARRAY(SELECT body FROM events WHERE job = jobs.id ORDER BY seq) AS events,
       ARRAY(SELECT body FROM quarantine WHERE job = jobs.id ORDER BY id) AS quarantined,
       ARRAY(SELECT body FROM reviews WHERE job_id = jobs.job_id ORDER BY id) AS reviews
FROM unnest($1::bigint[]) AS wanted (id) JOIN jobs ON jobs.id = wanted.id JOIN done ON done.id = wanted.id
ORDER BY jobs.id;

-- name: protocols
SELECT digest, body FROM protocols WHERE digest = ANY ($1);

-- name: lock
-- A job that is being changed is skipped: it has moved on.
SELECT done.id, jobs.job_id FROM unnest($1::text[], $2::integer[]) AS archived (job_id, version)
JOIN jobs ON jobs.job_id = archived.job_id JOIN done ON done.id = jobs.id AND done.version = archived.version
FOR UPDATE OF done SKIP LOCKED;

-- name: seen_dead_soon
-- A machine that vanishes keeps the lock until the server notices.
SET tcp_keepalives_idle = 30; SET tcp_keepalives_interval = 10; SET tcp_keepalives_count = 3

-- name: still_there
SELECT job_id FROM jobs WHERE job_id = ANY ($1);

-- name: try_lock
SELECT pg_try_advisory_lock($1);

-- name: delete_steps
DELETE FROM steps WHERE job = ANY ($1);

-- name: delete_attempts
DELETE FROM attempts WHERE job = ANY ($1);

-- name: delete_events
DELETE FROM events WHERE job = ANY ($1);

-- name: delete_quarantined
DELETE FROM quarantine WHERE job = ANY ($1);

-- name: delete_reviews
DELETE FROM reviews WHERE job_id = ANY ($1);

-- name: delete_heads
DELETE FROM done WHERE id = ANY ($1);

-- name: delete_jobs
DELETE FROM jobs WHERE id = ANY ($1);
