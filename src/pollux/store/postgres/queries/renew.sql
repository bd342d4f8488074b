-- `+ 0`: found by their numbers, not among all that are leased.
-- name: renew
WITH clock AS (
  SELECT coalesce($5::bigint, {s}.now_ms()) AS now_ms
), standing AS MATERIALIZED (
  SELECT l.seq, r.id, a.progress
  FROM unnest($1::text[], $2::text[], $3::text[]) AS a (id, token, progress)
  JOIN {s}.runs AS r ON r.id = a.id JOIN {s}.line AS l ON l.seq = r.seq
  WHERE l.state + 0 = 2 AND l.token = a.token ORDER BY l.seq FOR UPDATE OF l
), renewed AS (
  UPDATE {s}.line AS l
  SET lease_until_ms = clock.now_ms + $4::bigint, lease_ms = $4::bigint,
      progress = CASE WHEN s.progress = '' THEN l.progress ELSE s.progress END
  FROM standing AS s, clock WHERE l.seq = s.seq
  RETURNING s.id, l.token, l.cancel, l.version
), counted AS (
  UPDATE {s}.tally SET clock_ms = greatest(clock_ms, clock.now_ms)
  FROM clock WHERE slot = pg_backend_pid() % 16 AND version IN (SELECT version FROM renewed)
)
SELECT id, token, cancel FROM renewed;
