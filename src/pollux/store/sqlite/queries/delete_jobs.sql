-- name: stored
SELECT j.id, j.revision, j.last_due_ms, j.version FROM json_each(?) AS asked JOIN jobs AS j ON j.id = asked.value;

-- name: waiting
SELECT r.seq, r.state, r.id, r.job_id, r.due_ms, r.cause, r.gated, r.version
FROM json_each(?) AS asked JOIN runs AS r ON r.job_id = asked.value WHERE r.history_class IS NULL AND +r.state < 2;

-- name: delete
DELETE FROM jobs WHERE id IN (SELECT value FROM json_each(?));

-- name: bury
INSERT OR REPLACE INTO tombs (id, revision, last_due_ms) VALUES (?, ?, ?);

-- name: clear_tombs
DELETE FROM tombs WHERE n <= (SELECT max(n) FROM tombs) - ?;
