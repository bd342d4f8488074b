-- Live and finished runs are in one table: an end rewrites a row instead of moving it, and one look-up by id answers
-- whether a run was ever made.  Every index that a claim or an end changes is partial.
-- `state`: 0 held, 1 ready, 2 leased, 3 done, 4 dead, 5 cancelled.  `history_class`: null while a run lives, 0 finished,
-- 1 finished without a change of the target, 2 dead letter.  Claims change `state` only, so that they do not touch
-- indexes over `history_class`.
-- `version` is the scheduler version of a job, a run, a node, a term or a row of counters; each version has its own
-- queue, leases, due times, counts and term.  2 is the default.  Numbers of feed entries contain their version.
-- `tried`: how the latest attempts before ended, a JSON list; null: none.
-- `padding` reserves the bytes that a lease will write.  Pages are full when they are first written: rows that grew
-- with their lease split them, and three times as many pages went into the log.
CREATE TABLE runs (
  seq INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  job_id TEXT NOT NULL,
  due_ms INTEGER NOT NULL,
  cause INTEGER NOT NULL,
  key TEXT,
  payload BLOB,
  priority INTEGER NOT NULL,
  grp TEXT NOT NULL,
  target TEXT NOT NULL,
  gated INTEGER NOT NULL,
  state INTEGER NOT NULL,
  held_reason TEXT NOT NULL,
  visible_ms INTEGER NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0,
  lease_losses INTEGER NOT NULL DEFAULT 0,
  crashes INTEGER NOT NULL DEFAULT 0,
  fence INTEGER NOT NULL DEFAULT 0,
  token TEXT NOT NULL DEFAULT '',
  owner TEXT NOT NULL DEFAULT '',
  lease_until_ms INTEGER NOT NULL DEFAULT 0,
  cancel TEXT NOT NULL DEFAULT '',
  started_ms INTEGER,
  finished_ms INTEGER,
  failed INTEGER NOT NULL DEFAULT 0,
  changed INTEGER,
  error TEXT NOT NULL DEFAULT '',
  result BLOB,
  deaths INTEGER NOT NULL DEFAULT 1,
  lease_ms INTEGER NOT NULL DEFAULT 0,
  settled TEXT NOT NULL DEFAULT '',
  history_class INTEGER,
  progress TEXT NOT NULL DEFAULT '',
  tried BLOB,
  padding TEXT DEFAULT '................................................................................',
  version INTEGER NOT NULL DEFAULT 2
) STRICT;

CREATE INDEX runs_ready ON runs (version, priority, visible_ms) WHERE state = 1;

CREATE INDEX runs_leased ON runs (version, lease_until_ms) WHERE state = 2;

CREATE INDEX runs_held ON runs (due_ms, id) WHERE state = 0;

CREATE INDEX runs_live ON runs (due_ms, id) WHERE history_class IS NULL;

-- The live runs of a job by since when they overlap another: a firing always does (0), any other from its visible time
-- on.  So a firing finds an overlapping run in one step, however many are delayed.
CREATE INDEX runs_of_job ON runs (job_id, iif(cause = 0, 0, visible_ms)) WHERE history_class IS NULL;

CREATE UNIQUE INDEX runs_key ON runs (key) WHERE key IS NOT NULL AND history_class IS NULL;

CREATE INDEX runs_history ON runs (job_id, finished_ms) WHERE history_class < 2;

CREATE INDEX runs_dead ON runs (job_id, finished_ms) WHERE history_class = 2;

CREATE INDEX runs_history_class ON runs (history_class, finished_ms) WHERE history_class IS NOT NULL;

-- Failed runs have an index of their own: as many of them are kept per job as of the others.
CREATE INDEX runs_failures ON runs (job_id, finished_ms) WHERE history_class < 2 AND failed = 1;

CREATE TABLE jobs (
  n INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  revision INTEGER NOT NULL,
  release INTEGER NOT NULL,
  source TEXT NOT NULL,
  handler TEXT NOT NULL,
  name TEXT NOT NULL,
  grp TEXT NOT NULL,
  target TEXT NOT NULL,
  tags TEXT NOT NULL,
  enabled INTEGER NOT NULL,
  once INTEGER NOT NULL,
  next_due_ms INTEGER,
  last_due_ms INTEGER,
  ended_ms INTEGER,
  memory BLOB,
  definition BLOB NOT NULL,
  version INTEGER NOT NULL DEFAULT 2
) STRICT;

CREATE INDEX jobs_due ON jobs (version, next_due_ms, id) WHERE next_due_ms IS NOT NULL AND enabled = 1;

-- A once-job whose run was cancelled before it began has no outcome: it ended when it was due.
CREATE INDEX jobs_spent ON jobs (coalesce(ended_ms, last_due_ms))
WHERE once = 1 AND next_due_ms IS NULL AND last_due_ms IS NOT NULL;

-- The last due time of a deleted job: no due fires twice by delete and add.
CREATE TABLE tombs (
  n INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  revision INTEGER NOT NULL,
  last_due_ms INTEGER
) STRICT;

CREATE TABLE feed (
  id INTEGER PRIMARY KEY,
  ends INTEGER NOT NULL,
  body BLOB NOT NULL
) STRICT;

CREATE TABLE notes (
  key TEXT PRIMARY KEY,
  value BLOB NOT NULL,
  revision INTEGER NOT NULL,
  expires_ms INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX notes_expiry ON notes (expires_ms) WHERE expires_ms IS NOT NULL;

CREATE TABLE nodes (
  id TEXT PRIMARY KEY,
  seats INTEGER NOT NULL,
  until_ms INTEGER NOT NULL,
  beat_ms INTEGER NOT NULL,
  body BLOB NOT NULL,
  version INTEGER NOT NULL DEFAULT 2
) STRICT, WITHOUT ROWID;

CREATE TABLE log (
  seq INTEGER PRIMARY KEY,
  at_ms INTEGER NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  subject TEXT NOT NULL,
  detail TEXT NOT NULL,
  count INTEGER NOT NULL,
  chain TEXT NOT NULL
) STRICT;

-- One row per version.  `in_use`: the version has been led or has jobs.
CREATE TABLE term (
  number INTEGER NOT NULL,
  holder TEXT NOT NULL,
  until_ms INTEGER NOT NULL,
  ttl_ms INTEGER NOT NULL,
  version INTEGER NOT NULL DEFAULT 2,
  in_use INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE UNIQUE INDEX term_version ON term (version);

INSERT INTO term (number, holder, until_ms, ttl_ms) VALUES (0, '', 0, 0);

-- One row per version; `dead`, `entries`, `notes` and `stops` count for all versions, in the row of version 2.
-- `clock_ms` is the latest time at which a lease was granted or a job fired; `entries` numbers the feed, `notes` the
-- revisions of notes (one count for all: a deleted and new note gets another revision), `stops` changes of stops.
CREATE TABLE counters (
  held INTEGER NOT NULL,
  ready INTEGER NOT NULL,
  leased INTEGER NOT NULL,
  dead INTEGER NOT NULL,
  feed INTEGER NOT NULL,
  ends INTEGER NOT NULL,
  jobs INTEGER NOT NULL,
  entries INTEGER NOT NULL,
  notes INTEGER NOT NULL,
  stops INTEGER NOT NULL,
  clock_ms INTEGER NOT NULL,
  version INTEGER NOT NULL DEFAULT 2
) STRICT;

CREATE UNIQUE INDEX counters_version ON counters (version);

INSERT INTO counters (held, ready, leased, dead, feed, ends, jobs, entries, notes, stops, clock_ms)
VALUES (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
