-- name: oldest_ready
SELECT visible_ms FROM runs WHERE state = 1 AND priority = ?1 AND visible_ms <= ?2 ORDER BY visible_ms LIMIT 1;

-- name: most_overdue
SELECT next_due_ms FROM jobs WHERE next_due_ms IS NOT NULL AND enabled = 1 AND next_due_ms <= ?
ORDER BY next_due_ms, id LIMIT 1;
