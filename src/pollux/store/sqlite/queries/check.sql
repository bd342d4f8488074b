-- Walks over everything, for `pollux store check`; never on a busy line.

-- name: counted
SELECT
  (SELECT count(*) FROM runs WHERE state = 0),
  (SELECT count(*) FROM runs WHERE state = 1),
  (SELECT count(*) FROM runs WHERE state = 2),
  (SELECT count(*) FROM runs WHERE state = 4),
  (SELECT count(*) FROM feed),
  (SELECT coalesce(sum(ends), 0) FROM feed),
  (SELECT count(*) FROM jobs);

-- name: highest
SELECT (SELECT coalesce(max(id), 0) FROM feed), (SELECT coalesce(max(revision), 0) FROM notes);

-- name: sizes
SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM jobs), (SELECT count(*) FROM notes), (SELECT count(*) FROM log);

-- name: single
SELECT name FROM (
  SELECT 'term' AS name, count(*) AS n FROM term UNION ALL SELECT 'tally', count(*) FROM tally
) WHERE n <> 1 LIMIT ?;

-- name: shelves
SELECT id FROM runs
WHERE state NOT BETWEEN 0 AND 5 OR (shelf IS NULL) <> (state < 3) OR (shelf IS 2) <> (state = 4) LIMIT ?;

-- name: finished
SELECT id FROM runs WHERE shelf IS NOT NULL AND finished_ms IS NULL LIMIT ?;

-- name: leases
SELECT id FROM runs WHERE state = 2 AND (token = '' OR fence < 1) LIMIT ?;

-- name: orphans
SELECT id FROM runs
WHERE state < 2 AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = runs.job_id) LIMIT ?;

-- name: buried
SELECT jobs.id FROM jobs JOIN tombs ON tombs.id = jobs.id LIMIT ?;

-- name: feed
SELECT id, ends, body FROM feed WHERE id > ? ORDER BY id LIMIT ?;
