-- name: of_job
job = (SELECT id FROM jobs WHERE job_id = ?)

-- name: events
SELECT body FROM events WHERE {of_job} AND seq > ? ORDER BY seq LIMIT ?;

-- name: stored_events
SELECT seq, body FROM events WHERE {of_job} ORDER BY seq LIMIT ?;

-- name: stored_events_after
SELECT seq, body FROM events WHERE {of_job} AND seq > ? ORDER BY seq LIMIT ?;

-- name: stored_attempts
SELECT step_id, attempt_no, body FROM attempts WHERE {of_job} ORDER BY step_id, attempt_no LIMIT ?;

-- name: stored_attempts_after
SELECT step_id, attempt_no, body FROM attempts
WHERE {of_job} AND (step_id, attempt_no) > (?, ?) ORDER BY step_id, attempt_no LIMIT ?;

-- name: attempts
SELECT body FROM attempts WHERE {of_job};

-- name: quarantined
SELECT id, body FROM quarantine WHERE {of_job};
