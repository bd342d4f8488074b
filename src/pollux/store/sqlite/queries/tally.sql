-- name: read
SELECT held, ready, leased, dead, feed, ends, jobs, entries, notes, stops, clock_ms FROM tally;

-- name: write
UPDATE tally
SET held = ?, ready = ?, leased = ?, dead = ?, feed = ?, ends = ?, jobs = ?, entries = ?, notes = ?, stops = ?,
    clock_ms = ?;

-- name: tell
INSERT INTO feed (id, ends, body) VALUES (?, ?, ?);
