-- name: of_job
job = (SELECT id FROM jobs WHERE job_id = $1)

-- name: attempts
SELECT body FROM attempts WHERE {of_job};

-- name: stored_attempts
SELECT step_id, attempt_no, body FROM attempts
WHERE {of_job} AND (step_id, attempt_no) > ($2, $3) ORDER BY step_id, attempt_no LIMIT $4;

-- name: quarantined
SELECT body FROM quarantine WHERE {of_job} ORDER BY id;

-- name: events
-- Starts at the row that contains the place: rows are keyed by their first event's number.
SELECT seq, body FROM events
WHERE {of_job}
AND seq >= coalesce(
    (SELECT seq FROM events WHERE {of_job} AND seq <= $2::bigint ORDER BY seq DESC LIMIT 1), -2147483648
)
ORDER BY seq LIMIT $3;
