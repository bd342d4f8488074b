-- A version of the deployment is a part of its own: lines, leases, due times, feed, counts and term.  What was there
-- before is of version 2, the one that stands where nothing is said.  What is dead and the stops are counted under
-- it for all.
ALTER TABLE {s}.jobs ADD COLUMN version smallint NOT NULL DEFAULT 2;

DROP INDEX {s}.jobs_due;

CREATE INDEX jobs_due ON {s}.jobs (version, next_due_ms, id) WHERE next_due_ms IS NOT NULL AND enabled;

ALTER TABLE {s}.line ADD COLUMN version smallint NOT NULL DEFAULT 2;

DROP INDEX {s}.line_ready;

CREATE INDEX line_ready ON {s}.line (version, priority, visible_ms, seq) WHERE state = 1;

DROP INDEX {s}.line_leased;

CREATE INDEX line_leased ON {s}.line (version, lease_until_ms) WHERE state = 2;

ALTER TABLE {s}.past ADD COLUMN version smallint NOT NULL DEFAULT 2;

ALTER TABLE {s}.feed ADD COLUMN version smallint NOT NULL DEFAULT 2;

ALTER TABLE {s}.feed DROP CONSTRAINT feed_pkey;

ALTER TABLE {s}.feed ADD PRIMARY KEY (version, id);

ALTER TABLE {s}.nodes ADD COLUMN version smallint NOT NULL DEFAULT 2;

ALTER TABLE {s}.tally ADD COLUMN version smallint NOT NULL DEFAULT 2;

ALTER TABLE {s}.tally DROP CONSTRAINT tally_pkey;

ALTER TABLE {s}.tally ADD PRIMARY KEY (version, slot);

ALTER TABLE {s}.term ADD COLUMN version smallint NOT NULL DEFAULT 2;

ALTER TABLE {s}.term ADD COLUMN there boolean NOT NULL DEFAULT false;

ALTER TABLE {s}.term ADD PRIMARY KEY (version);

UPDATE {s}.term SET there = number > 0 OR EXISTS (SELECT 1 FROM {s}.jobs);
