-- Walks over everything, for `pollux store check`; never on a busy queue.

-- name: stored
SELECT version, sum(held)::bigint, sum(ready)::bigint, sum(leased)::bigint, sum(feed)::bigint, sum(ends)::bigint,
  sum(jobs)::bigint FROM {s}.counters GROUP BY version ORDER BY version;

-- name: counted
SELECT v.version, coalesce(r.held, 0), coalesce(r.ready, 0), coalesce(r.leased, 0), coalesce(f.feed, 0),
  coalesce(f.ends, 0), coalesce(j.jobs, 0)
FROM (SELECT version FROM {s}.counters UNION SELECT version FROM {s}.queue UNION SELECT version FROM {s}.jobs
      UNION SELECT version FROM {s}.feed) AS v
LEFT JOIN (SELECT version, count(*) FILTER (WHERE state = 0) AS held, count(*) FILTER (WHERE state = 1) AS ready,
                  count(*) FILTER (WHERE state = 2) AS leased FROM {s}.queue GROUP BY version) AS r USING (version)
LEFT JOIN (SELECT version, count(*) AS feed, sum(ends)::bigint AS ends FROM {s}.feed GROUP BY version) AS f USING (version)
LEFT JOIN (SELECT version, count(*) AS jobs FROM {s}.jobs GROUP BY version) AS j USING (version)
ORDER BY v.version;

-- name: dead
SELECT (SELECT coalesce(sum(dead), 0)::bigint FROM {s}.counters), (SELECT count(*) FROM {s}.history WHERE state = 4);

-- name: slots
SELECT v.version, n.slot FROM (SELECT DISTINCT version FROM {s}.counters) AS v CROSS JOIN generate_series(0, 15) AS n (slot)
WHERE NOT EXISTS (SELECT 1 FROM {s}.counters AS t WHERE t.version = v.version AND t.slot = n.slot) LIMIT $1::int;

-- name: sizes
SELECT (SELECT count(*) FROM {s}.runs) + (SELECT count(*) FROM {s}.history), (SELECT count(*) FROM {s}.jobs),
  (SELECT count(*) FROM {s}.notes), (SELECT count(*) FROM {s}.log);

-- name: forget
DELETE FROM {s}.notes WHERE starts_with(key, $1::text);

-- name: indexes
SELECT c.relname::text, i.indisvalid AND i.indisready FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1::text;

-- name: states
SELECT id FROM (
  SELECT r.id FROM {s}.runs AS r LEFT JOIN {s}.queue AS q ON q.seq = r.seq AND q.job_id = r.job_id AND q.later = r.later
  WHERE q.seq IS NULL OR q.state NOT BETWEEN 0 AND 2
  UNION ALL SELECT 'number ' || q.seq FROM {s}.queue AS q WHERE NOT EXISTS (
    SELECT 1 FROM {s}.runs AS r WHERE r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq
  )
  UNION ALL SELECT id FROM {s}.history WHERE state NOT BETWEEN 3 AND 5 OR (history_class = 2) <> (state = 4)
  UNION ALL SELECT r.id FROM {s}.runs AS r JOIN {s}.history AS p ON p.id = r.id
) AS wrong LIMIT $1::int;

-- name: leases
SELECT r.id FROM {s}.queue AS q JOIN {s}.runs AS r ON r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq
WHERE q.state = 2 AND (q.token = '' OR q.fence < 1) LIMIT $1::int;

-- name: orphans
SELECT r.id FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq
WHERE q.state < 2 AND NOT EXISTS (SELECT 1 FROM {s}.jobs AS j WHERE j.id = r.job_id) LIMIT $1::int;

-- name: versions
SELECT r.id FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq JOIN {s}.jobs AS j ON j.id = r.job_id
WHERE j.version <> q.version LIMIT $1::int;

-- name: buried
SELECT j.id FROM {s}.jobs AS j JOIN {s}.tombs AS t ON t.id = j.id LIMIT $1::int;

-- name: feed
SELECT version, id, ends, body FROM {s}.feed WHERE (version, id) > ($1::smallint, $2::bigint)
ORDER BY version, id LIMIT $3::int;

-- No write is under way meanwhile: earlier ones have ended, later ones wait.
-- name: lock
LOCK TABLE {s}.queue, {s}.runs, {s}.history, {s}.jobs, {s}.feed, {s}.counters IN SHARE ROW EXCLUSIVE MODE;

-- name: fill
INSERT INTO {s}.counters (version, slot) VALUES ($1::smallint, $2::bigint);

-- name: clear
UPDATE {s}.counters SET held = 0, ready = 0, leased = 0, dead = 0, feed = 0, ends = 0, jobs = 0;

-- name: write
INSERT INTO {s}.counters (version, slot, held, ready, leased, feed, ends, jobs)
VALUES ($1::smallint, 0, $2::bigint, $3::bigint, $4::bigint, $5::bigint, $6::bigint, $7::bigint)
ON CONFLICT (version, slot) DO UPDATE SET held = excluded.held, ready = excluded.ready, leased = excluded.leased,
  feed = excluded.feed, ends = excluded.ends, jobs = excluded.jobs;

-- name: write_dead
UPDATE {s}.counters SET dead = $2::bigint WHERE version = $1::smallint AND slot = 0;
