-- name: get
SELECT j.id, j.revision, j.next_due_ms, j.last_due_ms, j.memory, j.definition, j.version
FROM json_each(?) AS asked JOIN jobs AS j ON j.id = asked.value;

-- name: page
SELECT id, revision, next_due_ms, last_due_ms, memory, definition, version FROM jobs
WHERE id > ?1
  AND (?2 IS NULL OR grp = ?2)
  AND (?3 IS NULL OR target = ?3)
  AND (?4 IS NULL OR instr(tags, ?4))
  AND (?5 IS NULL OR source = ?5)
  AND (?6 IS NULL OR handler = ?6)
  AND (?7 IS NULL OR instr(id, ?7) OR instr(name, ?7))
  AND (?9 IS NULL OR version = ?9)
  AND (?10 IS NULL OR coalesce(definition ->> '$.priority', 2) = ?10)
  AND (?11 IS NULL OR coalesce(definition ->> '$.source_id', '') = ?11)
  AND (?12 IS NULL OR enabled = ?12)
ORDER BY id LIMIT ?8;

-- name: due
SELECT id, revision, next_due_ms, last_due_ms, memory, definition, version FROM jobs
WHERE version = ?5 AND next_due_ms IS NOT NULL AND enabled = 1 AND (next_due_ms, id) > (?1, ?2) AND next_due_ms < ?3
ORDER BY next_due_ms, id LIMIT ?4;
