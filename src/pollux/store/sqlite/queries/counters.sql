-- name: read
SELECT held, ready, leased, dead, feed, ends, jobs, entries, notes, stops, clock_ms FROM counters WHERE version = ?;

-- name: write
UPDATE counters
SET held = ?, ready = ?, leased = ?, dead = ?, feed = ?, ends = ?, jobs = ?, entries = ?, notes = ?, stops = ?,
    clock_ms = ?
WHERE version = ?;

-- name: add_entry
INSERT INTO feed (id, ends, body) VALUES (?, ?, ?);

-- name: highest
SELECT max(id) FROM feed WHERE id BETWEEN ? AND ?;

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
