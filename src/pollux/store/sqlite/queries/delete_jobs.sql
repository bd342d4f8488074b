-- name: stored
SELECT j.id, j.revision, j.last_due_ms, j.version FROM json_each(?) AS asked JOIN jobs AS j ON j.id = asked.value;

-- name: waiting
SELECT seq, state, id, job_id, due_ms, cause, gated, version FROM runs
WHERE job_id = ? AND history_class IS NULL AND state < 2;

-- name: delete
DELETE FROM jobs WHERE id = ?;

-- name: bury
INSERT OR REPLACE INTO tombs (id, revision, last_due_ms) VALUES (?, ?, ?);

-- name: clear_tombs
DELETE FROM tombs WHERE n <= (SELECT max(n) FROM tombs) - ?;
