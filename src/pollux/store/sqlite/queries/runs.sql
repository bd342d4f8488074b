-- name: get
SELECT
  r.id, r.job_id, r.due_ms, r.cause, r.key, r.payload, r.priority, r.grp, r.target, r.gated, r.state, r.held_reason,
  r.visible_ms, r.attempt, r.lease_losses, r.crashes, r.fence, r.token, r.owner, r.lease_until_ms, r.cancel,
  r.started_ms, r.finished_ms, r.failed, r.changed, r.error, r.result, r.deaths, r.progress, r.tried, r.version
FROM json_each(?) AS asked JOIN runs AS r ON r.id = asked.value;

-- Where the rows of a page come from; the terms of a filter follow.
-- name: live
SELECT seq, {run_columns} FROM runs WHERE history_class IS NULL;

-- name: live_of_job
SELECT seq, {run_columns} FROM runs WHERE job_id = ?1 AND history_class IS NULL;

-- name: held
SELECT seq, {run_columns} FROM runs WHERE state = 0;

-- name: leased
SELECT seq, {run_columns} FROM runs WHERE state = 2;

-- name: history
SELECT seq, {run_columns} FROM runs WHERE history_class = ?1 AND history_class IS NOT NULL;

-- name: history_of_job
SELECT seq, {run_columns} FROM runs WHERE job_id = ?1 AND history_class < 2;

-- name: dead_of_job
SELECT seq, {run_columns} FROM runs WHERE job_id = ?1 AND history_class = 2;
