-- name: found
SELECT r.seq, r.state, r.id, r.job_id, r.due_ms, r.cause, r.gated, r.version, r.cancel
FROM json_each(?) AS asked JOIN runs AS r ON r.id = asked.value WHERE +r.history_class IS NULL;

-- name: of_job
SELECT seq, id FROM runs WHERE job_id = ? AND history_class IS NULL;

-- name: ended
SELECT r.id, r.state FROM json_each(?) AS asked JOIN runs AS r ON r.id = asked.value WHERE +r.history_class IS NOT NULL;

-- name: finish
UPDATE runs SET state = 5, history_class = 0, held_reason = '', cancel = ?2, finished_ms = ?3 WHERE seq = ?1;

-- name: ask
UPDATE runs SET cancel = ?2 WHERE seq = ?1;
