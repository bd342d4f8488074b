-- name: oldest_ready
SELECT min((
  SELECT visible_ms FROM runs
  WHERE state = 1 AND version = counters.version AND priority = ?1 AND visible_ms <= ?2 ORDER BY visible_ms LIMIT 1
)) FROM counters;
