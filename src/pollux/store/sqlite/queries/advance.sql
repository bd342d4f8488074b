-- name: consume
DELETE FROM feed WHERE id IN (SELECT value FROM json_each(?1)) AND id BETWEEN ?2 AND ?3 RETURNING ends;

-- name: left
SELECT count(*), coalesce(sum(max(ends, 0)), 0) FROM feed WHERE id BETWEEN ? AND ?;

-- Which runs overlap: see `Run.overlaps_at`.  The first bound is now; the second is beyond it only if the clock came back, and
-- then of what lies between them the leased ones do.
-- name: facts
SELECT
  j.id, j.n, j.revision, j.last_due_ms,
  EXISTS (
    SELECT 1 FROM runs WHERE runs.job_id = j.id AND history_class IS NULL AND iif(cause = 0, 0, visible_ms) <= ?4
      AND (iif(cause = 0, 0, visible_ms) <= ?3 OR state = 2)
  )
FROM json_each(?1) AS asked JOIN jobs AS j ON j.id = asked.value WHERE j.version = ?2;

-- name: unread
SELECT id, ends FROM feed
WHERE id BETWEEN ?3 AND ?4 AND ends > 0 AND id NOT IN (SELECT value FROM json_each(?2)) ORDER BY id DESC LIMIT ?1;

-- name: bodies
SELECT body FROM feed WHERE id IN (SELECT value FROM json_each(?));

-- name: live
SELECT
  seq, state, id, job_id, due_ms, cause, gated, version, cancel, key, state = 0 AND held_reason = ?2
FROM runs
WHERE job_id = ?1 AND history_class IS NULL AND iif(cause = 0, 0, visible_ms) <= ?5
  AND (iif(cause = 0, 0, visible_ms) <= ?4 OR state = 2)
ORDER BY iif(cause = 0, 0, visible_ms), seq LIMIT ?3;

-- As above where nothing is done to them: how many, and does one wait for the others?
-- name: crowd
SELECT count(*), coalesce(max(state = 0 AND held_reason = ?2), 0)
FROM (
  SELECT state, held_reason FROM runs
  WHERE job_id = ?1 AND history_class IS NULL AND iif(cause = 0, 0, visible_ms) <= ?5
    AND (iif(cause = 0, 0, visible_ms) <= ?4 OR state = 2)
  ORDER BY iif(cause = 0, 0, visible_ms) LIMIT ?3
);

-- Held runs that are to begin alone: does each wait for others already, and does another of its job overlap that neither
-- waits so nor is one of these?
-- name: alone
SELECT
  r.id, r.job_id, r.held_reason = ?3, iif(r.cause = 0, 0, r.visible_ms) <= ?4,
  EXISTS (
    SELECT 1 FROM runs AS o
    WHERE o.job_id = r.job_id AND o.history_class IS NULL AND iif(o.cause = 0, 0, o.visible_ms) <= ?5
      AND (iif(o.cause = 0, 0, o.visible_ms) <= ?4 OR o.state = 2)
      AND NOT (o.state = 0 AND (o.held_reason = ?3 OR o.id IN (SELECT value FROM json_each(?1))))
  )
FROM json_each(?1) AS asked JOIN runs AS r ON r.id = asked.value WHERE +r.state = 0 AND +r.version = ?2;

-- name: move
UPDATE jobs SET last_due_ms = ?, next_due_ms = ? WHERE n = ?;

-- name: skip
UPDATE jobs SET last_due_ms = ?, next_due_ms = ?, memory = ?, ended_ms = ? WHERE n = ?;

-- name: release
UPDATE runs SET state = 1, held_reason = '', visible_ms = max(?, visible_ms) WHERE id = ? AND +state = 0 AND +version = ?;

-- name: earlier
UPDATE runs SET visible_ms = ?1 WHERE id = ?2 AND +state IN (0, 1) AND visible_ms > ?1 AND +version = ?3;

-- name: hold
UPDATE runs SET held_reason = ? WHERE id = ? AND +state = 0 AND +version = ?;

-- name: update
UPDATE jobs
SET next_due_ms = ?1, last_due_ms = CASE WHEN ?2 > coalesce(last_due_ms, ?2 - 1) THEN ?2 ELSE last_due_ms END,
    memory = ?3, ended_ms = ?4
WHERE id = ?5 AND revision = ?6 AND +version = ?7;
