-- name: head
coalesce(l.body, d.body)

-- name: readable_head
-- JSON functions fail on an escaped NUL. Escaped backslashes are removed first, so that the second half of one is not
-- taken for the start of `\u0000`. The result is for lookups, not for display.
(CASE WHEN strpos({head}, '\u0000') > 0 THEN replace(replace({head}, '\\', ''), '\u0000', '') ELSE {head} END)::json

-- name: load
-- One statement reads one snapshot, so the head and its steps are consistent.
SELECT j.job_id, j.id, j.command, l.body AS live, d.body AS done, ARRAY(
    SELECT s.body FROM steps AS s WHERE s.job = j.id AND s.step_id IN (
        SELECT json_array_elements_text(wanted.steps::json)
        UNION ALL SELECT json_array_elements_text({readable_head} -> 'active')
    )
) AS steps
FROM unnest($1::text[], $2::text[]) AS wanted (job_id, steps)
JOIN jobs AS j ON j.job_id = wanted.job_id
LEFT JOIN live AS l ON l.id = j.id LEFT JOIN done AS d ON d.id = j.id;

-- name: protocol
SELECT body FROM protocols WHERE digest = $1;
