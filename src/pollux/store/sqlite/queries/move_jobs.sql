-- name: stored
SELECT j.id, j.version, j.memory FROM json_each(?) AS asked JOIN jobs AS j ON j.id = asked.value;

-- name: jobs
UPDATE jobs SET version = ?2, revision = revision + 1 WHERE id IN (SELECT value FROM json_each(?1));

-- name: live
SELECT r.seq, r.state, r.id, r.job_id, r.due_ms, r.cause, r.gated, r.version
FROM json_each(?) AS asked JOIN runs AS r ON r.job_id = asked.value WHERE r.history_class IS NULL;

-- name: runs
UPDATE runs SET version = ?2 WHERE job_id IN (SELECT value FROM json_each(?1)) AND history_class IS NULL;
