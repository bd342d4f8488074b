-- A version of the deployment is a part of its own: lines, leases, due times, counts and term.  What was there before
-- is of version 2, the one that stands where nothing is said.  Of the counts, those of dead letters, feed entries,
-- notes and stops are kept under it for all.  Entries of the feed carry their version in their number.
ALTER TABLE jobs ADD COLUMN version INTEGER NOT NULL DEFAULT 2;

DROP INDEX jobs_due;

CREATE INDEX jobs_due ON jobs (version, next_due_ms, id) WHERE next_due_ms IS NOT NULL AND enabled = 1;

ALTER TABLE runs ADD COLUMN version INTEGER NOT NULL DEFAULT 2;

DROP INDEX runs_ready;

CREATE INDEX runs_ready ON runs (version, priority, visible_ms) WHERE state = 1;

DROP INDEX runs_leased;

CREATE INDEX runs_leased ON runs (version, lease_until_ms) WHERE state = 2;

ALTER TABLE nodes ADD COLUMN version INTEGER NOT NULL DEFAULT 2;

ALTER TABLE tally ADD COLUMN version INTEGER NOT NULL DEFAULT 2;

CREATE UNIQUE INDEX tally_version ON tally (version);

ALTER TABLE term ADD COLUMN version INTEGER NOT NULL DEFAULT 2;

ALTER TABLE term ADD COLUMN there INTEGER NOT NULL DEFAULT 0;

CREATE UNIQUE INDEX term_version ON term (version);

UPDATE term SET there = number > 0 OR EXISTS (SELECT 1 FROM jobs);
