-- name: read
SELECT id, iif(id IN (SELECT value FROM json_each(?2)), NULL, body) FROM feed ORDER BY id LIMIT ?1;
