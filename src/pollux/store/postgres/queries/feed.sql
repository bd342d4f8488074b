-- name: read
SELECT c.now_ms, f.id, f.body
FROM (SELECT coalesce($3::bigint, {s}.now_ms()) AS now_ms) AS c
LEFT JOIN LATERAL (
  SELECT id, CASE WHEN id = ANY($2::bigint[]) THEN NULL ELSE body END AS body FROM {s}.feed
  WHERE version = $4::smallint ORDER BY id LIMIT $1::int
) AS f ON true
ORDER BY f.id;
