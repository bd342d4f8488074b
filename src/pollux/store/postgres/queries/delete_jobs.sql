-- name: stored
SELECT id, revision, last_due_ms, version FROM {s}.jobs WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE;

-- name: waiting
SELECT q.seq, q.state, r.id, r.job_id, r.due_ms, r.cause, r.gated, q.version
FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq
WHERE r.job_id = ANY($1::text[]) AND q.state < 2 ORDER BY q.seq FOR UPDATE OF q;

-- name: delete
DELETE FROM {s}.jobs WHERE id = ANY($1::text[]);

-- name: bury
INSERT INTO {s}.tombs (id, revision, last_due_ms) SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[])
ON CONFLICT (id) DO UPDATE SET revision = excluded.revision, last_due_ms = excluded.last_due_ms;

-- name: clear_tombs
DELETE FROM {s}.tombs WHERE n <= (SELECT max(n) FROM {s}.tombs) - $1::bigint;
