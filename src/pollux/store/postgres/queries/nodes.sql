-- name: stored
SELECT body, until_ms FROM {s}.nodes WHERE id = $1::text FOR UPDATE;

-- name: put
WITH serves AS (
  UPDATE {s}.term SET there = true WHERE version = $5::smallint AND NOT there
)
INSERT INTO {s}.nodes (id, seats, until_ms, body, version)
VALUES ($1::text, $2::bigint, $3::bigint, $4::bytea, $5::smallint)
ON CONFLICT (id) DO UPDATE
SET seats = excluded.seats, until_ms = excluded.until_ms, body = excluded.body, version = excluded.version;

-- name: bury
DELETE FROM {s}.nodes WHERE until_ms <= $1::bigint;

-- name: living
SELECT body FROM {s}.nodes WHERE until_ms > coalesce($1::bigint, {s}.now_ms()) ORDER BY id;

-- name: leave
DELETE FROM {s}.nodes WHERE id = $1::text;

-- What nearly every election is: the holder goes on, in one statement.
-- name: renew
UPDATE {s}.term SET until_ms = c.now_ms + $2::bigint, ttl_ms = $2::bigint
FROM (SELECT coalesce($1::bigint, {s}.now_ms()) AS now_ms) AS c
WHERE version = $4::smallint AND holder = $3::text AND until_ms > c.now_ms AND until_ms <= c.now_ms + ttl_ms RETURNING number, c.now_ms;

-- name: stands
SELECT number, holder, until_ms, ttl_ms FROM {s}.term WHERE version = $1::smallint FOR UPDATE;

-- name: write
UPDATE {s}.term
SET number = $1::bigint, holder = $2::text, until_ms = $3::bigint, ttl_ms = $4::bigint, there = there OR $2::text <> ''
WHERE version = $5::smallint;
