-- name: stored
SELECT j.id, j.revision, j.release, j.source, j.definition, j.version
FROM json_each(?) AS asked JOIN jobs AS j ON j.id = asked.value;

-- name: tombs
SELECT t.id, t.revision, t.last_due_ms FROM json_each(?) AS asked JOIN tombs AS t ON t.id = asked.value;

-- name: forget_tombs
DELETE FROM tombs WHERE id IN (SELECT value FROM json_each(?));

-- name: add
INSERT INTO jobs
  (id, revision, release, source, handler, name, grp, target, tags, enabled, once, definition, next_due_ms, last_due_ms,
   memory, ended_ms, version)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING RETURNING id;

-- name: change
UPDATE jobs
SET revision = ?2, release = ?3, source = ?4, handler = ?5, name = ?6, grp = ?7, target = ?8, tags = ?9,
    enabled = ?10, once = ?11, definition = ?12
WHERE id = ?1;
