-- The term stands until this write ends: a new leader's election waits for it.
-- name: term
SELECT
  number, holder, c.now_ms, (SELECT sum(ready)::bigint FROM {s}.counters WHERE counters.version = $2::smallint),
  (SELECT coalesce(sum(seats), 0)::bigint FROM {s}.nodes
   WHERE nodes.until_ms > c.now_ms AND nodes.version = $2::smallint)
FROM {s}.term, (SELECT coalesce($1::bigint, {s}.now_ms()) AS now_ms) AS c
WHERE term.version = $2::smallint FOR SHARE OF term;

-- A plan that only reads and remembers, as most are at a low rate: all of it in one statement, if the term stands.  An
-- entry stays for a job that was to learn from it ($11 and $12: which from which) and has not.
-- name: learn
WITH term AS MATERIALIZED (
  SELECT
    t.number = $3::bigint AND t.holder <> '' AS is_ours, c.now_ms,
    (SELECT sum(ready)::bigint FROM {s}.counters WHERE counters.version = $2::smallint) AS ready,
    (SELECT coalesce(sum(seats), 0)::bigint FROM {s}.nodes
     WHERE nodes.until_ms > c.now_ms AND nodes.version = $2::smallint) AS seats
  FROM {s}.term AS t, (SELECT coalesce($1::bigint, {s}.now_ms()) AS now_ms) AS c
  WHERE t.version = $2::smallint FOR SHARE OF t
), learnt AS (
  UPDATE {s}.jobs AS j
  SET next_due_ms = b.next_due_ms,
      last_due_ms = CASE WHEN b.last_due_ms > coalesce(j.last_due_ms, b.last_due_ms - 1) THEN b.last_due_ms ELSE j.last_due_ms END,
      memory = b.memory, ended_ms = b.ended_ms
  FROM unnest($5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bytea[], $10::bigint[])
    AS b (id, revision, next_due_ms, last_due_ms, memory, ended_ms)
  WHERE j.id = b.id AND j.revision = b.revision AND j.version = $2::smallint AND (SELECT is_ours FROM term)
  RETURNING j.id
), kept AS (
  SELECT m.entry FROM unnest($11::text[], $12::bigint[]) AS m (job, entry) WHERE m.job NOT IN (SELECT id FROM learnt)
), read AS (
  DELETE FROM {s}.feed
  WHERE version = $2::smallint AND id = ANY($4::bigint[]) AND id NOT IN (SELECT entry FROM kept)
    AND (SELECT is_ours FROM term)
  RETURNING ends
), counted AS (
  UPDATE {s}.counters AS t SET feed = t.feed - gone.entries, ends = t.ends - gone.ends
  FROM (SELECT count(*) AS entries, sum(read.ends) AS ends FROM read) AS gone
  WHERE t.version = $2::smallint AND t.slot = pg_backend_pid() % 16 AND gone.entries > 0
)
SELECT is_ours, now_ms, ready, seats, ARRAY(SELECT id FROM learnt) FROM term;

-- name: consume
DELETE FROM {s}.feed WHERE version = $2::smallint AND id = ANY($1::bigint[]) RETURNING ends;

-- By how much the counts differ from what is there.  Both are seen at one moment, and a write changes both at once.
-- name: miscounted
SELECT f.entries - t.entries, f.ends - t.ends
FROM
  (SELECT count(*) AS entries, coalesce(sum(greatest(ends, 0)), 0)::bigint AS ends FROM {s}.feed
   WHERE version = $1::smallint) AS f,
  (SELECT coalesce(sum(feed), 0)::bigint AS entries, coalesce(sum(ends), 0)::bigint AS ends FROM {s}.counters
   WHERE version = $1::smallint) AS t;

-- Whether a run overlaps (see `Run.overlaps_at`), and whether its end is in the feed, is seen at one moment: none can end in
-- between.  What the plan has not read of the feed comes as rows without an id.
-- name: facts
WITH facts AS MATERIALIZED (
  SELECT j.id, j.n, j.revision, j.last_due_ms, EXISTS (SELECT 1 FROM {s}.overlapping(j.id, $6::bigint, 1))
  FROM {s}.jobs AS j WHERE j.id = ANY($1::text[]) AND j.version = $2::smallint ORDER BY j.id FOR NO KEY UPDATE OF j
), latest AS MATERIALIZED (
  SELECT e.id, sum(e.ends) OVER (ORDER BY e.id DESC) - e.ends AS later
  FROM (
    SELECT id, ends FROM {s}.feed
    WHERE $3::boolean AND version = $2::smallint AND ends > 0 AND id <> ALL($4::bigint[])
    ORDER BY id DESC LIMIT $5::bigint
  ) AS e
)
SELECT facts.*, NULL::bytea FROM facts
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, f.body
FROM latest JOIN {s}.feed AS f ON f.version = $2::smallint AND f.id = latest.id WHERE latest.later < $5::bigint;

