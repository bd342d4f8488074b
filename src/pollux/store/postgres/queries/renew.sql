-- `+ 0`: found by their numbers, not among all that are leased.
-- name: renew
WITH clock AS (
  SELECT coalesce($5::bigint, {s}.now_ms()) AS now_ms
), standing AS MATERIALIZED (
  SELECT q.seq, r.id, a.progress
  FROM unnest($1::text[], $2::text[], $3::text[]) AS a (id, token, progress)
  JOIN {s}.runs AS r ON r.id = a.id JOIN {s}.queue AS q ON q.seq = r.seq
  WHERE q.state + 0 = 2 AND q.token = a.token ORDER BY q.seq FOR UPDATE OF q
), renewed AS (
  UPDATE {s}.queue AS q
  SET lease_until_ms = clock.now_ms + $4::bigint, lease_ms = $4::bigint,
      progress = CASE WHEN s.progress = '' THEN q.progress ELSE s.progress END
  FROM standing AS s, clock WHERE q.seq = s.seq
  RETURNING s.id, q.token, q.cancel, q.version
), counted AS (
  UPDATE {s}.counters SET clock_ms = greatest(clock_ms, clock.now_ms)
  FROM clock WHERE slot = pg_backend_pid() % 16 AND version IN (SELECT version FROM renewed)
)
SELECT id, token, cancel FROM renewed;
