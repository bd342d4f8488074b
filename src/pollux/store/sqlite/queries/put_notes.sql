-- name: stored
SELECT revision, expires_ms, value FROM notes WHERE key = ?;

-- name: put
INSERT INTO notes (key, value, revision, expires_ms) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (key) DO UPDATE SET value = ?2, revision = ?3, expires_ms = ?4;

-- name: delete
DELETE FROM notes WHERE key = ?;

-- name: expired
SELECT key FROM notes WHERE expires_ms IS NOT NULL AND expires_ms <= ? ORDER BY expires_ms LIMIT 1000;
