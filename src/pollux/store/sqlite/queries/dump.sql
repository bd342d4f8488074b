-- First the place in the dump, then the record.
-- name: term
SELECT version, number, version FROM term WHERE version > ?1 AND number > 0 ORDER BY version LIMIT ?2;

-- name: job
SELECT id, id, revision, next_due_ms, last_due_ms, memory, definition, version FROM jobs WHERE id > ? ORDER BY id LIMIT ?;

-- name: run
SELECT seq, {run_columns} FROM runs WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: note
SELECT key, key, value, revision, expires_ms FROM notes WHERE key > ? ORDER BY key LIMIT ?;

-- name: log
SELECT seq, at_ms, actor, action, subject, detail, count, seq, chain FROM log WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: tomb
SELECT n, id, revision, last_due_ms FROM tombs WHERE n > ? ORDER BY n LIMIT ?;
