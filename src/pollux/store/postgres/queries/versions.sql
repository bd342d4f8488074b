-- name: ensure
WITH term AS (
  INSERT INTO {s}.term (number, holder, until_ms, ttl_ms, version) VALUES (0, '', 0, 0, $1::smallint)
  ON CONFLICT DO NOTHING
)
INSERT INTO {s}.counters (version, slot) SELECT $1::smallint, generate_series(0, 15) ON CONFLICT DO NOTHING;

-- name: use
UPDATE {s}.term SET in_use = true WHERE version = $1::smallint AND NOT in_use;

-- name: in_use
SELECT version FROM {s}.term WHERE in_use ORDER BY version;

-- name: all
SELECT t.version, sum(c.held)::bigint, sum(c.ready)::bigint, sum(c.leased)::bigint,
  (SELECT sum(dead)::bigint FROM {s}.counters), sum(c.feed)::bigint, sum(c.ends)::bigint, sum(c.jobs)::bigint, t.number,
  CASE WHEN t.until_ms > coalesce($1::bigint, {s}.now_ms()) THEN t.holder ELSE '' END
FROM {s}.term AS t JOIN {s}.counters AS c ON c.version = t.version
WHERE t.in_use GROUP BY t.version ORDER BY t.version;

-- name: usage
SELECT in_use, holder <> '' AND until_ms > coalesce($2::bigint, {s}.now_ms()) FROM {s}.term
WHERE version = $1::smallint FOR UPDATE;

-- name: left
SELECT sum(held + ready + leased + jobs)::bigint FROM {s}.counters WHERE version = $1::smallint;

-- name: clock
SELECT coalesce(max(clock_ms), 0) FROM {s}.counters WHERE version = ANY($1::smallint[]);

-- name: unread_ends
SELECT id, body FROM {s}.feed WHERE version = ANY($1::smallint[]) AND ends > 0 ORDER BY id;

-- name: dead
SELECT sum(dead)::bigint FROM {s}.counters;

-- name: drop
WITH unread AS (
  DELETE FROM {s}.feed WHERE version = $1::smallint
), counted AS (
  UPDATE {s}.counters SET feed = 0, ends = 0 WHERE version = $1::smallint
)
UPDATE {s}.term SET in_use = false, holder = '', until_ms = 0, ttl_ms = 0 WHERE version = $1::smallint;

-- The writer of each row of the counts, and how often all were called back.
-- name: pulse
SELECT string_agg(xmin::text, ' ' ORDER BY version, slot), sum(wakes)::bigint FROM {s}.counters;

-- name: wake
UPDATE {s}.counters SET wakes = wakes + 1 WHERE version = $1::smallint AND slot = pg_backend_pid() % 16;
