-- Where the rows of a page come from; `listing.py` puts the columns before and the filter's terms behind.
-- name: live
FROM {s}.runs AS r JOIN {s}.line AS l ON l.seq = r.seq AND l.job_id = r.job_id AND l.later = r.later WHERE true

-- name: past
FROM {s}.past AS r WHERE shelf = $1::smallint

-- name: past_of_job
FROM {s}.past AS r WHERE job_id = $1::text AND shelf < 2

-- name: dead_of_job
FROM {s}.past AS r WHERE job_id = $1::text AND shelf = 2

-- name: get
SELECT {live_columns} FROM {s}.runs AS r JOIN {s}.line AS l ON l.seq = r.seq WHERE r.id = ANY($1::text[])
UNION ALL SELECT {run_columns} FROM {s}.past AS r WHERE r.id = ANY($1::text[]);
