-- name: add_term
INSERT OR IGNORE INTO term (number, holder, until_ms, ttl_ms, version) VALUES (0, '', 0, 0, ?);

-- name: add_counters
INSERT OR IGNORE INTO counters (held, ready, leased, dead, feed, ends, jobs, entries, notes, stops, clock_ms, version)
VALUES (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ?);

-- name: use
UPDATE term SET in_use = 1 WHERE version = ? AND in_use = 0;

-- name: in_use
SELECT version FROM term WHERE in_use = 1 OR version = ? ORDER BY version;

-- name: counts
SELECT coalesce(sum(held), 0), coalesce(sum(ready), 0), coalesce(sum(leased), 0), (SELECT sum(dead) FROM counters),
  coalesce(sum(feed), 0), coalesce(sum(ends), 0), coalesce(sum(jobs), 0)
FROM counters WHERE version = coalesce(?1, version);

-- name: place
SELECT priority, visible_ms, seq FROM runs WHERE id = ? AND +state = 1;

-- The runs of a queue before a place, counted to ?5.
-- name: queue
SELECT
  coalesce(sum((SELECT count(*) FROM (
    SELECT visible_ms, seq FROM runs
    WHERE state = 1 AND version = counters.version AND priority = ?2 AND (visible_ms, seq) < (?3, ?4)
    ORDER BY visible_ms, seq LIMIT ?5
  ))), 0),
  min((
    SELECT visible_ms FROM runs WHERE state = 1 AND version = counters.version AND priority = ?2 ORDER BY visible_ms LIMIT 1
  ))
FROM counters WHERE version = ?1;

-- name: all
SELECT term.version, c.held, c.ready, c.leased, (SELECT sum(dead) FROM counters), c.feed, c.ends, c.jobs, number,
  iif(until_ms > ?, holder, '')
FROM term JOIN counters AS c ON c.version = term.version WHERE in_use = 1 ORDER BY term.version;

-- name: usage
SELECT in_use, holder <> '' AND until_ms > ?2 FROM term WHERE version = ?1;

-- name: unread
DELETE FROM feed WHERE id BETWEEN ? AND ?;

-- name: drop
UPDATE term SET in_use = 0, holder = '', until_ms = 0, ttl_ms = 0 WHERE version = ?;
