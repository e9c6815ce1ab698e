-- name: select_keys
SELECT j.tenant_id, j.key, j.job_id, j.hash FROM jobs AS j
JOIN unnest($1::text[], $2::text[]) AS k (tenant_id, key) ON j.tenant_id = k.tenant_id AND j.key = k.key;
