-- name: in_lanes (marks)
AND lane IN ({marks})

-- name: ready (filters)
-- The inner query is answered by the index alone, so rows of unwanted lanes are passed over without reading them.
SELECT seq, outbox_id, body FROM outbox JOIN (
    SELECT job, outbox_id FROM outbox
    WHERE status = 'PENDING' AND service = ? AND claimed = 0 AND tenant_id = ? AND next_attempt_at IS NULL {filters}
    ORDER BY next_attempt_at, seq LIMIT ?
) AS wanted USING (job, outbox_id)

-- name: deferred (filters)
SELECT seq, outbox_id, body FROM outbox JOIN (
    SELECT job, outbox_id FROM outbox
    WHERE status = 'PENDING' AND service = ? AND claimed = 0 AND tenant_id = ? AND next_attempt_at <= ? {filters}
    ORDER BY next_attempt_at, seq LIMIT ?
) AS wanted USING (job, outbox_id)

-- name: claimed (filters)
SELECT seq, outbox_id, body FROM outbox JOIN (
    SELECT job, outbox_id FROM outbox WHERE status = 'PENDING' AND service = ? AND claimed = 1 {filters}
    ORDER BY tenant_id, next_attempt_at, seq LIMIT ?
) AS wanted USING (job, outbox_id)

-- name: next_deferred (filters)
SELECT next_attempt_at FROM outbox
WHERE status = 'PENDING' AND service = ? AND claimed = 0 AND tenant_id = ? AND next_attempt_at > 0 {filters}
ORDER BY next_attempt_at, seq LIMIT 1
