-- No run of them can be made before this write ends: not even by who only needs them to stay.
-- name: stored
SELECT id, version, memory FROM {s}.jobs WHERE id = ANY($1::text[]) ORDER BY id FOR UPDATE;

-- name: jobs
UPDATE {s}.jobs SET version = $2::smallint, revision = revision + 1 WHERE id = ANY($1::text[]);

-- name: live
SELECT q.seq, q.state, r.id, r.job_id, r.due_ms, r.cause, r.gated, q.version
FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq
WHERE r.job_id = ANY($1::text[]) ORDER BY q.seq FOR UPDATE OF q;

-- name: runs
UPDATE {s}.queue AS q SET version = $2::smallint FROM {s}.runs AS r WHERE r.job_id = ANY($1::text[]) AND q.seq = r.seq;
