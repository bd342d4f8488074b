-- name: found
SELECT r.seq, r.state, r.id, r.job_id, r.due_ms, r.cause, r.gated, r.version, r.cancel FROM {s}.runs AS r
WHERE r.id = ANY($1::text[]) ORDER BY r.seq FOR UPDATE;

-- name: of_job
SELECT id FROM {s}.runs WHERE job_id = $1::text ORDER BY seq;

-- name: ended
SELECT id, state FROM {s}.past WHERE id = ANY($1::text[]);

-- name: finish
WITH gone AS (
  DELETE FROM {s}.runs AS r USING unnest($1::bigint[], $2::text[]) AS b (seq, why) WHERE r.seq = b.seq
  RETURNING r.*, b.why
)
INSERT INTO {s}.past
SELECT seq, id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, 5, '', visible_ms, attempt,
  lease_losses, crashes, fence, token, owner, lease_until_ms, why, started_ms, $3::bigint, failed, changed, error, result,
  deaths, progress, tried, settled, 0, version
FROM gone;

-- name: ask
UPDATE {s}.runs AS r SET cancel = b.why FROM unnest($1::bigint[], $2::text[]) AS b (seq, why) WHERE r.seq = b.seq;
