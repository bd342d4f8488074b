-- name: found
SELECT r.id, r.seq, r.token, r.state, r.cancel, r.version FROM json_each(?) AS asked JOIN runs AS r ON r.id = asked.value;

-- name: extend
UPDATE runs SET lease_until_ms = ?, lease_ms = ? WHERE seq = ?;

-- name: progress
UPDATE runs SET progress = ? WHERE seq = ?;
