-- name: get
SELECT
  r.id, r.job_id, r.due_ms, r.cause, r.key, r.payload, r.priority, r.grp, r.target, r.gated, r.state, r.held_reason,
  r.visible_ms, r.attempt, r.lease_losses, r.crashes, r.fence, r.token, r.owner, r.lease_until_ms, r.cancel,
  r.started_ms, r.finished_ms, r.failed, r.changed, r.error, r.result, r.deaths, r.progress, r.tried, r.version
FROM json_each(?) AS asked JOIN runs AS r ON r.id = asked.value;
