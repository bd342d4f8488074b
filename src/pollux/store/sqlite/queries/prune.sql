-- name: named
DELETE FROM runs WHERE id IN (SELECT value FROM json_each(?)) AND +history_class IS NOT NULL RETURNING history_class;

-- name: old
DELETE FROM runs WHERE seq IN (
  SELECT seq FROM runs
  WHERE history_class = ? AND history_class IS NOT NULL AND finished_ms < ? ORDER BY finished_ms LIMIT ?
) RETURNING history_class;

-- The jobs that have more than so many finished runs that failed, or that did not: so many steps along the indexes each,
-- whatever they have.
-- name: beyond
WITH RECURSIVE finished (job_id) AS (
  SELECT ''
  UNION ALL
  SELECT (SELECT r.job_id FROM runs AS r WHERE r.history_class < 2 AND r.job_id > finished.job_id ORDER BY r.job_id LIMIT 1)
  FROM finished WHERE finished.job_id IS NOT NULL
)
SELECT job_id FROM finished
WHERE EXISTS (
    SELECT 1 FROM runs AS r WHERE r.job_id = finished.job_id AND r.history_class < 2 AND r.failed = 1 LIMIT 1 OFFSET ?1
  )
  OR (SELECT count(*) FROM (
    SELECT 1 FROM runs AS r WHERE r.job_id = finished.job_id AND r.history_class < 2 LIMIT 2 * ?1 + 1
  )) > ?1 + (SELECT count(*) FROM runs AS r WHERE r.job_id = finished.job_id AND r.history_class < 2 AND r.failed = 1)
LIMIT ?2;

-- name: excess
SELECT seq FROM runs WHERE job_id = ? AND history_class < 2 AND failed = ? ORDER BY finished_ms DESC, seq DESC
LIMIT ? OFFSET ?;

-- name: drop
DELETE FROM runs WHERE seq IN (SELECT value FROM json_each(?)) AND +history_class IS NOT NULL RETURNING history_class;

-- name: spent
SELECT j.id, j.revision, j.last_due_ms, j.version FROM jobs AS j
WHERE j.once = 1 AND j.next_due_ms IS NULL AND j.last_due_ms IS NOT NULL AND coalesce(j.ended_ms, j.last_due_ms) < ?1
  AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.job_id = j.id AND history_class IS NULL)
  AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.job_id = j.id AND history_class = 2)
  AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.job_id = j.id AND history_class < 2 AND finished_ms >= ?1)
ORDER BY coalesce(j.ended_ms, j.last_due_ms) LIMIT ?2;

-- name: oldest_dead
DELETE FROM runs WHERE seq IN (
  SELECT seq FROM runs WHERE history_class = 2 AND history_class IS NOT NULL ORDER BY finished_ms, seq LIMIT ?
) RETURNING history_class;

-- Numbers without gaps: what lies so far below the last is beyond.
-- name: log
DELETE FROM log WHERE seq IN (SELECT seq FROM log WHERE seq <= (SELECT max(seq) FROM log) - ? ORDER BY seq LIMIT ?) RETURNING seq;
