-- name: found
SELECT
  r.id, q.seq, q.token, q.state, q.settled, r.job_id, r.due_ms, r.cause, r.gated, q.cancel, r.attempt, q.visible_ms,
  q.held_reason, q.fence, r.tried, r.key, q.version, coalesce($2::bigint, {s}.now_ms())
FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq
WHERE r.id = ANY($1::text[]) ORDER BY q.seq FOR UPDATE OF q;

-- name: ended
SELECT id, seq, token, state, settled FROM {s}.history WHERE id = ANY($1::text[]);

-- Before the runs: a move or a delete locks jobs first, and their runs after them.
-- name: standing
SELECT id FROM {s}.jobs
WHERE id = ANY(ARRAY(SELECT job_id FROM {s}.runs WHERE id = ANY($1::text[])) || $2::text[]) ORDER BY id FOR KEY SHARE;

-- The plain end of runs of which the caller knows all but whether they are still its own: the whole settlement in one
-- statement.  If one of them is not, `all_of` raises, and nothing has happened.
-- Arrays as `packed` makes them: one value stands for all.
-- name: done
WITH stood AS (
  DELETE FROM {s}.queue AS q
  USING unnest($1::bigint[], $2::text[], $3::smallint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::boolean[],
               $8::text[], $9::bytea[])
    AS b (seq, token, history_class, started_ms, finished_ms, failed, changed, error, result)
  WHERE q.seq = b.seq AND q.state + 0 = 2 AND q.token = coalesce(b.token, ($2::text[])[1]) AND q.cancel = ''
    AND q.version = $13::smallint
  RETURNING q.seq, q.job_id, q.later, q.visible_ms, q.held_reason, q.fence, q.token, q.progress, q.settled,
    coalesce(b.history_class, ($3::smallint[])[1]) AS history_class, coalesce(b.started_ms, ($4::bigint[])[1]) AS started_ms,
    coalesce(b.finished_ms, ($5::bigint[])[1]) AS finished_ms, coalesce(b.failed, ($6::boolean[])[1]) AS failed,
    b.changed, coalesce(b.error, ($8::text[])[1]) AS error, b.result
), gone AS (
  DELETE FROM {s}.runs AS r USING stood AS q WHERE r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq
  RETURNING r.seq, r.id, r.job_id, r.due_ms, r.cause, r.key, r.payload, r.priority, r.grp, r.target, r.gated,
    3, q.held_reason, q.visible_ms, r.attempt, r.lease_losses, r.crashes, q.fence, q.token, '', 0, '', q.started_ms,
    q.finished_ms, q.failed, q.changed, q.error, q.result, 1, q.progress, r.tried, q.settled, q.history_class, $13::smallint
), kept AS (
  INSERT INTO {s}.history SELECT * FROM gone RETURNING 1
), sure AS (
  SELECT {s}.all_of(count(*), cardinality($1::bigint[])) AS n FROM kept
), told AS (
  INSERT INTO {s}.feed (version, ends, body) SELECT $13::smallint, sure.n, $10::bytea FROM sure
)
UPDATE {s}.counters SET leased = leased - sure.n, feed = feed + 1, ends = ends + sure.n
FROM sure WHERE version = $13::smallint AND slot = pg_backend_pid() % 16
RETURNING (SELECT pg_notify($11::text, $12::text)::text WHERE $12::text <> '');

-- name: finish
WITH stood AS (
  DELETE FROM {s}.queue AS q
  USING unnest($1::bigint[], $2::smallint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::boolean[],
               $8::text[], $9::bytea[], $10::text[], $11::int[], $12::int[], $13::text[])
    AS b (seq, state, history_class, started_ms, finished_ms, failed, changed, error, result, cancel, deaths, crashed, progress)
  WHERE q.seq = b.seq
  RETURNING q.seq, q.job_id, q.later, q.visible_ms, q.held_reason, q.fence, q.token, q.settled, q.version, b.state, b.history_class, b.started_ms,
    b.finished_ms, b.failed, b.changed, b.error, b.result, b.cancel, b.deaths, b.crashed,
    CASE WHEN b.progress = '' THEN q.progress ELSE b.progress END AS progress
), gone AS (
  DELETE FROM {s}.runs AS r USING stood AS q WHERE r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq
  RETURNING r.seq, r.id, r.job_id, r.due_ms, r.cause, r.key, r.payload, r.priority, r.grp, r.target, r.gated,
    q.state, q.held_reason, q.visible_ms, r.attempt, r.lease_losses, r.crashes + q.crashed, q.fence, q.token, '', 0,
    q.cancel, q.started_ms, q.finished_ms, q.failed, q.changed, q.error, q.result, q.deaths, q.progress, r.tried,
    q.settled, q.history_class, q.version
)
INSERT INTO {s}.history SELECT * FROM gone;

-- name: retry
WITH b AS (
  SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
                       $7::boolean[], $8::text[], $9::bytea[], $10::bytea[], $11::int[], $12::text[], $13::boolean[])
    AS b (seq, state, reason, visible_ms, started_ms, finished_ms, changed, error, result, tried, crashed, progress, later)
), again AS (
  UPDATE {s}.runs AS r
  SET attempt = r.attempt + 1, started_ms = b.started_ms, finished_ms = b.finished_ms, failed = true,
      changed = b.changed, error = b.error, result = b.result, tried = b.tried, crashes = r.crashes + b.crashed,
      later = r.later OR b.later
  FROM b JOIN {s}.queue AS q ON q.seq = b.seq WHERE r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq
)
UPDATE {s}.queue AS q
SET state = b.state, held_reason = b.reason, visible_ms = b.visible_ms, later = q.later OR b.later, settled = q.token, owner = '',
    lease_until_ms = 0, progress = CASE WHEN b.progress = '' THEN q.progress ELSE b.progress END
FROM b WHERE q.seq = b.seq;

-- name: hand_back
UPDATE {s}.queue AS q
SET state = b.state, held_reason = b.reason, visible_ms = b.visible_ms, settled = q.token, owner = '', lease_until_ms = 0,
    progress = CASE WHEN b.progress = '' THEN q.progress ELSE b.progress END
FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::bigint[], $5::text[]) AS b (seq, state, reason, visible_ms, progress)
WHERE q.seq = b.seq;

-- Of all jobs of a call at once, by job: how many letters went, and for how many deaths they stood.  Only of what the
-- schedule fired (cause 0): forced and enqueued runs stay, to be revived or dropped by hand.  They are history from now on: done (3).
-- name: clear_dead_letters
WITH gone AS (
  UPDATE {s}.history SET state = 3, history_class = 0 WHERE job_id = ANY($1::text[]) AND history_class = 2 AND cause = 0
  RETURNING job_id, deaths
)
SELECT job_id, count(*), sum(deaths)::bigint FROM gone GROUP BY job_id;
