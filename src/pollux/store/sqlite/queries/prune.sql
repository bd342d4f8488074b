-- name: named
SELECT r.seq, r.shelf FROM json_each(?) AS asked JOIN runs AS r ON r.id = asked.value WHERE r.shelf IS NOT NULL;

-- name: old
SELECT seq, shelf FROM runs
WHERE shelf = ? AND shelf IS NOT NULL AND finished_ms < ? ORDER BY finished_ms LIMIT ?;

-- The jobs that have finished runs, one step along the index each; then what each has beyond the newest.
-- name: beyond
WITH RECURSIVE finished (job_id) AS (
  SELECT (SELECT job_id FROM runs WHERE shelf IS NOT NULL ORDER BY job_id LIMIT 1)
  UNION ALL
  SELECT (SELECT r.job_id FROM runs AS r WHERE r.shelf IS NOT NULL AND r.job_id > finished.job_id ORDER BY r.job_id LIMIT 1)
  FROM finished WHERE finished.job_id IS NOT NULL
)
SELECT old.seq, old.shelf FROM finished CROSS JOIN runs AS old
WHERE old.job_id = finished.job_id AND old.shelf IS NOT NULL AND old.shelf < 2
  AND old.seq IN (
    SELECT r.seq FROM runs AS r
    WHERE r.job_id = finished.job_id AND r.shelf IS NOT NULL AND r.shelf < 2
    ORDER BY r.finished_ms DESC, r.seq DESC LIMIT -1 OFFSET ?
  )
LIMIT ?;

-- name: drop
DELETE FROM runs WHERE seq = ? AND shelf IS NOT NULL;

-- name: spent
SELECT j.id FROM jobs AS j
WHERE j.once = 1 AND j.next_due_ms IS NULL AND j.last_due_ms IS NOT NULL AND j.ended_ms IS NOT NULL AND j.ended_ms < ?
  AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.job_id = j.id AND shelf IS NULL)
  AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.job_id = j.id AND shelf = 2)
ORDER BY j.ended_ms LIMIT ?;

-- name: drop_job
DELETE FROM jobs WHERE id = ?;
