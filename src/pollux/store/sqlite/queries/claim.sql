-- One look at everything that decides whether there is work: no lock, no write.
-- name: probe
SELECT
  (SELECT visible_ms FROM runs WHERE state = 1 AND version = ?1 AND priority = 1 ORDER BY visible_ms LIMIT 1),
  (SELECT visible_ms FROM runs WHERE state = 1 AND version = ?1 AND priority = 2 ORDER BY visible_ms LIMIT 1),
  (SELECT visible_ms FROM runs WHERE state = 1 AND version = ?1 AND priority = 3 ORDER BY visible_ms LIMIT 1),
  (SELECT lease_until_ms FROM runs WHERE state = 2 AND version = ?1 ORDER BY lease_until_ms LIMIT 1),
  coalesce((SELECT ends FROM counters WHERE version = ?1), 0), stops,
  coalesce((SELECT clock_ms FROM counters WHERE version = ?1), 0)
FROM counters WHERE version = 2;

-- name: whole
SELECT
  r.seq, r.id, r.job_id, r.due_ms, r.cause, r.key, r.payload, r.priority, r.grp, r.target, r.gated, r.state,
  r.held_reason, r.visible_ms, r.attempt, r.lease_losses, r.crashes, r.fence, r.token, r.owner, r.lease_until_ms,
  r.cancel, r.started_ms, r.finished_ms, r.failed, r.changed, r.error, r.result, r.deaths, r.progress, r.tried,
  r.version
FROM json_each(?) AS asked JOIN runs AS r ON r.seq = asked.value WHERE +r.state = 2;

-- One priority at a time: ordering by priority and time would walk over all that is delayed.
-- name: ready
SELECT seq, id, job_id, due_ms, cause, key, payload, priority, grp, target, gated, visible_ms, fence
FROM runs WHERE state = 1 AND version = ? AND priority = ? AND visible_ms <= ? ORDER BY visible_ms, seq LIMIT ?;

-- name: lease
UPDATE runs
SET state = 2, fence = fence + 1, token = ? || ':' || (fence + 1), owner = ?, lease_until_ms = ?, lease_ms = ?,
    progress = '', padding = NULL
WHERE seq IN (SELECT value FROM json_each(?));

-- name: lost
SELECT
  r.seq, r.id, r.job_id, r.due_ms, r.cause, r.gated, r.cancel, r.lease_losses, r.lease_until_ms,
  r.fence, r.owner, r.tried, EXISTS (SELECT 1 FROM jobs WHERE jobs.id = r.job_id)
FROM runs AS r WHERE r.state = 2 AND r.version = ? AND r.lease_until_ms <= ? ORDER BY r.lease_until_ms LIMIT ?;

-- name: take_back
UPDATE runs
SET state = ?, history_class = ?, lease_losses = ?, visible_ms = ?, cancel = ?, failed = failed OR ?, error = iif(? = '', error, ?),
    finished_ms = coalesce(?, finished_ms), tried = ?, token = '', owner = '', lease_until_ms = 0
WHERE seq = ?;

-- name: cut
UPDATE runs SET lease_until_ms = ?1 + lease_ms WHERE state = 2 AND version = ?2 AND lease_until_ms > ?1 + lease_ms;

-- What had been visible before the clock came back stays so, in its order.
-- name: show
UPDATE runs SET visible_ms = visible_ms - (?2 - ?1)
WHERE state = 1 AND version = ?3 AND priority IN (1, 2, 3) AND visible_ms > ?1 AND visible_ms <= ?2;

-- So does what is leased: a firing looks whether it was visible.
-- name: show_leased
UPDATE runs SET visible_ms = visible_ms - (?2 - ?1)
WHERE state = 2 AND version = ?3 AND visible_ms > ?1 AND visible_ms <= ?2;
