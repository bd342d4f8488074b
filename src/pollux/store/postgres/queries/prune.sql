-- Is there anything that may go?  Some of it may turn out to be needed yet.  And who wrote last.
-- name: any
SELECT
  EXISTS (SELECT 1 FROM {s}.history WHERE history_class = 1 AND finished_ms < greatest($1::bigint, $2::bigint))
  OR EXISTS (SELECT 1 FROM {s}.history WHERE history_class = 0 AND finished_ms < $2::bigint)
  OR EXISTS (SELECT 1 FROM {s}.history WHERE history_class = 2 AND finished_ms < $3::bigint)
  OR EXISTS (SELECT 1 FROM {s}.jobs WHERE once AND next_due_ms IS NULL AND last_due_ms IS NOT NULL
             AND coalesce(ended_ms, last_due_ms) < $4::bigint)
  OR (SELECT sum(dead) FROM {s}.counters) > $5::bigint
  OR (SELECT max(seq) - min(seq) FROM {s}.log) >= greatest(1, $6::bigint),
  (SELECT string_agg(xmin::text, ' ' ORDER BY version, slot) FROM {s}.counters);

-- name: named
DELETE FROM {s}.history WHERE id = ANY($1::text[]) RETURNING history_class;

-- What goes by a limit is gathered into an array first.  `IN (SELECT ... LIMIT n)` may be planned as a nested loop that
-- runs the subquery once for each row: each time it finds the next ones, and the limit does not hold.
-- name: old
DELETE FROM {s}.history WHERE seq = ANY(ARRAY(
  SELECT seq FROM {s}.history WHERE history_class = $1::smallint AND finished_ms < $2::bigint
  ORDER BY finished_ms LIMIT $3::int FOR UPDATE SKIP LOCKED
)) RETURNING history_class;

-- The jobs that have more than so many finished runs: two steps along the index each, whatever they have.
-- name: beyond
WITH RECURSIVE finished (job_id) AS (
  SELECT ''::text COLLATE "C"
  UNION ALL
  SELECT (SELECT r.job_id FROM {s}.history AS r WHERE r.history_class < 2 AND r.job_id > finished.job_id ORDER BY r.job_id LIMIT 1)
  FROM finished WHERE finished.job_id IS NOT NULL
)
SELECT job_id FROM finished
WHERE EXISTS (
    SELECT 1 FROM {s}.history AS r WHERE r.job_id = finished.job_id AND r.history_class < 2 AND r.failed OFFSET $1::int LIMIT 1
  )
  OR (SELECT count(*) FROM (
    SELECT 1 FROM {s}.history AS r WHERE r.job_id = finished.job_id AND r.history_class < 2 LIMIT 2 * $1::int + 1
  ) AS newest) > $1::int + (
    SELECT count(*) FROM {s}.history AS r WHERE r.job_id = finished.job_id AND r.history_class < 2 AND r.failed
  )
LIMIT $2::int;

-- name: excess
DELETE FROM {s}.history WHERE seq = ANY(ARRAY(
  SELECT e.seq FROM unnest($1::text[]) AS j (id) CROSS JOIN (VALUES (false), (true)) AS kind (failed) CROSS JOIN LATERAL (
    SELECT seq FROM {s}.history WHERE job_id = j.id AND history_class < 2 AND failed = kind.failed
    ORDER BY finished_ms DESC, seq DESC OFFSET $2::int LIMIT $3::int
  ) AS e LIMIT $3::int
)) RETURNING history_class;

-- name: spent
SELECT j.id, j.revision, j.last_due_ms, j.version FROM {s}.jobs AS j
WHERE j.once AND j.next_due_ms IS NULL AND j.last_due_ms IS NOT NULL AND coalesce(j.ended_ms, j.last_due_ms) < $1::bigint
  AND NOT EXISTS (SELECT 1 FROM {s}.runs WHERE runs.job_id = j.id)
  AND NOT EXISTS (SELECT 1 FROM {s}.history WHERE history.job_id = j.id AND history_class = 2)
  AND NOT EXISTS (SELECT 1 FROM {s}.history WHERE history.job_id = j.id AND history_class < 2 AND finished_ms >= $1::bigint)
ORDER BY coalesce(j.ended_ms, j.last_due_ms) LIMIT $2::int FOR UPDATE OF j SKIP LOCKED;

-- name: oldest_dead
DELETE FROM {s}.history WHERE seq = ANY(ARRAY(
  SELECT seq FROM {s}.history WHERE history_class = 2 ORDER BY finished_ms, seq LIMIT $1::int FOR UPDATE SKIP LOCKED
)) RETURNING history_class;

-- Numbers without gaps: what lies so far below the last is beyond.
-- name: log
DELETE FROM {s}.log WHERE seq = ANY(ARRAY(
  SELECT seq FROM {s}.log WHERE seq <= (SELECT max(seq) FROM {s}.log) - $1::bigint ORDER BY seq LIMIT $2::int
)) RETURNING seq;
