-- name: found
SELECT
  r.id, r.seq, r.token, r.state, r.settled, r.job_id, r.due_ms, r.cause, r.gated, r.cancel, r.attempt, r.visible_ms,
  r.held_reason, r.fence, r.tried, r.key, r.version,
  coalesce($2::bigint, {s}.now_ms())
FROM {s}.runs AS r WHERE r.id = ANY($1::text[]) ORDER BY r.seq FOR UPDATE;

-- name: ended
SELECT id, seq, token, state, settled FROM {s}.past WHERE id = ANY($1::text[]);

-- name: jobs
SELECT id, version FROM {s}.jobs WHERE id = ANY($1::text[]) ORDER BY id FOR KEY SHARE;

-- name: finish
WITH gone AS (
  DELETE FROM {s}.runs AS r
  USING unnest($1::bigint[], $2::smallint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::boolean[],
               $8::text[], $9::bytea[], $10::text[], $11::int[], $12::int[], $13::text[])
    AS b (seq, state, shelf, started_ms, finished_ms, failed, changed, error, result, cancel, deaths, crashed, progress)
  WHERE r.seq = b.seq
  RETURNING r.seq, r.id, r.job_id, r.due_ms, r.cause, r.key, r.payload, r.priority, r.grp, r.target, r.gated,
    b.state, r.held_reason, r.visible_ms, r.attempt, r.lease_losses, r.crashes + b.crashed, r.fence, r.token, '' AS owner,
    0::bigint AS until, b.cancel, b.started_ms, b.finished_ms, b.failed, b.changed, b.error, b.result, b.deaths,
    CASE WHEN b.progress = '' THEN r.progress ELSE b.progress END, r.tried, r.settled, b.shelf, r.version
)
INSERT INTO {s}.past SELECT * FROM gone;

-- name: retry
UPDATE {s}.runs AS r
SET state = b.state, held_reason = b.reason, visible_ms = b.visible_ms, settled = r.token, attempt = r.attempt + 1,
    started_ms = b.started_ms, finished_ms = b.finished_ms, failed = true, changed = b.changed, error = b.error,
    result = b.result, tried = b.tried, crashes = r.crashes + b.crashed,
    progress = CASE WHEN b.progress = '' THEN r.progress ELSE b.progress END, owner = '', lease_until_ms = 0
FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::boolean[],
            $8::text[], $9::bytea[], $10::bytea[], $11::int[], $12::text[])
  AS b (seq, state, reason, visible_ms, started_ms, finished_ms, changed, error, result, tried, crashed, progress)
WHERE r.seq = b.seq;

-- name: hand_back
UPDATE {s}.runs AS r
SET state = b.state, held_reason = b.reason, visible_ms = b.visible_ms, settled = r.token, owner = '', lease_until_ms = 0,
    progress = CASE WHEN b.progress = '' THEN r.progress ELSE b.progress END
FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::bigint[], $5::text[]) AS b (seq, state, reason, visible_ms, progress)
WHERE r.seq = b.seq;

-- name: dead_letters
SELECT DISTINCT job_id FROM {s}.past WHERE job_id = ANY($1::text[]) AND shelf = 2;

-- name: clear_dead_letters
DELETE FROM {s}.past WHERE job_id = $1::text AND shelf = 2 RETURNING deaths;