-- By their numbers: a join might be planned over the whole queue.
-- name: live
SELECT
  q.seq, q.state, r.id, r.job_id, r.due_ms, r.cause, r.gated, q.version, q.cancel, r.key,
  q.state = 0 AND q.held_reason = $2::text
FROM {s}.queue AS q JOIN {s}.runs AS r ON r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq
WHERE q.seq = ANY(ARRAY(
  SELECT o.seq FROM unnest($1::text[]) AS asked (job_id)
  CROSS JOIN LATERAL {s}.overlapping(asked.job_id, $4::bigint, $3::bigint) AS o
))
ORDER BY q.seq FOR UPDATE OF q;

-- As above where nothing is done to them: how many, and does one wait for the others?  Their owners write on meanwhile.
-- name: crowds
SELECT asked.job_id, c.size, c.is_behind
FROM unnest($1::text[]) AS asked (job_id)
CROSS JOIN LATERAL (
  SELECT count(*) AS size, coalesce(bool_or(
    (SELECT q.state = 0 AND q.held_reason = $2::text FROM {s}.queue AS q WHERE q.seq = o.seq)
  ), false) AS is_behind
  FROM {s}.overlapping(asked.job_id, $4::bigint, $3::bigint) AS o
) AS c;

-- Held runs that are to begin alone: does each wait for others already, and does another of its job overlap that neither
-- waits so nor is one of these?
-- name: alone
SELECT
  r.id, r.job_id, q.held_reason = $3::text, r.cause = 0 OR q.visible_ms <= $4::bigint,
  EXISTS (
    SELECT 1 FROM {s}.overlapping(r.job_id, $4::bigint, NULL) AS o WHERE NOT (
      SELECT oq.state = 0 AND (oq.held_reason = $3::text OR oq.seq = ANY(ARRAY(SELECT seq FROM {s}.runs WHERE id = ANY($1::text[]))))
      FROM {s}.queue AS oq WHERE oq.seq = o.seq
    )
  )
FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq
WHERE r.id = ANY($1::text[]) AND q.state + 0 = 0 AND q.version = $2::smallint;

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
  SELECT q.seq FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq
  WHERE r.id = ANY($1::text[]) AND q.state + 0 = 0 AND q.version = $3::smallint ORDER BY q.seq FOR UPDATE OF q
)
UPDATE {s}.queue AS q SET state = 1, held_reason = '', visible_ms = greatest($2::bigint, q.visible_ms)
FROM held WHERE q.seq = held.seq RETURNING q.seq;

-- name: earlier
WITH waiting AS MATERIALIZED (
  SELECT q.seq, b.visible_ms
  FROM unnest($1::text[], $2::bigint[]) AS b (id, visible_ms)
  JOIN {s}.runs AS r ON r.id = b.id JOIN {s}.queue AS q ON q.seq = r.seq
  WHERE q.state + 0 IN (0, 1) AND q.visible_ms > b.visible_ms AND q.version = $3::smallint ORDER BY q.seq FOR UPDATE OF q
)
UPDATE {s}.queue AS q SET visible_ms = waiting.visible_ms FROM waiting WHERE q.seq = waiting.seq RETURNING q.seq;

-- name: hold
UPDATE {s}.queue AS q SET held_reason = b.reason
FROM unnest($1::text[], $2::text[]) AS b (id, reason) JOIN {s}.runs AS r ON r.id = b.id
WHERE q.seq = r.seq AND q.state + 0 = 0 AND q.version = $3::smallint;

-- name: update
UPDATE {s}.jobs AS j
SET next_due_ms = b.next_due_ms,
    last_due_ms = CASE WHEN b.last_due_ms > coalesce(j.last_due_ms, b.last_due_ms - 1) THEN b.last_due_ms ELSE j.last_due_ms END,
    memory = b.memory, ended_ms = b.ended_ms
FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bytea[], $5::bigint[])
  AS b (id, next_due_ms, last_due_ms, memory, ended_ms)
WHERE j.id = b.id;
