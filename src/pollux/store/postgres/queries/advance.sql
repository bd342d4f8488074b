-- The term stands until this write ends: a new leader's election waits for it.
-- name: term
SELECT number, holder, coalesce($1::bigint, {s}.now_ms()) FROM {s}.term WHERE version = $2::smallint FOR SHARE;

-- name: state
SELECT
  (SELECT sum(ready)::bigint FROM {s}.tally WHERE version = $2::smallint),
  (SELECT coalesce(sum(seats), 0)::bigint FROM {s}.nodes WHERE until_ms > $1::bigint AND version IN (0, $2::smallint));

-- name: consume
DELETE FROM {s}.feed WHERE version = $2::smallint AND id = ANY($1::bigint[]) RETURNING ends;

-- name: facts
SELECT j.id, j.n, j.revision, j.last_due_ms, EXISTS (SELECT 1 FROM {s}.runs WHERE runs.job_id = j.id)
FROM {s}.jobs AS j WHERE j.id = ANY($1::text[]) AND j.version = $2::smallint ORDER BY j.id FOR NO KEY UPDATE OF j;

-- name: live
SELECT seq, state, id, job_id, due_ms, cause, gated, version, cancel FROM {s}.runs
WHERE job_id = $1::text ORDER BY seq LIMIT $2::bigint FOR UPDATE;

-- name: move
UPDATE {s}.jobs AS j
SET last_due_ms = b.last_due_ms, next_due_ms = b.next_due_ms,
    memory = CASE WHEN b.has_memory THEN b.memory ELSE j.memory END,
    ended_ms = CASE WHEN b.has_memory THEN b.ended_ms ELSE j.ended_ms END
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::boolean[], $5::bytea[], $6::bigint[])
  AS b (n, last_due_ms, next_due_ms, has_memory, memory, ended_ms)
WHERE j.n = b.n;

-- name: release
WITH held AS MATERIALIZED (
  SELECT seq FROM {s}.runs WHERE id = ANY($1::text[]) AND state = 0 AND version = $3::smallint ORDER BY seq FOR UPDATE
)
UPDATE {s}.runs AS r SET state = 1, held_reason = '', visible_ms = greatest($2::bigint, r.visible_ms)
FROM held WHERE r.seq = held.seq RETURNING r.seq;

-- name: hold
UPDATE {s}.runs AS r SET held_reason = b.reason FROM unnest($1::text[], $2::text[]) AS b (id, reason)
WHERE r.id = b.id AND r.state = 0 AND r.version = $3::smallint;

-- name: update
UPDATE {s}.jobs AS j
SET next_due_ms = b.next_due_ms,
    last_due_ms = CASE WHEN b.last_due_ms > coalesce(j.last_due_ms, b.last_due_ms - 1) THEN b.last_due_ms ELSE j.last_due_ms END,
    memory = b.memory, ended_ms = b.ended_ms
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[])
  AS b (id, next_due_ms, last_due_ms, memory, ended_ms)
WHERE j.id = b.id;
