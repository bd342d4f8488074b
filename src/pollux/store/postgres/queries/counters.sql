-- The last statement of every write: entries, counts, notification; and whether an id that was just made had ended meanwhile.
-- name: finish
WITH told AS (
  INSERT INTO {s}.feed (version, ends, body)
  SELECT $15::smallint, t.ends, t.body FROM unnest($1::int[], $2::bytea[]) WITH ORDINALITY AS t (ends, body, place) ORDER BY t.place
), counted AS (
  UPDATE {s}.counters
  SET held = held + $3::int, ready = ready + $4::int, leased = leased + $5::int, dead = dead + $6::int,
      feed = feed + $7::int, ends = ends + $8::int, jobs = jobs + $9::int, stops = stops + $10::int,
      clock_ms = greatest(clock_ms, $11::bigint)
  WHERE version = $15::smallint AND slot = pg_backend_pid() % 16
)
SELECT
  ARRAY(SELECT id FROM {s}.history WHERE id = ANY($14::text[])),
  (SELECT pg_notify($12::text, $13::text)::text WHERE $13::text <> '');

-- The same in a transaction of the user's own: it may last, so it waits for no slot and holds none.
-- name: join
WITH told AS (
  INSERT INTO {s}.feed (version, ends, body)
  SELECT $15::smallint, t.ends, t.body FROM unnest($1::int[], $2::bytea[]) WITH ORDINALITY AS t (ends, body, place) ORDER BY t.place
), counted AS (
  INSERT INTO {s}.counters (version, slot, held, ready, leased, dead, feed, ends, jobs, stops, clock_ms)
  VALUES ($15::smallint, nextval('{s}.counters_slot'), $3::int, $4::int, $5::int, $6::int, $7::int, $8::int, $9::int, $10::int, $11::bigint)
)
SELECT
  ARRAY(SELECT id FROM {s}.history WHERE id = ANY($14::text[])),
  (SELECT pg_notify($12::text, $13::text)::text WHERE $13::text <> '');

-- name: now
SELECT {s}.now_ms();

-- name: lock
SELECT pg_advisory_xact_lock('{s}.notes'::regclass::oid::int, $1::int);

-- At every opening: a copy that came without its sequences (no logical replication takes them along) would give new runs the
-- numbers of finished ones, and they could never end.  A number that is given stands for a block of 1000.
-- name: catch_up
SELECT setval('{s}.run_seq', m.seq) FROM {s}.run_seq AS s, (
  SELECT greatest((SELECT max(seq) FROM {s}.queue), (SELECT max(seq) FROM {s}.history)) AS seq
) AS m
WHERE m.seq >= s.last_value + CASE WHEN s.is_called THEN 1000 ELSE 0 END;

-- Somebody put rows there under numbers of their own, or brought them from elsewhere without the sequences: ours go on
-- behind all that are within reach.  By `nextval` alone: no number is given twice, however many ask for one meanwhile.
-- name: step_over
SELECT count(nextval('{s}.feed_id_seq')) FROM {s}.feed_id_seq AS s, generate_series(s.last_value + 1, (
  SELECT max(f.id) FROM (SELECT DISTINCT version FROM {s}.counters) AS v CROSS JOIN LATERAL (
    SELECT id FROM {s}.feed WHERE feed.version = v.version AND id <= s.last_value + $1::bigint ORDER BY id DESC LIMIT 1
  ) AS f
))
UNION ALL
SELECT count(nextval('{s}.claims_n_seq')) FROM {s}.claims_n_seq AS s, generate_series(s.last_value + 1, (
  SELECT max(n) FROM {s}.claims WHERE n <= s.last_value + $1::bigint
))
UNION ALL
SELECT count(nextval('{s}.jobs_n_seq')) FROM {s}.jobs_n_seq AS s, generate_series(s.last_value + 1, (
  SELECT max(n) FROM {s}.jobs WHERE n <= s.last_value + $1::bigint
))
UNION ALL
SELECT count(nextval('{s}.tombs_n_seq')) FROM {s}.tombs_n_seq AS s, generate_series(s.last_value + 1, (
  SELECT max(n) FROM {s}.tombs WHERE n <= s.last_value + $1::bigint
))
UNION ALL
SELECT count(nextval('{s}.counters_slot')) FROM {s}.counters_slot AS s, generate_series(s.last_value + 1, (
  SELECT max(slot) FROM {s}.counters WHERE slot <= s.last_value + $1::bigint
))
UNION ALL
SELECT count(nextval('{s}.run_seq')) FROM {s}.run_seq AS s, generate_series(s.last_value + 1000, greatest(
  (SELECT max(seq) FROM {s}.queue WHERE seq <= s.last_value + 1000 * $1::bigint),
  (SELECT max(seq) FROM {s}.history WHERE seq <= s.last_value + 1000 * $1::bigint)
), 1000);

