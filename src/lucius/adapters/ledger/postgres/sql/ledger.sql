-- name: drifted
-- One snapshot, so a job that is being changed can't look lost. The last column says how far the window reaches.
WITH seen AS MATERIALIZED (
    SELECT id, due_at FROM live WHERE id > $1 ORDER BY id LIMIT {drift_batch_jobs}
), reach AS (
    SELECT CASE WHEN count(*) = {drift_batch_jobs} THEN max(id) ELSE 0 END AS id FROM seen
), looked_at AS (
    SELECT id, due_at IS NULL AND (SELECT job FROM outbox WHERE job = seen.id LIMIT 1) IS NULL AS idle, ARRAY(
        SELECT step_id FROM steps WHERE steps.job = seen.id AND status = 'DISPATCHING' AND (
            SELECT job FROM outbox WHERE outbox.job = steps.job AND outbox.outbox_id = steps.outbox_id
        ) IS NULL ORDER BY step_id
    ) AS missing FROM seen
), lost AS (
    SELECT id, missing FROM looked_at WHERE idle OR cardinality(missing) > 0 ORDER BY id LIMIT $2
)
SELECT lost.id, (SELECT job_id FROM jobs WHERE jobs.id = lost.id) AS job_id, missing, reach.id AS reach
FROM reach LEFT JOIN lost ON true ORDER BY lost.id;
