-- What stands for or against a batch; the jobs cannot go before this write ends.
-- name: look
SELECT
  coalesce($3::bigint, {s}.now_ms()),
  ARRAY(SELECT ARRAY[version, sum(held + ready)] FROM {s}.counters GROUP BY version),
  ARRAY(SELECT ARRAY[id, version::text] FROM {s}.jobs WHERE id = ANY($1::text[]) ORDER BY id FOR KEY SHARE),
  ARRAY(SELECT id FROM {s}.history WHERE id = ANY($2::text[]));

-- name: jobs
SELECT id, version FROM {s}.jobs WHERE id = ANY($1::text[]) ORDER BY id FOR KEY SHARE;

-- A run that is made only where none overlaps waits here for others of its kind and for the leaders' plans, and they for
-- it: a leader's first statement locks its term, so what it reads of the job afterwards is younger than this write.
-- name: lock_terms
SELECT version FROM {s}.term ORDER BY version FOR NO KEY UPDATE;

-- name: lock_jobs
SELECT id FROM {s}.jobs WHERE id = ANY($1::text[]) ORDER BY id FOR NO KEY UPDATE;

-- name: overlapping
SELECT r.id
FROM {s}.overlapping($1::text, $2::bigint, 1) AS o
JOIN {s}.runs AS r ON r.job_id = $1::text AND r.later = o.later AND r.seq = o.seq;

-- Arrays as `packed` makes them: one value stands for all.  What is visible after $15 is for later, unless it is a firing.
-- name: add
WITH made AS MATERIALIZED (
  SELECT b.id, b.key, b.payload, b.place, coalesce(b.job_id, ($2::text[])[1]) AS job_id,
    coalesce(b.due_ms, ($3::bigint[])[1]) AS due_ms, coalesce(b.cause, ($4::smallint[])[1]) AS cause,
    coalesce(b.priority, ($7::smallint[])[1]) AS priority, coalesce(b.grp, ($8::text[])[1]) AS grp,
    coalesce(b.target, ($9::text[])[1]) AS target, coalesce(b.gated, ($10::boolean[])[1]) AS gated,
    coalesce(b.state, ($11::smallint[])[1]) AS state, coalesce(b.held_reason, ($12::text[])[1]) AS held_reason,
    coalesce(b.visible_ms, ($13::bigint[])[1]) AS visible_ms, coalesce(b.version, ($14::smallint[])[1]) AS version,
    coalesce(b.cause, ($4::smallint[])[1]) <> 0 AND coalesce(b.visible_ms, ($13::bigint[])[1]) > $15::bigint AS later
  FROM unnest(
    $1::text[], $2::text[], $3::bigint[], $4::smallint[], $5::text[], $6::bytea[], $7::smallint[], $8::text[],
    $9::text[], $10::boolean[], $11::smallint[], $12::text[], $13::bigint[], $14::smallint[]
  ) WITH ORDINALITY AS b
    (id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, state, held_reason, visible_ms, version,
     place)
), added AS (
  INSERT INTO {s}.runs (id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, later)
  SELECT id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, later FROM made ORDER BY place
  ON CONFLICT DO NOTHING RETURNING seq, id
), queued AS (
  INSERT INTO {s}.queue (seq, job_id, priority, due_ms, state, visible_ms, held_reason, version, later)
  SELECT added.seq, made.job_id, made.priority, made.due_ms, made.state, made.visible_ms, made.held_reason, made.version,
    made.later
  FROM added JOIN made ON made.id = added.id
)
SELECT id, seq FROM added;

-- name: known
SELECT id FROM {s}.runs WHERE id = ANY($1::text[]) UNION ALL SELECT id FROM {s}.history WHERE id = ANY($1::text[]);

-- name: holders
SELECT key, id FROM {s}.runs WHERE key = ANY($1::text[]);

-- The plain case in one call: runs of one job, alike but for their ids and payloads, without keys.  Nothing is answered if
-- something stands against one of them: the way by which that is told follows.
-- name: plain
SELECT version FROM {s}.add_alike(
  $1::text, $2::text, $3::text, $4::bigint, $5::smallint, $6::smallint, $7::text, $8::text, $9::boolean, $10::bigint,
  $11::bigint, $12::text, $13::text, $14::bigint
) AS version WHERE version IS NOT NULL;

-- The same for a single run, which a worker may be waiting for.
-- name: one
WITH job AS MATERIALIZED (
  SELECT j.version, nextval('{s}.run_seq') AS seq,
    $5::smallint <> 0 AND $10::bigint > coalesce($14::bigint, {s}.now_ms()) AS later
  FROM {s}.jobs AS j
  WHERE j.id = $3::text
    AND (SELECT sum(held + ready) FROM {s}.counters WHERE counters.version = j.version) < $11::bigint
    AND NOT EXISTS (SELECT 1 FROM {s}.runs WHERE id = $1::text)
    AND NOT EXISTS (SELECT 1 FROM {s}.history WHERE id = $1::text)
    AND NOT {s}.is_sealed()
  FOR KEY SHARE OF j
), added AS (
  INSERT INTO {s}.runs (seq, id, payload, job_id, due_ms, cause, priority, grp, target, gated, later)
  SELECT job.seq, $1::text, $2::bytea, $3::text, $4::bigint, $5::smallint, $6::smallint, $7::text, $8::text, $9::boolean,
    job.later
  FROM job
  RETURNING seq
), queued AS (
  INSERT INTO {s}.queue (seq, job_id, priority, due_ms, state, visible_ms, held_reason, version, later)
  SELECT added.seq, $3::text, $6::smallint, $4::bigint, 1, $10::bigint, '', job.version, job.later
  FROM added CROSS JOIN job
  RETURNING version
)
UPDATE {s}.counters AS t SET ready = ready + 1 FROM queued
WHERE t.version = queued.version AND t.slot = pg_backend_pid() % 16
RETURNING queued.version, {s}.refuse_ended(ARRAY[$1::text]),
  CASE WHEN $13::text <> '' THEN pg_notify($12::text, $13::text || queued.version)::text END;
