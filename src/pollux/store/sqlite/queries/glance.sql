-- name: oldest_ready
SELECT min((
  SELECT visible_ms FROM runs
  WHERE state = 1 AND version = tally.version AND priority = ?1 AND visible_ms <= ?2 ORDER BY visible_ms LIMIT 1
)) FROM tally;

-- name: most_overdue
SELECT min((
  SELECT next_due_ms FROM jobs
  WHERE version = tally.version AND next_due_ms IS NOT NULL AND enabled = 1 AND next_due_ms <= ?1
  ORDER BY next_due_ms, id LIMIT 1
)) FROM tally;
