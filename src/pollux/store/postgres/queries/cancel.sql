-- name: found
SELECT l.seq, l.state, r.id, r.job_id, r.due_ms, r.cause, r.gated, l.version, l.cancel
FROM {s}.runs AS r JOIN {s}.line AS l ON l.seq = r.seq
WHERE r.id = ANY($1::text[]) ORDER BY l.seq FOR UPDATE OF l;

-- name: of_job
SELECT id FROM {s}.runs WHERE job_id = $1::text ORDER BY seq;

-- name: ended
SELECT id, state FROM {s}.past WHERE id = ANY($1::text[]);

-- name: finish
WITH stood AS (
  DELETE FROM {s}.line AS l USING unnest($1::bigint[], $2::text[]) AS b (seq, why) WHERE l.seq = b.seq
  RETURNING l.seq, l.job_id, l.later, l.visible_ms, l.fence, l.token, l.owner, l.lease_until_ms, l.progress, l.settled, l.version, b.why
), gone AS (
  DELETE FROM {s}.runs AS r USING stood AS l WHERE r.job_id = l.job_id AND r.later = l.later AND r.seq = l.seq
  RETURNING r.seq, r.id, r.job_id, r.due_ms, r.cause, r.key, r.payload, r.priority, r.grp, r.target, r.gated,
    5, '', l.visible_ms, r.attempt, r.lease_losses, r.crashes, l.fence, l.token, l.owner, l.lease_until_ms, l.why,
    r.started_ms, $3::bigint, r.failed, r.changed, r.error, r.result, r.deaths, l.progress, r.tried, l.settled, 0,
    l.version
)
INSERT INTO {s}.past SELECT * FROM gone;

-- name: ask
UPDATE {s}.line AS l SET cancel = b.why FROM unnest($1::bigint[], $2::text[]) AS b (seq, why) WHERE l.seq = b.seq;
