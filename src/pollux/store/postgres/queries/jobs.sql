-- name: get
SELECT id, revision, next_due_ms, last_due_ms, memory, definition, version FROM {s}.jobs WHERE id = ANY($1::text[]);

-- name: page
SELECT id, revision, next_due_ms, last_due_ms, memory, definition, version FROM {s}.jobs
WHERE id > $1::text
  AND ($2::text IS NULL OR grp = $2)
  AND ($3::text IS NULL OR target = $3)
  AND ($4::text IS NULL OR strpos(tags, $4) > 0)
  AND ($5::text IS NULL OR source = $5)
  AND ($6::text IS NULL OR handler = $6)
  AND ($7::text IS NULL OR strpos(id, $7) > 0 OR strpos(name, $7) > 0)
  AND ($9::smallint IS NULL OR version = $9)
  AND ($10::int IS NULL OR coalesce((convert_from(definition, 'UTF8')::json ->> 'priority')::int, 2) = $10)
  AND ($11::text IS NULL OR coalesce(convert_from(definition, 'UTF8')::json ->> 'source_id', '') = $11)
  AND ($12::boolean IS NULL OR enabled = $12)
ORDER BY id LIMIT $8::int;

-- name: due
SELECT id, revision, next_due_ms, last_due_ms, memory, definition, version FROM {s}.jobs
WHERE version = $5::smallint AND next_due_ms IS NOT NULL AND enabled AND (next_due_ms, id) > ($1::bigint, $2::text) AND next_due_ms < $3::bigint
ORDER BY next_due_ms, id LIMIT $4::int;
