-- name: add_term
INSERT OR IGNORE INTO term (number, holder, until_ms, ttl_ms, version) VALUES (0, '', 0, 0, ?);

-- name: add_counters
INSERT OR IGNORE INTO counters (held, ready, leased, dead, feed, ends, jobs, entries, notes, stops, clock_ms, version)
VALUES (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ?);

-- name: use
UPDATE term SET in_use = 1 WHERE version = ? AND in_use = 0;

-- name: in_use
SELECT version FROM term WHERE in_use = 1 ORDER BY version;

-- name: all
SELECT term.version, c.held, c.ready, c.leased, (SELECT sum(dead) FROM counters), c.feed, c.ends, c.jobs, number,
  iif(until_ms > ?, holder, '')
FROM term JOIN counters AS c ON c.version = term.version WHERE in_use = 1 ORDER BY term.version;

-- name: usage
SELECT in_use, holder <> '' AND until_ms > ?2 FROM term WHERE version = ?1;

-- name: unread_ends
SELECT id, body FROM feed WHERE id BETWEEN ? AND ? AND ends > 0 ORDER BY id;

-- name: unread
DELETE FROM feed WHERE id BETWEEN ? AND ?;

-- name: drop
UPDATE term SET in_use = 0, holder = '', until_ms = 0, ttl_ms = 0 WHERE version = ?;
