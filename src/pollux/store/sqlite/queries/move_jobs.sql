-- name: stored
SELECT j.id, j.version, j.memory FROM json_each(?) AS asked JOIN jobs AS j ON j.id = asked.value;

-- name: job
UPDATE jobs SET version = ?, revision = revision + 1 WHERE id = ?;

-- name: live
SELECT seq, state, id, version FROM runs WHERE job_id = ? AND history_class IS NULL;

-- name: runs
UPDATE runs SET version = ? WHERE job_id = ? AND history_class IS NULL;

-- name: unread
SELECT id, body FROM feed WHERE id BETWEEN ? AND ? AND ends > 0 ORDER BY id;
