-- Nobody may make a run of them before this write ends: not even who only needs them to stay.
-- name: stored
SELECT id, version, memory FROM {s}.jobs WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE;

-- name: jobs
UPDATE {s}.jobs SET version = $2::smallint, revision = revision + 1 WHERE id = ANY($1::text[]);

-- name: runs
WITH live AS MATERIALIZED (
  SELECT q.seq, r.id, r.job_id, q.version FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq
  WHERE r.job_id = ANY($1::text[]) ORDER BY q.seq FOR UPDATE OF q
)
UPDATE {s}.queue AS q SET version = $2::smallint FROM live WHERE q.seq = live.seq
RETURNING q.seq, q.state, live.id, live.job_id, live.version;

-- name: elsewhere
SELECT DISTINCT q.version FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq
WHERE r.job_id = ANY($1::text[]) AND q.version <> $2::smallint;

-- name: unread
SELECT id, body FROM {s}.feed WHERE version = ANY($1::smallint[]) AND ends > 0 ORDER BY id;

-- name: clock
SELECT coalesce(max(clock_ms), 0) FROM {s}.counters WHERE version = ANY($1::smallint[]);
