-- Walks over everything, for `pollux store check`; never on a busy queue.

-- name: counted
SELECT
  (SELECT count(*) FROM runs WHERE state = 0 AND version = ?1),
  (SELECT count(*) FROM runs WHERE state = 1 AND version = ?1),
  (SELECT count(*) FROM runs WHERE state = 2 AND version = ?1),
  (SELECT count(*) FROM runs WHERE state = 4 AND ?1 = 2),
  (SELECT count(*) FROM feed WHERE id BETWEEN ?2 AND ?3),
  (SELECT coalesce(sum(ends), 0) FROM feed WHERE id BETWEEN ?2 AND ?3),
  (SELECT count(*) FROM jobs WHERE version = ?1);

-- name: versions
SELECT version FROM counters UNION SELECT version FROM jobs UNION SELECT version FROM runs WHERE state < 3 ORDER BY 1;

-- name: highest
SELECT (SELECT coalesce(max(id & 0xFFFFFFFFFFFF), 0) FROM feed), (SELECT coalesce(max(revision), 0) FROM notes);

-- name: sizes
SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM jobs), (SELECT count(*) FROM notes), (SELECT count(*) FROM log);

-- name: forget
DELETE FROM notes WHERE substr(key, 1, length(?1)) = ?1;

-- name: single
SELECT name FROM (
  SELECT 'term' AS name, count(*) AS n FROM term WHERE version = 2
  UNION ALL SELECT 'counters', count(*) FROM counters WHERE version = 2
) WHERE n <> 1 LIMIT ?;

-- name: elsewhere
SELECT runs.id FROM runs JOIN jobs ON jobs.id = runs.job_id
WHERE runs.history_class IS NULL AND runs.version <> jobs.version LIMIT ?;

-- name: states
SELECT id FROM runs
WHERE state NOT BETWEEN 0 AND 5 OR (history_class IS NULL) <> (state < 3) OR (history_class IS 2) <> (state = 4) LIMIT ?;

-- name: finished
SELECT id FROM runs WHERE history_class IS NOT NULL AND finished_ms IS NULL LIMIT ?;

-- name: leases
SELECT id FROM runs WHERE state = 2 AND (token = '' OR fence < 1) LIMIT ?;

-- name: orphans
SELECT id FROM runs
WHERE state < 2 AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = runs.job_id) LIMIT ?;

-- name: buried
SELECT jobs.id FROM jobs JOIN tombs ON tombs.id = jobs.id LIMIT ?;

-- name: feed
SELECT 0, id, ends, body FROM feed WHERE id > ?2 AND ?1 = 0 ORDER BY id LIMIT ?3;
