-- name: read
SELECT id, iif(id IN (SELECT value FROM json_each(?2)), NULL, body) FROM feed
WHERE id BETWEEN ?3 AND ?4 ORDER BY id LIMIT ?1;
