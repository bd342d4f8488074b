-- First the place in the dump, then the record.
-- name: term
SELECT version, number, version FROM {s}.term WHERE version > $1::smallint AND number > 0 ORDER BY version LIMIT $2::int;

-- name: job
SELECT id, id, revision, next_due_ms, last_due_ms, memory, definition, version FROM {s}.jobs
WHERE id > $1::text ORDER BY id LIMIT $2::int;

-- name: run
SELECT * FROM (
  (SELECT r.seq, {live_columns} FROM {s}.queue AS q JOIN {s}.runs AS r ON r.job_id = q.job_id AND r.later = q.later AND r.seq = q.seq WHERE q.seq > $1::bigint ORDER BY q.seq LIMIT $2::int)
  UNION ALL
  (SELECT r.seq, {run_columns} FROM {s}.history AS r WHERE r.seq > $1::bigint ORDER BY r.seq LIMIT $2::int)
) AS both_tables ORDER BY seq LIMIT $2::int;

-- name: note
SELECT key, key, value, revision, expires_ms FROM {s}.notes WHERE key > $1::text ORDER BY key LIMIT $2::int;

-- name: log
SELECT seq, at_ms, actor, action, subject, detail, count, seq, chain FROM {s}.log WHERE seq > $1::bigint ORDER BY seq LIMIT $2::int;

-- name: tomb
SELECT n, id, revision, last_due_ms FROM {s}.tombs WHERE n > $1::bigint ORDER BY n LIMIT $2::int;
