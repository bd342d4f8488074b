-- name: job
SELECT id, revision, next_due_ms, last_due_ms, memory, definition, version FROM jobs WHERE id > ? ORDER BY id LIMIT ?;

-- name: run
SELECT
  seq, id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, state, held_reason, visible_ms, attempt,
  lease_losses, crashes, fence, token, owner, lease_until_ms, cancel, started_ms, finished_ms, failed, changed, error,
  result, deaths, progress, tried, version
FROM runs WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: note
SELECT key, value, revision, expires_ms FROM notes WHERE key > ? ORDER BY key LIMIT ?;

-- name: log
SELECT at_ms, actor, action, subject, detail, count, seq, chain FROM log WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: tomb
SELECT n, id, revision, last_due_ms FROM tombs WHERE n > ? ORDER BY n LIMIT ?;

-- name: term
SELECT number, version FROM term WHERE version > ? AND number > 0 ORDER BY version;
