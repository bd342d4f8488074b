-- name: renew
WITH asked AS (
  SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) AS a (id, token, progress)
), clock AS (
  SELECT coalesce($5::bigint, {s}.now_ms()) AS now_ms
), standing AS MATERIALIZED (
  SELECT r.seq, a.progress FROM {s}.runs AS r JOIN asked AS a ON a.id = r.id
  WHERE r.state = 2 AND r.token = a.token ORDER BY r.seq FOR UPDATE OF r
), renewed AS (
  UPDATE {s}.runs AS r
  SET lease_until_ms = clock.now_ms + $4::bigint, lease_ms = $4::bigint,
      progress = CASE WHEN s.progress = '' THEN r.progress ELSE s.progress END
  FROM standing AS s, clock WHERE r.seq = s.seq
  RETURNING r.id, r.token, r.cancel, r.version
), counted AS (
  UPDATE {s}.tally SET clock_ms = greatest(clock_ms, clock.now_ms)
  FROM clock WHERE slot = pg_backend_pid() % 16 AND version IN (SELECT version FROM renewed)
)
SELECT id, token, cancel FROM renewed;
