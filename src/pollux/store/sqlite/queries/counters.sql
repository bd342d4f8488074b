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
