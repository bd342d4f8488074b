-- name: stored
SELECT body, beat_ms, until_ms FROM {s}.nodes WHERE id = $1::text FOR UPDATE;

-- name: put
INSERT INTO {s}.nodes (id, seats, until_ms, body, version, beat_ms)
VALUES ($1::text, $2::bigint, $3::bigint, $4::bytea, $5::smallint, $6::bigint)
ON CONFLICT (id) DO UPDATE
SET seats = excluded.seats, until_ms = excluded.until_ms, body = excluded.body, version = excluded.version,
    beat_ms = excluded.beat_ms;

-- What nearly every beat is: a living node says so again.  Answers whether there are counts to gather.
-- name: again
WITH serves AS (
  UPDATE {s}.term SET in_use = true WHERE version = $6::smallint AND NOT in_use
)
UPDATE {s}.nodes SET seats = $2::bigint, until_ms = c.now_ms + $3::bigint, body = $4::bytea, beat_ms = c.now_ms
FROM (SELECT coalesce($5::bigint, {s}.now_ms()) AS now_ms) AS c
WHERE id = $1::text AND until_ms > c.now_ms RETURNING EXISTS (SELECT 1 FROM {s}.counters WHERE slot >= 16);

-- name: bury
DELETE FROM {s}.nodes WHERE until_ms <= $1::bigint;

-- name: living
SELECT body, beat_ms FROM {s}.nodes WHERE until_ms > coalesce($1::bigint, {s}.now_ms()) ORDER BY id;

-- name: leave
DELETE FROM {s}.nodes WHERE id = $1::text;

-- What nearly every election is, in one statement: the holder goes on, or another one's term lasts; and the pulse.
-- name: go_on
WITH c AS MATERIALIZED (
  SELECT coalesce($1::bigint, {s}.now_ms()) AS now_ms
), renewed AS (
  UPDATE {s}.term SET until_ms = c.now_ms + $2::bigint, ttl_ms = $2::bigint FROM c
  WHERE version = $4::smallint AND holder = $3::text AND until_ms > c.now_ms AND until_ms <= c.now_ms + ttl_ms
  RETURNING number, holder, until_ms, c.now_ms
), standing AS (
  SELECT * FROM renewed
  UNION ALL
  SELECT number, holder, until_ms, c.now_ms FROM {s}.term, c
  WHERE version = $4::smallint AND holder NOT IN ('', $3::text) AND until_ms > c.now_ms AND until_ms <= c.now_ms + ttl_ms
)
SELECT standing.*, pulse.* FROM standing, (
  SELECT string_agg(xmin::text, ' ' ORDER BY version, slot), sum(wakes)::bigint FROM {s}.counters
) AS pulse;

-- name: term
SELECT number, holder, until_ms, ttl_ms FROM {s}.term WHERE version = $1::smallint FOR UPDATE;

-- name: write_term
UPDATE {s}.term
SET number = $1::bigint, holder = $2::text, until_ms = $3::bigint, ttl_ms = $4::bigint, in_use = in_use OR $2::text <> ''
WHERE version = $5::smallint;
