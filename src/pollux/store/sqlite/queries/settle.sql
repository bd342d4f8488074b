-- name: found
SELECT
  r.id, r.seq, r.token, r.state, r.settled, r.job_id, r.due_ms, r.cause, r.gated, r.cancel, r.attempt, r.visible_ms,
  r.held_reason, r.fence, r.tried, r.version
FROM json_each(?) AS asked JOIN runs AS r ON r.id = asked.value;

-- name: jobs
SELECT j.id FROM json_each(?) AS asked JOIN jobs AS j ON j.id = asked.value;

-- name: finish
UPDATE runs
SET state = ?, history_class = ?, started_ms = ?, finished_ms = ?, failed = ?, changed = ?, error = ?, result = ?, cancel = ?,
    deaths = ?, owner = '', lease_until_ms = 0
WHERE seq = ?;

-- name: retry
UPDATE runs
SET state = ?, held_reason = ?, visible_ms = ?, settled = ?, attempt = attempt + 1, started_ms = ?, finished_ms = ?,
    failed = 1, changed = ?, error = ?, result = ?, tried = ?, owner = '', lease_until_ms = 0
WHERE seq = ?;

-- name: crash
UPDATE runs SET crashes = crashes + 1 WHERE seq = ?;

-- name: hand_back
UPDATE runs
SET state = ?, held_reason = ?, visible_ms = ?, settled = ?, owner = '', lease_until_ms = 0
WHERE seq = ?;

-- Of what the schedule fired (cause 0): forced and enqueued runs stay, to be revived or dropped by hand.
-- name: dead_letters
SELECT count(*), coalesce(sum(deaths), 0) FROM runs INDEXED BY runs_dead WHERE job_id = ? AND history_class = 2 AND cause = 0;

-- They are history from now on: done (3), and failed as they were.
-- name: clear_dead_letters
UPDATE runs SET state = 3, history_class = 0 WHERE job_id = ? AND history_class = 2 AND cause = 0;
