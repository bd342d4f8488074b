-- One look at everything that decides whether there is work, and in the same statement the lease of what comes first:
-- of the first priority, in the order asked, that has something visible; rows that others hold are passed over.  It
-- leases nothing if something else comes first, unless that was looked at before ($9): the same token was here, the
-- leader is too far behind, the clock came back, a lease ended.
-- First the runs, short as at their first delivery, then each of their jobs once, then the look.
-- name: take
WITH seen AS MATERIALIZED (
  SELECT
    coalesce($2::bigint, {s}.now_ms()) AS now_ms,
    ARRAY[
      (SELECT visible_ms FROM {s}.queue
       WHERE state = 1 AND version = $3::smallint AND priority = 1 ORDER BY visible_ms LIMIT 1),
      (SELECT visible_ms FROM {s}.queue
       WHERE state = 1 AND version = $3::smallint AND priority = 2 ORDER BY visible_ms LIMIT 1),
      (SELECT visible_ms FROM {s}.queue
       WHERE state = 1 AND version = $3::smallint AND priority = 3 ORDER BY visible_ms LIMIT 1)
    ] AS visible_ms,
    (SELECT lease_until_ms FROM {s}.queue
     WHERE state = 2 AND version = $3::smallint ORDER BY lease_until_ms LIMIT 1) AS ends_ms,
    (SELECT coalesce(max(part), 0) FROM {s}.claims WHERE token = $1::text) AS parts,
    t.ends, t.stops, t.clock_ms
  FROM (
    SELECT coalesce(sum(ends) FILTER (WHERE version = $3::smallint), 0)::bigint AS ends, sum(stops)::bigint AS stops,
      coalesce(max(clock_ms) FILTER (WHERE version = $3::smallint), 0) AS clock_ms
    FROM {s}.counters
  ) AS t
), chosen AS MATERIALIZED (
  SELECT asked.priority, seen.now_ms
  FROM seen CROSS JOIN unnest($4::smallint[]) WITH ORDINALITY AS asked (priority, place)
  WHERE seen.visible_ms[asked.priority] <= seen.now_ms
    AND ($9::boolean OR (seen.parts = 0 AND seen.ends <= $5::bigint AND seen.clock_ms <= seen.now_ms
                         AND coalesce(seen.ends_ms > seen.now_ms, true)))
  ORDER BY asked.place LIMIT 1
), c AS MATERIALIZED (
  SELECT ctid AS at FROM {s}.queue
  WHERE state = 1 AND version = $3::smallint AND priority = (SELECT priority FROM chosen)
    AND visible_ms <= (SELECT now_ms FROM chosen)
  ORDER BY visible_ms, seq LIMIT $6::int FOR UPDATE SKIP LOCKED
), u AS (
  UPDATE {s}.queue AS q
  SET state = 2, fence = q.fence + 1, token = $1::text || ':' || (q.fence + 1), owner = $7::text,
      lease_until_ms = (SELECT now_ms FROM chosen) + $8::bigint, lease_ms = $8::bigint, progress = ''
  WHERE q.ctid = ANY(ARRAY(SELECT at FROM c))
  RETURNING q.seq, q.job_id, q.later, q.visible_ms, q.fence
), k AS (
  INSERT INTO {s}.claims (token, part, seqs)
  SELECT $1::text, $10::int, array_agg(u.seq ORDER BY u.visible_ms, u.seq) FROM u HAVING count(*) > 0
), t AS (
  UPDATE {s}.counters
  SET ready = ready - n.taken, leased = leased + n.taken, clock_ms = greatest(clock_ms, (SELECT now_ms FROM chosen))
  FROM (SELECT count(*) AS taken FROM u) AS n
  WHERE version = $3::smallint AND slot = pg_backend_pid() % 16 AND n.taken > 0
), taken AS MATERIALIZED (
  SELECT r.seq, r.id, r.job_id, r.due_ms, r.cause, r.key, r.payload, r.priority, r.grp, r.target, r.gated,
    u.visible_ms, u.fence
  FROM u JOIN {s}.runs AS r ON r.job_id = u.job_id AND r.later = u.later AND r.seq = u.seq
)
SELECT *, NULL::bytea, NULL::bigint[] FROM taken
UNION ALL
SELECT j.revision, j.id, NULL, j.next_due_ms, j.version, NULL, j.definition, NULL, NULL, NULL, NULL, j.last_due_ms, NULL,
  j.memory, NULL
FROM {s}.jobs AS j WHERE j.id IN (SELECT job_id FROM taken)
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
  ARRAY[now_ms, visible_ms[1], visible_ms[2], visible_ms[3], ends_ms, parts, ends, stops, clock_ms,
        (SELECT priority FROM chosen)]
FROM seen;

-- name: again
SELECT {live_columns}, j.id, j.revision, j.next_due_ms, j.last_due_ms, j.memory, j.definition, j.version
FROM {s}.claims AS c
CROSS JOIN LATERAL unnest(c.seqs) WITH ORDINALITY AS taken (seq, place)
JOIN {s}.queue AS q ON q.seq = taken.seq
JOIN {s}.runs AS r ON r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq
LEFT JOIN {s}.jobs AS j ON j.id = r.job_id
WHERE c.token = $1::text AND q.state + 0 = 2 AND q.token = $1::text || ':' || q.fence AND q.lease_until_ms > $2::bigint
ORDER BY c.part, taken.place;

