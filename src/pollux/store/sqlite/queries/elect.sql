-- name: current
SELECT number, holder, until_ms, ttl_ms FROM term WHERE version = ?;

-- The usual election: the holder renews its term, in one statement.
-- name: renew
UPDATE term SET until_ms = ?1 + ?2, ttl_ms = ?2
WHERE version = ?4 AND holder = ?3 AND until_ms > ?1 AND until_ms <= ?1 + ttl_ms RETURNING number;

-- name: write
UPDATE term SET number = ?1, holder = ?2, until_ms = ?3, ttl_ms = ?4, in_use = in_use OR ?2 <> '' WHERE version = ?5;
