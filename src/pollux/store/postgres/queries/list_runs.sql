-- Where the rows of a page come from; `listing.py` puts the columns before and the filter's terms behind.
-- name: live
FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq AND q.job_id = r.job_id AND q.later = r.later WHERE true

-- name: history
FROM {s}.history AS r WHERE history_class = $1::smallint

-- name: history_of_job
FROM {s}.history AS r WHERE job_id = $1::text AND history_class < 2

-- name: dead_of_job
FROM {s}.history AS r WHERE job_id = $1::text AND history_class = 2

-- name: get
SELECT {live_columns} FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq WHERE r.id = ANY($1::text[])
UNION ALL SELECT {run_columns} FROM {s}.history AS r WHERE r.id = ANY($1::text[]);
