-- name: last_line
SELECT seq, chain FROM {s}.log ORDER BY seq DESC LIMIT 1;

-- name: add_line
INSERT INTO {s}.log (at_ms, actor, action, subject, detail, count, seq, chain)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::text[]);

-- name: lines
SELECT at_ms, actor, action, subject, detail, count, seq, chain FROM {s}.log WHERE seq > $1::bigint ORDER BY seq LIMIT $2::int;

-- name: lines_before
SELECT at_ms, actor, action, subject, detail, count, seq, chain FROM {s}.log WHERE seq < $1::bigint ORDER BY seq DESC LIMIT $2::int;

-- name: load_tomb
INSERT INTO {s}.tombs (id, revision, last_due_ms)
SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS b (id, revision, last_due_ms)
WHERE NOT EXISTS (SELECT 1 FROM {s}.jobs AS j WHERE j.id = b.id)
ON CONFLICT (id) DO NOTHING RETURNING id;

-- Runs as they were dumped, whose ids and keys are free; arrays in the order of a run's columns, then its version and
-- its history_class, which live ones have none of.  A live one goes where its job is.
-- name: load_run
WITH b AS MATERIALIZED (
  SELECT *, cause <> 0 AND state < 2 AND visible_ms > {s}.now_ms() AS later FROM unnest(
    $1::text[], $2::text[], $3::bigint[], $4::smallint[], $5::text[], $6::bytea[], $7::smallint[], $8::text[],
    $9::text[], $10::boolean[], $11::smallint[], $12::text[], $13::bigint[], $14::int[], $15::int[], $16::int[],
    $17::int[], $18::text[], $19::text[], $20::bigint[], $21::text[], $22::bigint[], $23::bigint[], $24::boolean[],
    $25::boolean[], $26::text[], $27::bytea[], $28::int[], $29::text[], $30::bytea[], $31::smallint[],
    $32::smallint[]
  ) WITH ORDINALITY AS b
    (id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, state, held_reason, visible_ms, attempt,
     lease_losses, crashes, fence, token, owner, lease_until_ms, cancel, started_ms, finished_ms, failed, changed, error,
     result, deaths, progress, tried, version, history_class, place)
), live AS (
  INSERT INTO {s}.runs
    (id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, attempt, lease_losses, crashes, started_ms,
     finished_ms, failed, changed, error, result, deaths, tried, later)
  SELECT id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, attempt, lease_losses, crashes,
    started_ms, finished_ms, failed, changed, error, result, deaths, tried, later
  FROM b WHERE history_class IS NULL AND NOT EXISTS (SELECT 1 FROM {s}.history WHERE history.id = b.id) ORDER BY place
  ON CONFLICT DO NOTHING RETURNING seq, id
), queued AS (
  INSERT INTO {s}.queue
    (seq, job_id, priority, due_ms, state, held_reason, visible_ms, fence, token, owner, lease_until_ms, cancel,
     progress, version, later)
  SELECT live.seq, b.job_id, b.priority, b.due_ms, b.state, b.held_reason, b.visible_ms, b.fence, b.token, b.owner,
    b.lease_until_ms, b.cancel, b.progress, coalesce(j.version, b.version), b.later
  FROM live JOIN b ON b.id = live.id LEFT JOIN {s}.jobs AS j ON j.id = b.job_id
  RETURNING seq, version
), finished AS (
  INSERT INTO {s}.history
  SELECT nextval('{s}.run_seq'), id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, state,
    held_reason, visible_ms, attempt, lease_losses, crashes, fence, token, owner, lease_until_ms, cancel, started_ms,
    coalesce(finished_ms, 0), failed, changed, error, result, deaths, progress, tried, '', history_class, version
  FROM (
    SELECT * FROM b WHERE history_class IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {s}.runs WHERE runs.id = b.id) ORDER BY place
  ) AS b
  ON CONFLICT DO NOTHING RETURNING id, version
)
SELECT live.id, queued.version FROM live JOIN queued ON queued.seq = live.seq UNION ALL SELECT id, version FROM finished;
