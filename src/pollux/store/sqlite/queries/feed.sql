-- name: read
SELECT id, body FROM feed ORDER BY id LIMIT ?;
