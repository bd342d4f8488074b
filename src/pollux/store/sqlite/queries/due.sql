-- name: page
SELECT id, revision, next_due_ms, last_due_ms, memory, definition, version FROM jobs
WHERE version = ? AND next_due_ms IS NOT NULL AND enabled = 1 AND (next_due_ms, id) > (?, ?) AND next_due_ms < ?
ORDER BY next_due_ms, id LIMIT ?;
