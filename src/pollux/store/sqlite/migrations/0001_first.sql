-- Live and finished runs in one table: an end rewrites a row instead of moving it, and one look-up by id answers
-- whether a run was ever made.  Every index that a busy line touches is partial.  `state` counts 0 held, 1 ready,
-- 2 leased, 3 done, 4 dead, 5 cancelled; `shelf` is null while a run lives, then 0 finished, 1 finished and nothing
-- had changed, 2 dead letter.  Claims change `state` only, so that indexes over `shelf` stay untouched by them.
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
  shelf INTEGER
) STRICT;

CREATE INDEX runs_ready ON runs (priority, visible_ms) WHERE state = 1;

CREATE INDEX runs_leased ON runs (lease_until_ms) WHERE state = 2;

CREATE INDEX runs_held ON runs (due_ms, id) WHERE state = 0;

CREATE INDEX runs_live ON runs (due_ms, id) WHERE shelf IS NULL;

CREATE INDEX runs_of_job ON runs (job_id) WHERE shelf IS NULL;

CREATE UNIQUE INDEX runs_key ON runs (key) WHERE key IS NOT NULL AND shelf IS NULL;

CREATE INDEX runs_history ON runs (job_id, finished_ms) WHERE shelf < 2;

CREATE INDEX runs_dead ON runs (job_id, finished_ms) WHERE shelf = 2;

CREATE INDEX runs_shelf ON runs (shelf, finished_ms) WHERE shelf IS NOT NULL;

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
  definition BLOB NOT NULL
) STRICT;

CREATE INDEX jobs_due ON jobs (next_due_ms, id) WHERE next_due_ms IS NOT NULL AND enabled = 1;

CREATE INDEX jobs_spent ON jobs (ended_ms)
WHERE once = 1 AND next_due_ms IS NULL AND last_due_ms IS NOT NULL AND ended_ms IS NOT NULL;

-- What a deleted job leaves behind, so that no due fires twice by delete and add.
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

-- The latest claims by token, so that a repeated claim gets the same runs.
CREATE TABLE claims (
  n INTEGER PRIMARY KEY,
  token TEXT NOT NULL UNIQUE,
  seqs BLOB NOT NULL
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
  body BLOB NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE log (
  seq INTEGER PRIMARY KEY,
  at_ms INTEGER NOT NULL,
  actor TEXT NOT NULL,
  action TEXT NOT NULL,
  subject TEXT NOT NULL,
  detail TEXT NOT NULL,
  chain TEXT NOT NULL
) STRICT;

-- One row each.  `clock_ms` is the latest time at which a lease was given or a job fired; `entries` numbers the feed, `notes` the
-- revisions of notes (one count for all: a note made anew is never taken for the old one), `stops` changes of stops.
CREATE TABLE term (
  number INTEGER NOT NULL,
  holder TEXT NOT NULL,
  until_ms INTEGER NOT NULL,
  ttl_ms INTEGER NOT NULL
) STRICT;

INSERT INTO term VALUES (0, '', 0, 0);

CREATE TABLE tally (
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
  clock_ms INTEGER NOT NULL
) STRICT;

INSERT INTO tally VALUES (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
