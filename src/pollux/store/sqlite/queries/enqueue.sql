-- name: jobs
SELECT j.id, j.version FROM json_each(?) AS asked JOIN jobs AS j ON j.id = asked.value;

-- name: last
SELECT coalesce(max(seq), 0) FROM runs;

-- name: add
INSERT INTO runs
  (id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, state, held_reason, visible_ms, version)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: known
SELECT r.id, r.seq FROM json_each(?) AS asked JOIN runs AS r ON r.id = asked.value;

-- One that overlaps; the bounds are as in `advance.sql`.
-- name: overlapping
SELECT id FROM runs
WHERE job_id = ?1 AND history_class IS NULL AND iif(cause = 0, 0, visible_ms) <= ?3
  AND (iif(cause = 0, 0, visible_ms) <= ?2 OR state = 2)
LIMIT 1;

-- name: holder
SELECT id FROM runs WHERE key = ? AND key IS NOT NULL AND history_class IS NULL;

-- name: holders
SELECT r.key, r.id FROM json_each(?) AS asked JOIN runs AS r ON r.key = asked.value
WHERE r.key IS NOT NULL AND r.history_class IS NULL;
