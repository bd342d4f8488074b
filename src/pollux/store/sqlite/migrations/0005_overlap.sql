-- The live runs of a job by since when they overlap another: a firing always does (0), any other from its visible time on.
-- So a firing finds one that does in one step, however many wait for a later time.
DROP INDEX runs_of_job;

CREATE INDEX runs_of_job ON runs (job_id, iif(cause = 0, 0, visible_ms)) WHERE shelf IS NULL;
