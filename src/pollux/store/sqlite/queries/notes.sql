-- name: expired
DELETE FROM notes WHERE key IN (
  SELECT key FROM notes WHERE expires_ms IS NOT NULL AND expires_ms <= ? ORDER BY expires_ms LIMIT 1000
) RETURNING key;

-- name: stored
SELECT n.key, n.revision, n.expires_ms, n.value FROM json_each(?) AS asked JOIN notes AS n ON n.key = asked.value;

-- name: put
INSERT INTO notes (key, value, revision, expires_ms) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (key) DO UPDATE SET value = ?2, revision = ?3, expires_ms = ?4;

-- name: delete
DELETE FROM notes WHERE key IN (SELECT value FROM json_each(?));

-- name: read
SELECT key, value, revision, expires_ms FROM notes
WHERE key >= ?1 AND key < ?2 AND (expires_ms IS NULL OR expires_ms > ?3) ORDER BY key;

-- name: is_sealed
SELECT 1 FROM notes WHERE key = 'move:seal';
