-- name: stored
SELECT id, revision, release, source, definition, version FROM {s}.jobs WHERE id = ANY($1::text[]) ORDER BY id FOR NO KEY UPDATE;

-- name: tombs
SELECT id, revision, last_due_ms FROM {s}.tombs WHERE id = ANY($1::text[]);

-- name: forget_tombs
DELETE FROM {s}.tombs WHERE id = ANY($1::text[]);

-- name: add
INSERT INTO {s}.jobs
  (id, revision, release, source, handler, name, grp, target, tags, enabled, once, definition, next_due_ms, last_due_ms,
   memory, ended_ms, version)
SELECT * FROM unnest(
  $1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
  $10::boolean[], $11::boolean[], $12::bytea[], $13::bigint[], $14::bigint[], $15::bytea[], $16::bigint[],
  $17::smallint[]
)
ON CONFLICT (id) DO NOTHING RETURNING id;

-- name: change
UPDATE {s}.jobs AS j
SET revision = b.revision, release = b.release, source = b.source, handler = b.handler, name = b.name, grp = b.grp,
    target = b.target, tags = b.tags, enabled = b.enabled, once = b.once, definition = b.definition
FROM unnest(
  $1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
  $10::boolean[], $11::boolean[], $12::bytea[]
) AS b (id, revision, release, source, handler, name, grp, target, tags, enabled, once, definition)
WHERE j.id = b.id;
