-- What ran when the copy was made is ready again, uncharged.
-- name: void
UPDATE runs SET state = 1, token = '', owner = '', lease_until_ms = 0
WHERE state = 2 AND cancel = '' AND EXISTS (SELECT 1 FROM jobs WHERE jobs.id = runs.job_id);

-- What was asked to stop, or has lost its job, is cancelled by the next claim, which finds its lease over.
-- name: expire
UPDATE runs SET lease_until_ms = 1 WHERE state = 2;

-- name: nodes
DELETE FROM nodes;

-- name: term
UPDATE term SET holder = '', until_ms = 0;
