-- name: get
SELECT j.id, j.revision, j.next_due_ms, j.last_due_ms, j.memory, j.definition, j.version
FROM json_each(?) AS asked JOIN jobs AS j ON j.id = asked.value;
