-- name: notify
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2);

-- name: listeners
-- Counts all listeners, this replica included, and the sweepers among them. Replicas that start later send a heartbeat.
SELECT count(*) AS n, count(*) FILTER (WHERE application_name = $2) AS sweepers FROM pg_stat_activity
WHERE application_name IN ($1, $2) AND datname = current_database();

-- name: needs
SELECT max(compatible_with) AS needs FROM ledger_versions;

-- name: poll
SELECT now, revision, services, ({needs}) AS needs FROM poll_1($1);
