-- name: due
SELECT job_id FROM jobs WHERE live = 1 AND due_at <= ? ORDER BY due_at, id LIMIT ?;

-- name: without_deadline
SELECT id, EXISTS (SELECT 1 FROM outbox WHERE job = jobs.id AND status = 'PENDING')
FROM jobs WHERE live = 1 AND due_at IS NULL AND id > ? ORDER BY id LIMIT {drift_batch_rows};

-- name: dispatching
SELECT job, step_id,
       EXISTS (SELECT 1 FROM outbox WHERE job = steps.job AND outbox_id = steps.outbox_id AND status = 'PENDING')
FROM steps WHERE status = 'DISPATCHING' AND (job, step_id) > (?, ?) ORDER BY job, step_id LIMIT {drift_batch_rows};

-- name: live_job_id
SELECT job_id FROM jobs WHERE id = ? AND live = 1;
