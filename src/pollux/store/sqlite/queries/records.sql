-- name: last_line
SELECT seq, chain FROM log ORDER BY seq DESC LIMIT 1;

-- name: add_line
INSERT INTO log (at_ms, actor, action, subject, detail, count, seq, chain) VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: lines
SELECT at_ms, actor, action, subject, detail, count, seq, chain FROM log WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: lines_before
SELECT at_ms, actor, action, subject, detail, count, seq, chain FROM log WHERE seq < ? ORDER BY seq DESC LIMIT ?;

-- A live run goes where its job is.
-- name: load_run
INSERT INTO runs
  (id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, state, held_reason, visible_ms, attempt,
   lease_losses, crashes, fence, token, owner, lease_until_ms, cancel, started_ms, finished_ms, failed, changed, error,
   result, deaths, progress, tried, version, history_class)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25,
  ?26, ?27, ?28, ?29, ?30, coalesce(iif(?32 IS NULL, (SELECT version FROM jobs WHERE id = ?2), NULL), ?31), ?32)
ON CONFLICT DO NOTHING RETURNING id, version;

-- name: load_tomb
INSERT INTO tombs (id, revision, last_due_ms)
SELECT ?1, ?2, ?3 WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE id = ?1)
ON CONFLICT DO NOTHING RETURNING id;
