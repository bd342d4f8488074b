-- Where the rows of a page come from; `listing.py` puts the columns before and the filter's terms behind.
-- name: live
FROM runs WHERE history_class IS NULL

-- name: live_of_job
FROM runs WHERE job_id = ? AND history_class IS NULL

-- name: held
FROM runs WHERE state = 0

-- name: leased
FROM runs WHERE state = 2

-- name: history
FROM runs WHERE history_class = ? AND history_class IS NOT NULL

-- name: history_of_job
FROM runs WHERE job_id = ? AND history_class < 2

-- name: dead_of_job
FROM runs WHERE job_id = ? AND history_class = 2
