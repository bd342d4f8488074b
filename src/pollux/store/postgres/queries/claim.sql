-- One look at everything that decides whether there is work: no lock, no write.
-- name: look
SELECT
  coalesce($2::bigint, {s}.now_ms()),
  (SELECT visible_ms FROM {s}.runs
   WHERE state = 1 AND version = $3::smallint AND priority = 1 ORDER BY visible_ms LIMIT 1),
  (SELECT visible_ms FROM {s}.runs
   WHERE state = 1 AND version = $3::smallint AND priority = 2 ORDER BY visible_ms LIMIT 1),
  (SELECT visible_ms FROM {s}.runs
   WHERE state = 1 AND version = $3::smallint AND priority = 3 ORDER BY visible_ms LIMIT 1),
  (SELECT lease_until_ms FROM {s}.runs
   WHERE state = 2 AND version = $3::smallint ORDER BY lease_until_ms LIMIT 1),
  (SELECT coalesce(max(part), 0) FROM {s}.claims WHERE token = $1::text),
  t.ends, t.stops, t.clock_ms
FROM (
  SELECT coalesce(sum(ends) FILTER (WHERE version = $3::smallint), 0)::bigint AS ends, sum(stops)::bigint AS stops,
    coalesce(max(clock_ms) FILTER (WHERE version = $3::smallint), 0) AS clock_ms
  FROM {s}.tally
) AS t;

-- name: again
SELECT {run_columns}, j.id, j.revision, j.next_due_ms, j.last_due_ms, j.memory, j.definition, j.version
FROM {s}.claims AS c
CROSS JOIN LATERAL unnest(c.seqs) WITH ORDINALITY AS taken (seq, place)
JOIN {s}.runs AS r ON r.seq = taken.seq
LEFT JOIN {s}.jobs AS j ON j.id = r.job_id
WHERE c.token = $1::text AND r.state = 2 AND r.token = $1::text || ':' || r.fence AND r.lease_until_ms > $2::bigint
ORDER BY c.part, taken.place;

-- One priority, in one statement.  Rows that others hold are passed over; what has no job is seen but not leased.
-- name: lease
WITH c AS MATERIALIZED (
  SELECT seq, EXISTS (SELECT 1 FROM {s}.jobs WHERE jobs.id = runs.job_id) AS has_job FROM {s}.runs
  WHERE state = 1 AND version = $8::smallint AND priority = $1::smallint AND visible_ms <= $2::bigint
  ORDER BY visible_ms, seq LIMIT $3::int FOR UPDATE OF runs SKIP LOCKED
), u AS (
  UPDATE {s}.runs AS r
  SET state = 2, fence = r.fence + 1, token = $4::text || ':' || (r.fence + 1), owner = $5::text,
      lease_until_ms = $2::bigint + $6::bigint, lease_ms = $6::bigint, progress = ''
  FROM c WHERE r.seq = c.seq AND c.has_job
  RETURNING r.seq, {run_columns}
), k AS (
  INSERT INTO {s}.claims (token, part, seqs)
  SELECT $4::text, $7::int, array_agg(u.seq ORDER BY u.visible_ms, u.seq) FROM u HAVING count(*) > 0
), t AS (
  UPDATE {s}.tally
  SET ready = ready - n.taken, leased = leased + n.taken, clock_ms = greatest(clock_ms, $2::bigint)
  FROM (SELECT count(*) AS taken FROM u) AS n
  WHERE version = $8::smallint AND slot = pg_backend_pid() % 16 AND n.taken > 0
)
SELECT u.*, j.id, j.revision, j.next_due_ms, j.last_due_ms, j.memory, j.definition, j.version, o.orphans
FROM (SELECT count(*) FILTER (WHERE NOT has_job) AS orphans FROM c) AS o
LEFT JOIN (SELECT u.*, row_number() OVER (PARTITION BY u.job_id) AS nth FROM u) AS u ON true
LEFT JOIN {s}.jobs AS j ON u.nth = 1 AND j.id = u.job_id
ORDER BY u.visible_ms, u.seq;

-- name: forget
DELETE FROM {s}.claims WHERE n IN (
  SELECT n FROM {s}.claims WHERE n <= (SELECT max(n) FROM {s}.claims) - $1::bigint
  ORDER BY n LIMIT 1000 FOR UPDATE SKIP LOCKED
);

-- What others hold that may yet be left to us: waits until they let go.
-- name: await
SELECT seq FROM {s}.runs
WHERE state = 1 AND version = $3::smallint AND priority = $1::smallint AND visible_ms <= $2::bigint
ORDER BY visible_ms, seq LIMIT 1 FOR UPDATE;

-- name: orphans
SELECT r.seq, r.state, r.id, r.job_id, r.due_ms, r.cause, r.gated, r.version FROM {s}.runs AS r
WHERE r.state = 1 AND r.version = $3::smallint AND r.priority = $1::smallint AND r.visible_ms <= $2::bigint
  AND NOT EXISTS (SELECT 1 FROM {s}.jobs WHERE jobs.id = r.job_id)
ORDER BY r.visible_ms, r.seq LIMIT 1000 FOR UPDATE SKIP LOCKED;

-- name: lost
SELECT
  r.seq, r.id, r.job_id, r.due_ms, r.cause, r.gated, r.cancel, r.lease_losses, r.lease_until_ms,
  r.fence, r.owner, r.tried, EXISTS (SELECT 1 FROM {s}.jobs WHERE jobs.id = r.job_id)
FROM {s}.runs AS r WHERE r.state = 2 AND r.version = $3::smallint AND r.lease_until_ms <= $1::bigint
ORDER BY r.lease_until_ms LIMIT $2::int FOR UPDATE OF r SKIP LOCKED;

-- name: take_back
UPDATE {s}.runs AS r
SET state = 1, lease_losses = b.losses, visible_ms = r.lease_until_ms, tried = b.tried, token = '', owner = '',
    lease_until_ms = 0
FROM unnest($1::bigint[], $2::int[], $3::bytea[]) AS b (seq, losses, tried) WHERE r.seq = b.seq;

-- name: end
WITH gone AS (
  DELETE FROM {s}.runs AS r
  USING unnest($1::bigint[], $2::int[], $3::smallint[], $4::smallint[], $5::text[], $6::text[], $7::boolean[])
    AS b (seq, losses, state, shelf, cancel, error, failed)
  WHERE r.seq = b.seq
  RETURNING r.*, b.losses, b.state AS after, b.shelf, b.cancel AS why, b.error AS words, b.failed AS fails
)
INSERT INTO {s}.past
SELECT seq, id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, after, held_reason, lease_until_ms,
  attempt, losses, crashes, fence, '', '', 0, why, started_ms, $8::bigint, failed OR fails, changed,
  CASE WHEN words = '' THEN error ELSE words END, result, deaths, progress, tried, settled, shelf, version
FROM gone;

-- The clock came back: no lease lasts longer from now than it was given for, and what had been visible stays so.
-- name: cut
UPDATE {s}.runs SET lease_until_ms = $1::bigint + lease_ms
WHERE state = 2 AND version = $2::smallint AND lease_until_ms > $1::bigint + lease_ms;

-- name: show
UPDATE {s}.runs SET visible_ms = visible_ms - ($2::bigint - $1::bigint)
WHERE state = 1 AND version = $3::smallint AND priority IN (1, 2, 3)
  AND visible_ms > $1::bigint AND visible_ms <= $2::bigint;

-- name: came_back
UPDATE {s}.tally SET clock_ms = least(clock_ms, $1::bigint) WHERE version = $2::smallint;
