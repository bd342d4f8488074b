-- name: found
SELECT
  r.id, l.seq, l.token, l.state, l.settled, r.job_id, r.due_ms, r.cause, r.gated, l.cancel, r.attempt, l.visible_ms,
  l.held_reason, l.fence, r.tried, r.key, l.version, coalesce($2::bigint, {s}.now_ms())
FROM {s}.runs AS r JOIN {s}.line AS l ON l.seq = r.seq
WHERE r.id = ANY($1::text[]) ORDER BY l.seq FOR UPDATE OF l;

-- name: ended
SELECT id, seq, token, state, settled FROM {s}.past WHERE id = ANY($1::text[]);

-- Before the runs: whoever moves or deletes jobs locks them first, and their runs after them.
-- name: standing
SELECT id FROM {s}.jobs
WHERE id = ANY(ARRAY(SELECT job_id FROM {s}.runs WHERE id = ANY($1::text[])) || $2::text[]) ORDER BY id FOR KEY SHARE;

-- name: jobs
SELECT id, version FROM {s}.jobs WHERE id = ANY($1::text[]) ORDER BY id FOR KEY SHARE;

-- The plain end of runs of which the caller knows all but whether they are still its own: the whole settlement in one
-- statement.  If one of them is not, it divides by zero, and nothing has happened.
-- Arrays as `packed` makes them: one value stands for all.
-- name: done
WITH stood AS (
  DELETE FROM {s}.line AS l
  USING unnest($1::bigint[], $2::text[], $3::smallint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::boolean[],
               $8::text[], $9::bytea[])
    AS b (seq, token, shelf, started_ms, finished_ms, failed, changed, error, result)
  WHERE l.seq = b.seq AND l.state + 0 = 2 AND l.token = coalesce(b.token, ($2::text[])[1]) AND l.cancel = ''
    AND l.version = $13::smallint
  RETURNING l.seq, l.job_id, l.later, l.visible_ms, l.held_reason, l.fence, l.token, l.progress, l.settled,
    coalesce(b.shelf, ($3::smallint[])[1]) AS shelf, coalesce(b.started_ms, ($4::bigint[])[1]) AS started_ms,
    coalesce(b.finished_ms, ($5::bigint[])[1]) AS finished_ms, coalesce(b.failed, ($6::boolean[])[1]) AS failed,
    b.changed, coalesce(b.error, ($8::text[])[1]) AS error, b.result
), gone AS (
  DELETE FROM {s}.runs AS r USING stood AS l WHERE r.job_id = l.job_id AND r.later = l.later AND r.seq = l.seq
  RETURNING r.seq, r.id, r.job_id, r.due_ms, r.cause, r.key, r.payload, r.priority, r.grp, r.target, r.gated,
    3, l.held_reason, l.visible_ms, r.attempt, r.lease_losses, r.crashes, l.fence, l.token, '', 0, '', l.started_ms,
    l.finished_ms, l.failed, l.changed, l.error, l.result, 1, l.progress, r.tried, l.settled, l.shelf, $13::smallint
), kept AS (
  INSERT INTO {s}.past SELECT * FROM gone RETURNING 1
), sure AS (
  SELECT count(*) / (count(*) = cardinality($1::bigint[]))::int AS n FROM kept
), told AS (
  INSERT INTO {s}.feed (version, ends, body) SELECT $13::smallint, sure.n, $10::bytea FROM sure
)
UPDATE {s}.tally SET leased = leased - sure.n, feed = feed + 1, ends = ends + sure.n
FROM sure WHERE version = $13::smallint AND slot = pg_backend_pid() % 16
RETURNING (SELECT pg_notify($11::text, $12::text)::text WHERE $12::text <> '');

-- name: finish
WITH stood AS (
  DELETE FROM {s}.line AS l
  USING unnest($1::bigint[], $2::smallint[], $3::smallint[], $4::bigint[], $5::bigint[], $6::boolean[], $7::boolean[],
               $8::text[], $9::bytea[], $10::text[], $11::int[], $12::int[], $13::text[])
    AS b (seq, state, shelf, started_ms, finished_ms, failed, changed, error, result, cancel, deaths, crashed, progress)
  WHERE l.seq = b.seq
  RETURNING l.seq, l.job_id, l.later, l.visible_ms, l.held_reason, l.fence, l.token, l.settled, l.version, b.state, b.shelf, b.started_ms,
    b.finished_ms, b.failed, b.changed, b.error, b.result, b.cancel, b.deaths, b.crashed,
    CASE WHEN b.progress = '' THEN l.progress ELSE b.progress END AS progress
), gone AS (
  DELETE FROM {s}.runs AS r USING stood AS l WHERE r.job_id = l.job_id AND r.later = l.later AND r.seq = l.seq
  RETURNING r.seq, r.id, r.job_id, r.due_ms, r.cause, r.key, r.payload, r.priority, r.grp, r.target, r.gated,
    l.state, l.held_reason, l.visible_ms, r.attempt, r.lease_losses, r.crashes + l.crashed, l.fence, l.token, '', 0,
    l.cancel, l.started_ms, l.finished_ms, l.failed, l.changed, l.error, l.result, l.deaths, l.progress, r.tried,
    l.settled, l.shelf, l.version
)
INSERT INTO {s}.past SELECT * FROM gone;

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
  FROM b JOIN {s}.line AS l ON l.seq = b.seq WHERE r.job_id = l.job_id AND r.later = l.later AND r.seq = l.seq
)
UPDATE {s}.line AS l
SET state = b.state, held_reason = b.reason, visible_ms = b.visible_ms, later = l.later OR b.later, settled = l.token, owner = '',
    lease_until_ms = 0, progress = CASE WHEN b.progress = '' THEN l.progress ELSE b.progress END
FROM b WHERE l.seq = b.seq;

-- name: hand_back
UPDATE {s}.line AS l
SET state = b.state, held_reason = b.reason, visible_ms = b.visible_ms, settled = l.token, owner = '', lease_until_ms = 0,
    progress = CASE WHEN b.progress = '' THEN l.progress ELSE b.progress END
FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::bigint[], $5::text[]) AS b (seq, state, reason, visible_ms, progress)
WHERE l.seq = b.seq;

-- Of all jobs of a call at once, by job: how many letters went, and for how many deaths they stood.  Only of what the
-- schedule fired (cause 0): what somebody asked for is theirs to revive or drop.  They are history from now on: done (3).
-- name: clear_dead_letters
WITH gone AS (
  UPDATE {s}.past SET state = 3, shelf = 0 WHERE job_id = ANY($1::text[]) AND shelf = 2 AND cause = 0
  RETURNING job_id, deaths
)
SELECT job_id, count(*), sum(deaths)::bigint FROM gone GROUP BY job_id;
