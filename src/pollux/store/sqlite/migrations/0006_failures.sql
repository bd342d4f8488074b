-- Finished runs of a job that failed, dead letters apart: as many of them are kept as of the others.
CREATE INDEX runs_failures ON runs (job_id, finished_ms) WHERE shelf < 2 AND failed = 1;
