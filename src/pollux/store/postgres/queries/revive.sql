-- name: found
SELECT p.id, p.seq, p.gated, p.key, p.job_id FROM {s}.history AS p
WHERE p.id = ANY($1::text[]) AND p.state = 4 ORDER BY p.seq FOR UPDATE;

-- name: revive
WITH back AS (
  INSERT INTO {s}.runs
  SELECT p.seq, p.id, p.job_id, p.due_ms, p.cause, p.key, p.payload, p.priority, p.grp, p.target, p.gated, 0, 0, 0,
    p.started_ms, p.finished_ms, p.failed, p.changed, p.error, p.result, 1, p.tried
  FROM unnest($1::bigint[], $2::smallint[]) WITH ORDINALITY AS asked (seq, version, place) JOIN {s}.history AS p ON p.seq = asked.seq
  ORDER BY asked.place
  ON CONFLICT DO NOTHING RETURNING seq, id
), gone AS (
  DELETE FROM {s}.history AS p USING back WHERE p.seq = back.seq
  RETURNING p.seq, p.job_id, p.priority, p.due_ms, p.gated, p.fence, p.token, p.owner, p.lease_until_ms, p.settled
), queued AS (
  INSERT INTO {s}.queue
    (seq, job_id, priority, due_ms, state, held_reason, visible_ms, fence, token, owner, lease_until_ms, settled,
     version)
  SELECT gone.seq, job_id, priority, due_ms, CASE WHEN gated THEN 0 ELSE 1 END, CASE WHEN gated THEN $3::text ELSE '' END,
    $4::bigint, fence, token, owner, lease_until_ms, settled, asked.version
  FROM gone JOIN unnest($1::bigint[], $2::smallint[]) AS asked (seq, version) ON asked.seq = gone.seq
)
SELECT id FROM back;
