-- name: stored
SELECT body, until_ms FROM nodes WHERE id = ?;

-- name: put
INSERT INTO nodes (id, seats, until_ms, body, version) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (id) DO UPDATE SET seats = ?2, until_ms = ?3, body = ?4, version = ?5;

-- name: bury
DELETE FROM nodes WHERE until_ms <= ?;