-- Answers how many rows it gathered: as many as asked if there may be more.
-- name: gather
WITH gone AS (
  DELETE FROM {s}.counters
  WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM {s}.counters WHERE slot >= 16 ORDER BY slot LIMIT $1::int FOR UPDATE SKIP LOCKED
  ))
  RETURNING *
), total AS (
  SELECT version, sum(held) AS held, sum(ready) AS ready, sum(feed) AS feed, sum(ends) AS ends, sum(stops) AS stops
  FROM gone GROUP BY version
), added AS (
  UPDATE {s}.counters AS t
  SET held = t.held + total.held, ready = t.ready + total.ready, feed = t.feed + total.feed, ends = t.ends + total.ends,
      stops = t.stops + total.stops
  FROM total WHERE t.version = total.version AND t.slot = pg_backend_pid() % 16
)
SELECT count(*) FROM gone;

-- name: counts
SELECT
  coalesce(sum(held) FILTER (WHERE version = coalesce($1::smallint, version)), 0)::bigint,
  coalesce(sum(ready) FILTER (WHERE version = coalesce($1::smallint, version)), 0)::bigint,
  coalesce(sum(leased) FILTER (WHERE version = coalesce($1::smallint, version)), 0)::bigint,
  sum(dead)::bigint,
  coalesce(sum(feed) FILTER (WHERE version = coalesce($1::smallint, version)), 0)::bigint,
  coalesce(sum(ends) FILTER (WHERE version = coalesce($1::smallint, version)), 0)::bigint,
  coalesce(sum(jobs) FILTER (WHERE version = coalesce($1::smallint, version)), 0)::bigint
FROM {s}.counters;

-- The first of each queue are counted.
-- name: lines
SELECT coalesce(sum(found.ready), 0)::bigint, min(found.first_ms)::bigint
FROM unnest(ARRAY[1, 2, 3]::smallint[]) AS p (priority)
LEFT JOIN (SELECT DISTINCT version FROM {s}.counters WHERE $1::smallint IN (0, version)) AS v ON true
CROSS JOIN LATERAL (
  SELECT count(*) FILTER (WHERE first.visible_ms <= coalesce($2::bigint, {s}.now_ms())) AS ready,
    min(first.visible_ms) AS first_ms
  FROM (
    SELECT visible_ms, seq FROM {s}.queue WHERE state = 1 AND version = v.version AND priority = p.priority
    ORDER BY visible_ms, seq LIMIT 10001
  ) AS first
) AS found
GROUP BY p.priority ORDER BY p.priority;

-- What stands before the run $3, counted to $4: its own queue up to its place, those of higher priority up to now, and
-- nothing of the others, nor if it has no place.
-- name: ahead
WITH now AS MATERIALIZED (SELECT coalesce($2::bigint, {s}.now_ms()) AS ms), place AS MATERIALIZED (
  SELECT q.priority, now.ms AS now_ms, least(q.visible_ms, now.ms + 1) AS end_ms,
    CASE WHEN q.visible_ms <= now.ms THEN q.seq ELSE 0 END AS end_seq
  FROM now, {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq
  WHERE r.id = $3::text AND q.state + 0 = 1
)
SELECT coalesce(sum(found.ready), 0)::bigint, min(found.first_ms)::bigint
FROM unnest(ARRAY[1, 2, 3]::smallint[]) AS p (priority)
LEFT JOIN place ON p.priority <= place.priority
LEFT JOIN (SELECT DISTINCT version FROM {s}.counters WHERE $1::smallint IN (0, version)) AS v ON true
CROSS JOIN LATERAL (
  SELECT (
    SELECT count(*) FROM (
      SELECT FROM {s}.queue
      WHERE state = 1 AND version = v.version AND priority = p.priority
        AND (visible_ms, seq) < (
          CASE WHEN p.priority < place.priority THEN place.now_ms + 1 ELSE place.end_ms END,
          CASE WHEN p.priority < place.priority THEN 0 ELSE place.end_seq END
        )
      ORDER BY visible_ms, seq LIMIT $4::bigint
    ) AS counted
  ) AS ready, (
    SELECT visible_ms FROM {s}.queue WHERE state = 1 AND version = v.version AND priority = p.priority
    ORDER BY visible_ms, seq LIMIT 1
  ) AS first_ms
) AS found
GROUP BY p.priority ORDER BY p.priority;

-- name: wake
SELECT pg_notify($1::text, $2::text);
