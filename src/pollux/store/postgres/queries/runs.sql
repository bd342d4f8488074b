-- name: get
SELECT {live_columns} FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq WHERE r.id = ANY($1::text[])
UNION ALL SELECT {run_columns} FROM {s}.history AS r WHERE r.id = ANY($1::text[]);

-- Where the rows of a page come from; the terms of a filter follow.  Live ones come by due time along `runs`, the held
-- ones along an index of their own; the leased ones, which are few, are sorted.
-- name: live
SELECT r.seq, {live_columns} FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq AND q.job_id = r.job_id AND q.later = r.later;

-- name: live_of_job
SELECT r.seq, {live_columns} FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq AND q.job_id = r.job_id AND q.later = r.later
WHERE r.job_id = $1::text;

-- name: held
SELECT r.seq, {held_columns} FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq AND q.job_id = r.job_id AND q.later = r.later
WHERE q.state = 0;

-- name: leased
SELECT r.seq, {leased_columns} FROM {s}.runs AS r JOIN {s}.queue AS q ON q.seq = r.seq AND q.job_id = r.job_id AND q.later = r.later
WHERE q.state = 2;

-- name: history
SELECT r.seq, {run_columns} FROM {s}.history AS r WHERE history_class = $1::smallint;

-- name: history_of_job
SELECT r.seq, {run_columns} FROM {s}.history AS r WHERE job_id = $1::text AND history_class < 2;

-- name: dead_of_job
SELECT r.seq, {run_columns} FROM {s}.history AS r WHERE job_id = $1::text AND history_class = 2;