-- name: whole
SELECT r.seq, {live_columns} FROM {s}.queue AS q JOIN {s}.runs AS r ON r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq WHERE q.seq = ANY($1::bigint[]);

-- Leased to us just now: have they a job?
-- name: ours
SELECT q.seq, q.state, r.id, r.job_id, r.due_ms, r.cause, r.gated, q.version,
  EXISTS (SELECT 1 FROM {s}.jobs WHERE jobs.id = r.job_id)
FROM {s}.queue AS q JOIN {s}.runs AS r ON r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq
WHERE q.seq = ANY($1::bigint[]) AND q.state + 0 = 2 AND q.token = $2::text || ':' || q.fence
ORDER BY q.seq FOR UPDATE OF q;

-- name: forget
DELETE FROM {s}.claims WHERE n = ANY(ARRAY(
  SELECT n FROM {s}.claims WHERE n <= (SELECT max(n) FROM {s}.claims) - $1::bigint
  ORDER BY n LIMIT 1000 FOR UPDATE SKIP LOCKED
));

-- What others hold that may yet be left to us: waits until they let go.
-- name: await
SELECT seq FROM {s}.queue
WHERE state = 1 AND version = $3::smallint AND priority = $1::smallint AND visible_ms <= $2::bigint
ORDER BY visible_ms, seq LIMIT 1 FOR UPDATE;

-- name: lost
SELECT
  q.seq, r.id, r.job_id, r.due_ms, r.cause, r.gated, q.cancel, r.lease_losses, q.lease_until_ms, q.fence, q.owner,
  r.tried, EXISTS (SELECT 1 FROM {s}.jobs WHERE jobs.id = r.job_id)
FROM {s}.queue AS q JOIN {s}.runs AS r ON r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq
WHERE q.state = 2 AND q.version = $3::smallint AND q.lease_until_ms <= $1::bigint
ORDER BY q.lease_until_ms LIMIT $2::int FOR UPDATE OF q SKIP LOCKED;

-- name: take_back
WITH b AS (
  SELECT * FROM unnest($1::bigint[], $2::int[], $3::bytea[]) AS b (seq, losses, tried)
), lost AS (
  UPDATE {s}.runs AS r SET lease_losses = b.losses, tried = b.tried
  FROM b JOIN {s}.queue AS q ON q.seq = b.seq WHERE r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq
)
UPDATE {s}.queue AS q
SET state = 1, visible_ms = q.lease_until_ms, token = '', owner = '', lease_until_ms = 0 FROM b WHERE q.seq = b.seq;

-- name: end
WITH stood AS (
  DELETE FROM {s}.queue AS q
  USING unnest($1::bigint[], $2::int[], $3::smallint[], $4::smallint[], $5::text[], $6::text[], $7::boolean[])
    AS b (seq, losses, state, history_class, cancel, error, failed)
  WHERE q.seq = b.seq
  RETURNING q.seq, q.job_id, q.later, q.held_reason, q.lease_until_ms, q.fence, q.progress, q.settled, q.version, b.losses, b.state, b.history_class,
    b.cancel, b.error, b.failed
), gone AS (
  DELETE FROM {s}.runs AS r USING stood AS q WHERE r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq
  RETURNING r.seq, r.id, r.job_id, r.due_ms, r.cause, r.key, r.payload, r.priority, r.grp, r.target, r.gated, q.state,
    q.held_reason, q.lease_until_ms, r.attempt, q.losses, r.crashes, q.fence, '', '', 0, q.cancel, r.started_ms,
    $8::bigint, r.failed OR q.failed, r.changed, CASE WHEN q.error = '' THEN r.error ELSE q.error END, r.result,
    r.deaths, q.progress, r.tried, q.settled, q.history_class, q.version
)
INSERT INTO {s}.history SELECT * FROM gone;

-- The clock came back: no lease lasts longer from now than it was given for, and what had been visible stays so.
-- name: cut
UPDATE {s}.queue SET lease_until_ms = $1::bigint + lease_ms
WHERE state = 2 AND version = $2::smallint AND lease_until_ms > $1::bigint + lease_ms;

-- name: show
UPDATE {s}.queue SET visible_ms = visible_ms - ($2::bigint - $1::bigint)
WHERE state = 1 AND version = $3::smallint AND priority IN (1, 2, 3)
  AND visible_ms > $1::bigint AND visible_ms <= $2::bigint;

-- So does what is leased.
-- name: show_leased
UPDATE {s}.queue SET visible_ms = visible_ms - ($2::bigint - $1::bigint)
WHERE state = 2 AND version = $3::smallint AND visible_ms > $1::bigint AND visible_ms <= $2::bigint;

-- name: came_back
UPDATE {s}.counters SET clock_ms = least(clock_ms, $1::bigint) WHERE version = $2::smallint;
