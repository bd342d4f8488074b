-- name: found
SELECT r.id, r.seq, r.state, r.gated, r.key, (SELECT version FROM jobs WHERE jobs.id = r.job_id)
FROM json_each(?) AS asked JOIN runs AS r ON r.id = asked.value;

-- name: revive
UPDATE runs
SET state = ?, history_class = NULL, held_reason = ?, visible_ms = ?, attempt = 0, lease_losses = 0, crashes = 0, deaths = 1,
    cancel = '', progress = '', version = ?
WHERE seq = ?;
