-- name: found
SELECT q.seq, q.state, r.id, r.job_id, r.due_ms, r.cause, r.gated, q.version, q.cancel
FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq
WHERE r.id = ANY($1::text[]) ORDER BY q.seq FOR UPDATE OF q;

-- name: of_job
SELECT seq, id FROM {s}.runs WHERE job_id = $1::text;

-- name: ended
SELECT id, state FROM {s}.history WHERE id = ANY($1::text[]);

-- name: finish
WITH stood AS (
  DELETE FROM {s}.queue AS q USING unnest($1::bigint[], $2::text[]) AS b (seq, why) WHERE q.seq = b.seq
  RETURNING q.seq, q.job_id, q.later, q.visible_ms, q.fence, q.token, q.owner, q.lease_until_ms, q.progress, q.settled, q.version, b.why
), gone AS (
  DELETE FROM {s}.runs AS r USING stood AS q WHERE r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq
  RETURNING r.seq, r.id, r.job_id, r.due_ms, r.cause, r.key, r.payload, r.priority, r.grp, r.target, r.gated,
    5, '', q.visible_ms, r.attempt, r.lease_losses, r.crashes, q.fence, q.token, q.owner, q.lease_until_ms, q.why,
    r.started_ms, $3::bigint, r.failed, r.changed, r.error, r.result, r.deaths, q.progress, r.tried, q.settled, 0,
    q.version
)
INSERT INTO {s}.history SELECT * FROM gone;

-- name: ask
UPDATE {s}.queue AS q SET cancel = b.why FROM unnest($1::bigint[], $2::text[]) AS b (seq, why) WHERE q.seq = b.seq;
