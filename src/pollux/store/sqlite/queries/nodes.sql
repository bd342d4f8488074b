-- name: living
SELECT body FROM nodes WHERE until_ms > ? ORDER BY id;

-- name: leave
DELETE FROM nodes WHERE id = ?;

-- name: seats
SELECT coalesce(sum(seats), 0) FROM nodes WHERE until_ms > ? AND version = ?;
