-- name: tick
SELECT tick_1($1, $2) AS resumed_at, EXISTS (SELECT FROM live WHERE look_at <= $1) AS is_due, available_at, available_since
FROM callback_availability;

-- name: mark_available
SELECT now FROM poll_1(true);

-- name: select
SELECT last_tick, resumed_at, available_at, available_since FROM engine, callback_availability;

-- name: last_tick
SELECT last_tick FROM engine WHERE last_tick > 0;
