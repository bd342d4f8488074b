-- name: add_term
INSERT OR IGNORE INTO term (number, holder, until_ms, ttl_ms, version) VALUES (0, '', 0, 0, ?);

-- name: add_tally
INSERT OR IGNORE INTO tally (held, ready, leased, dead, feed, ends, jobs, entries, notes, stops, clock_ms, version)
VALUES (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ?);

-- name: use
UPDATE term SET there = 1 WHERE version = ? AND there = 0;

-- name: there
SELECT version FROM term WHERE there = 1 OR version = ? ORDER BY version;

-- name: counts
SELECT coalesce(sum(held), 0), coalesce(sum(ready), 0), coalesce(sum(leased), 0), (SELECT sum(dead) FROM tally),
  coalesce(sum(feed), 0), coalesce(sum(ends), 0), coalesce(sum(jobs), 0)
FROM tally WHERE ?1 IN (0, version);

-- name: place
SELECT priority, visible_ms, seq FROM runs WHERE id = ? AND +state = 1;

-- What stands in a line before a place, counted to ?5.
-- name: line
SELECT
  coalesce(sum((SELECT count(*) FROM (
    SELECT visible_ms, seq FROM runs
    WHERE state = 1 AND version = tally.version AND priority = ?2 AND (visible_ms, seq) < (?3, ?4)
    ORDER BY visible_ms, seq LIMIT ?5
  ))), 0),
  min((
    SELECT visible_ms FROM runs WHERE state = 1 AND version = tally.version AND priority = ?2 ORDER BY visible_ms LIMIT 1
  ))
FROM tally WHERE ?1 IN (0, version);

-- name: all
SELECT term.version, y.held, y.ready, y.leased, (SELECT sum(dead) FROM tally), y.feed, y.ends, y.jobs, number,
  iif(until_ms > ?, holder, '')
FROM term JOIN tally AS y ON y.version = term.version WHERE there = 1 ORDER BY term.version;

-- name: stands
SELECT there, holder <> '' AND until_ms > ?2 FROM term WHERE version = ?1;

-- name: unread
DELETE FROM feed WHERE id BETWEEN ? AND ?;

-- name: drop
UPDATE term SET there = 0, holder = '', until_ms = 0, ttl_ms = 0 WHERE version = ?;
