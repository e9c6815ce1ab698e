-- name: live_jobs
SELECT jobs.id, commands.body, jobs.body FROM jobs JOIN commands ON commands.job = jobs.id WHERE jobs.live = 1;

-- name: steps
SELECT body FROM steps WHERE job = ?;

-- name: delete_counter
DELETE FROM counters WHERE name = ?;

-- name: insert_counter
INSERT INTO counters (name, value) VALUES (?, ?);
