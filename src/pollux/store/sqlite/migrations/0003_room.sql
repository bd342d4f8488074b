-- Room in each new run for what its lease will write.  Pages are full when they are first written: rows that grew
-- with their lease split them, and three times as many pages went into the log.
ALTER TABLE runs ADD COLUMN room TEXT DEFAULT '................................................................................';

-- Which claim got what is known to the process that claimed.
DROP TABLE claims;
