-- name: found
SELECT p.id, p.seq, p.gated, p.key, EXISTS (SELECT 1 FROM {s}.jobs WHERE jobs.id = p.job_id), p.job_id FROM {s}.past AS p
WHERE p.id = ANY($1::text[]) AND p.state = 4 ORDER BY p.seq FOR UPDATE OF p;

-- name: revive
WITH back AS (
  INSERT INTO {s}.runs
  SELECT p.seq, p.id, p.job_id, p.due_ms, p.cause, p.key, p.payload, p.priority, p.grp, p.target, p.gated,
    CASE WHEN p.gated THEN 0 ELSE 1 END, CASE WHEN p.gated THEN $2::text ELSE '' END, $3::bigint, 0, 0, 0, p.fence,
    p.token, p.owner, p.lease_until_ms, '', p.started_ms, p.finished_ms, p.failed, p.changed, p.error, p.result, 1, '',
    p.tried, 0, p.settled, asked.version
  FROM unnest($1::bigint[], $4::smallint[]) WITH ORDINALITY AS asked (seq, version, place) JOIN {s}.past AS p ON p.seq = asked.seq
  ORDER BY asked.place
  ON CONFLICT DO NOTHING RETURNING seq, id
), gone AS (
  DELETE FROM {s}.past WHERE seq IN (SELECT seq FROM back)
)
SELECT id FROM back;
