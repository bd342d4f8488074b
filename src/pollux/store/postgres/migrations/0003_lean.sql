-- True, or a division by zero: whether ids that were just made have ended before, as far as anybody knows at this very
-- moment, and not when the statement began that asks.
CREATE FUNCTION {s}.none_ended(ids text[]) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS 'BEGIN RETURN 1 / (NOT EXISTS (SELECT 1 FROM {s}.past WHERE id = ANY(ids)))::int = 1; END';

-- A run is found by its id, or by its job and number, which the line knows, too: one index less to keep.
ALTER TABLE {s}.line ADD COLUMN job_id text COLLATE "C" NOT NULL DEFAULT '';

UPDATE {s}.line AS l SET job_id = r.job_id FROM {s}.runs AS r WHERE r.seq = l.seq;

ALTER TABLE {s}.line ALTER COLUMN job_id DROP DEFAULT;

ALTER TABLE {s}.runs DROP CONSTRAINT runs_pkey;

ALTER TABLE {s}.runs ADD PRIMARY KEY (job_id, seq);

DROP INDEX {s}.runs_of_job;

-- Entries are read once, and soon: packing them costs more than it spares.
ALTER TABLE {s}.feed ALTER COLUMN body SET STORAGE EXTERNAL;
