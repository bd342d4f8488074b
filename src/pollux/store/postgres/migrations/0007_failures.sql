-- Finished runs of a job that failed, dead letters apart: as many of them are kept as of the others.
CREATE INDEX past_failures ON {s}.past (job_id, finished_ms, seq) WHERE shelf < 2 AND failed;
