-- name: expired
DELETE FROM {s}.notes WHERE key = ANY(ARRAY(
  SELECT key FROM {s}.notes WHERE expires_ms IS NOT NULL AND expires_ms <= $1::bigint ORDER BY expires_ms LIMIT 1000
)) RETURNING key;

-- name: stored
SELECT key, revision, expires_ms, value FROM {s}.notes WHERE key = ANY($1::text[]) ORDER BY key FOR UPDATE;

-- name: put
INSERT INTO {s}.notes (key, value, revision, expires_ms)
SELECT key, value, coalesce(revision, nextval('{s}.note_revision')), expires_ms
FROM unnest($1::text[], $2::bytea[], $3::bigint[], $4::bigint[]) WITH ORDINALITY AS b (key, value, revision, expires_ms, place)
ORDER BY place
ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = excluded.revision, expires_ms = excluded.expires_ms;

-- name: delete
DELETE FROM {s}.notes WHERE key = ANY($1::text[]);

-- name: pass_revision
SELECT setval('{s}.note_revision', greatest(nextval('{s}.note_revision'), $1::bigint));

-- name: is_sealed
SELECT {s}.is_sealed();

-- name: read
SELECT key, value, revision, expires_ms FROM {s}.notes
WHERE key >= $1::text AND key < $2::text AND (expires_ms IS NULL OR expires_ms > coalesce($3::bigint, {s}.now_ms()))
ORDER BY key;
