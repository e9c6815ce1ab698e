-- name: review
SELECT body FROM reviews WHERE review_id = ?;

-- name: by_id
SELECT body FROM reviews WHERE id = ?;

-- name: open
SELECT kind, count(*) FROM reviews WHERE status = 'OPEN' GROUP BY kind;

-- name: page (filters)
SELECT id, body FROM reviews WHERE status = ? AND id < ? {filters} ORDER BY id DESC LIMIT ?

-- name: groups (filters)
SELECT signature, kind, count(*), max(id) FROM reviews WHERE 1 = 1 {filters}
GROUP BY signature, kind ORDER BY count(*) DESC, signature LIMIT ?

-- name: where_status
AND status = ?

-- name: where_kind
AND kind = ?

-- name: where_signature
AND signature = ?

-- name: where_job_id
AND job_id = ?

-- name: where_kinds (marks)
AND kind IN ({marks})

-- name: where_tenants (marks)
AND tenant_id IN ({marks})
