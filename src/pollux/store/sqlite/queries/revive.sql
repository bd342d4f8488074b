-- name: found
SELECT r.id, r.seq, r.gated, r.key, r.job_id
FROM json_each(?) AS asked JOIN runs AS r ON r.id = asked.value WHERE +r.state = 4;

-- Left out: one whose key a live run has.
-- name: revive
UPDATE OR IGNORE runs
SET state = NOT gated, history_class = NULL, held_reason = iif(gated, ?3, ''), visible_ms = ?4, attempt = 0,
    lease_losses = 0, crashes = 0, deaths = 1, cancel = '', progress = '', version = ?2
WHERE seq = ?1 RETURNING id;
