-- Where the rows of a page come from; `listing.py` puts the columns before and the filter's terms behind.
-- name: live
FROM runs WHERE shelf IS NULL

-- name: live_of_job
FROM runs WHERE job_id = ? AND shelf IS NULL

-- name: held
FROM runs WHERE state = 0

-- name: leased
FROM runs WHERE state = 2

-- name: past
FROM runs WHERE shelf = ? AND shelf IS NOT NULL

-- name: past_of_job
FROM runs WHERE job_id = ? AND shelf < 2

-- name: dead_of_job
FROM runs WHERE job_id = ? AND shelf = 2
