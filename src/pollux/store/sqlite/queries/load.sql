-- name: job
INSERT INTO jobs
  (id, revision, release, source, handler, name, grp, target, tags, enabled, once, definition, next_due_ms,
   last_due_ms, memory, ended_ms, version)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: run
INSERT INTO runs
  (id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, state, held_reason, visible_ms, attempt,
   lease_losses, crashes, fence, token, owner, lease_until_ms, cancel, started_ms, finished_ms, failed, changed, error,
   result, deaths, progress, tried, version, history_class)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: has_note
SELECT 1 FROM notes WHERE key = ?;

-- name: tomb
INSERT INTO tombs (id, revision, last_due_ms)
SELECT ?1, ?2, ?3 WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE id = ?1)
ON CONFLICT DO NOTHING;

-- name: version
SELECT version FROM jobs WHERE id = ?;
