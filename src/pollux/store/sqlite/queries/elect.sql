-- name: stands
SELECT number, holder, until_ms, ttl_ms FROM term;

-- name: write
UPDATE term SET number = ?, holder = ?, until_ms = ?, ttl_ms = ?;
