-- name: stored
SELECT body, beat_ms, until_ms FROM nodes WHERE id = ?;

-- name: put
INSERT INTO nodes (id, seats, until_ms, body, version, beat_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (id) DO UPDATE SET seats = ?2, until_ms = ?3, body = ?4, version = ?5, beat_ms = ?6;

-- name: bury
DELETE FROM nodes WHERE until_ms <= ?;

-- name: living
SELECT body, beat_ms FROM nodes WHERE until_ms > ? ORDER BY id;

-- name: leave
DELETE FROM nodes WHERE id = ?;

-- name: seats
SELECT coalesce(sum(seats), 0) FROM nodes WHERE until_ms > ? AND version = ?;

-- name: term
SELECT number, holder, until_ms, ttl_ms FROM term WHERE version = ?;

-- name: write_term
UPDATE term SET number = ?1, holder = ?2, until_ms = ?3, ttl_ms = ?4, in_use = in_use OR ?2 <> '' WHERE version = ?5;
