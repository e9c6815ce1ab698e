-- name: count_objects
SELECT count(*) FROM sqlite_master;
