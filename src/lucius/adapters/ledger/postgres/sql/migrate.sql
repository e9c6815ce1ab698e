-- name: table
CREATE TABLE IF NOT EXISTS ledger_versions (version integer PRIMARY KEY, compatible_with integer NOT NULL);

-- name: done
INSERT INTO ledger_versions VALUES ($1, $2);

-- name: find_development_table
-- Ledgers from before version 1 counted their migrations in tables of other names, so no version of theirs is taken
-- for one of these. Other programs use such names too, but not with this column.
SELECT EXISTS (
    SELECT FROM unnest($1::text[]) AS name JOIN pg_attribute ON attrelid = to_regclass(name)
    WHERE attname = 'compatible_with' AND NOT attisdropped
);

-- name: try_lock
SELECT pg_try_advisory_lock($1);

-- name: has_schema
SELECT to_regnamespace($1) IS NOT NULL;

-- name: create_schema (schema)
CREATE SCHEMA {schema}

-- name: has_table
SELECT to_regclass($1) IS NOT NULL;

-- name: versions
SELECT max(version), max(compatible_with) FROM ledger_versions;
