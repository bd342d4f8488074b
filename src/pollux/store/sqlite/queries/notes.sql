-- name: read
SELECT key, value, revision, expires_ms FROM notes
WHERE key >= ?1 AND key < ?2 AND (expires_ms IS NULL OR expires_ms > ?3) ORDER BY key;
