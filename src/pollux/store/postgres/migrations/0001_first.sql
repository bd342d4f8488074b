-- Three tables hold the runs.  `runs` says what a live run is and what became of its attempts; `line` where it stands:
-- narrow rows with few indexes, because every delivery writes them anew; `past` holds those that are finished, so that
-- the busy tables stay small, their indexes short and their vacuum quick.  Whoever changes a live run locks its row in
-- `line` first.
-- `state` counts 0 held, 1 ready, 2 leased, 3 done, 4 dead, 5 cancelled; `shelf` 0 finished, 1 finished and nothing had
-- changed, 2 dead letter.  Texts are compared byte by byte, whatever the database's own order.
CREATE SEQUENCE {s}.run_seq;

CREATE TABLE {s}.runs (
  seq bigint PRIMARY KEY DEFAULT nextval('{s}.run_seq'),
  id text COLLATE "C" NOT NULL,
  job_id text COLLATE "C" NOT NULL,
  due_ms bigint NOT NULL,
  cause smallint NOT NULL,
  key text COLLATE "C",
  payload bytea,
  priority smallint NOT NULL,
  grp text COLLATE "C" NOT NULL,
  target text COLLATE "C" NOT NULL,
  gated boolean NOT NULL,
  attempt integer NOT NULL DEFAULT 0,
  lease_losses integer NOT NULL DEFAULT 0,
  crashes integer NOT NULL DEFAULT 0,
  started_ms bigint,
  finished_ms bigint,
  failed boolean NOT NULL DEFAULT false,
  changed boolean,
  error text NOT NULL DEFAULT '',
  result bytea,
  deaths integer NOT NULL DEFAULT 1,
  tried bytea
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);

CREATE UNIQUE INDEX runs_id ON {s}.runs (id);

CREATE UNIQUE INDEX runs_key ON {s}.runs (key) WHERE key IS NOT NULL;

CREATE INDEX runs_live ON {s}.runs (due_ms, id);

CREATE INDEX runs_of_job ON {s}.runs (job_id, seq);

CREATE TABLE {s}.line (
  seq bigint PRIMARY KEY,
  priority smallint NOT NULL,
  due_ms bigint NOT NULL,
  state smallint NOT NULL,
  visible_ms bigint NOT NULL,
  held_reason text NOT NULL,
  fence integer NOT NULL DEFAULT 0,
  token text NOT NULL DEFAULT '',
  owner text NOT NULL DEFAULT '',
  lease_until_ms bigint NOT NULL DEFAULT 0,
  lease_ms bigint NOT NULL DEFAULT 0,
  cancel text NOT NULL DEFAULT '',
  progress text NOT NULL DEFAULT '',
  settled text NOT NULL DEFAULT ''
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX line_ready ON {s}.line (priority, visible_ms, seq) WHERE state = 1;

CREATE INDEX line_leased ON {s}.line (lease_until_ms) WHERE state = 2;

CREATE INDEX line_held ON {s}.line (due_ms) WHERE state = 0;

CREATE TABLE {s}.past (
  seq bigint PRIMARY KEY,
  id text COLLATE "C" NOT NULL,
  job_id text COLLATE "C" NOT NULL,
  due_ms bigint NOT NULL,
  cause smallint NOT NULL,
  key text COLLATE "C",
  payload bytea,
  priority smallint NOT NULL,
  grp text COLLATE "C" NOT NULL,
  target text COLLATE "C" NOT NULL,
  gated boolean NOT NULL,
  state smallint NOT NULL,
  held_reason text NOT NULL,
  visible_ms bigint NOT NULL,
  attempt integer NOT NULL,
  lease_losses integer NOT NULL,
  crashes integer NOT NULL,
  fence integer NOT NULL,
  token text NOT NULL,
  owner text NOT NULL,
  lease_until_ms bigint NOT NULL,
  cancel text NOT NULL,
  started_ms bigint,
  finished_ms bigint NOT NULL,
  failed boolean NOT NULL,
  changed boolean,
  error text NOT NULL,
  result bytea,
  deaths integer NOT NULL,
  progress text NOT NULL,
  tried bytea,
  settled text NOT NULL,
  shelf smallint NOT NULL
);

CREATE UNIQUE INDEX past_id ON {s}.past (id);

CREATE INDEX past_of_job ON {s}.past (job_id, finished_ms, seq) WHERE shelf < 2;

CREATE INDEX past_dead ON {s}.past (job_id, finished_ms, seq) WHERE shelf = 2;

CREATE INDEX past_shelf ON {s}.past (shelf, finished_ms, seq);

CREATE TABLE {s}.jobs (
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id text COLLATE "C" NOT NULL UNIQUE,
  revision bigint NOT NULL,
  release bigint NOT NULL,
  source text COLLATE "C" NOT NULL,
  handler text COLLATE "C" NOT NULL,
  name text NOT NULL,
  grp text COLLATE "C" NOT NULL,
  target text COLLATE "C" NOT NULL,
  tags text NOT NULL,
  enabled boolean NOT NULL,
  once boolean NOT NULL,
  next_due_ms bigint,
  last_due_ms bigint,
  ended_ms bigint,
  memory bytea,
  definition bytea NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX jobs_due ON {s}.jobs (next_due_ms, id) WHERE next_due_ms IS NOT NULL AND enabled;

CREATE INDEX jobs_spent ON {s}.jobs (coalesce(ended_ms, last_due_ms))
WHERE once AND next_due_ms IS NULL AND last_due_ms IS NOT NULL;

-- What a deleted job leaves behind, so that no due fires twice by delete and add.
CREATE TABLE {s}.tombs (
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id text COLLATE "C" NOT NULL UNIQUE,
  revision bigint NOT NULL,
  last_due_ms bigint
);

-- Read as a queue, without a cursor: an entry that commits late is read late, and none is passed over.
CREATE TABLE {s}.feed (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  ends integer NOT NULL,
  body bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);

-- The latest claims by token, so that a repeated claim gets the same runs.
CREATE TABLE {s}.claims (
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  token text COLLATE "C" NOT NULL,
  part integer NOT NULL,
  seqs bigint[] NOT NULL,
  UNIQUE (token, part)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);

CREATE SEQUENCE {s}.note_revision;

CREATE TABLE {s}.notes (
  key text COLLATE "C" PRIMARY KEY,
  value bytea NOT NULL,
  revision bigint NOT NULL,
  expires_ms bigint
);

CREATE INDEX notes_expiry ON {s}.notes (expires_ms) WHERE expires_ms IS NOT NULL;

CREATE TABLE {s}.nodes (
  id text COLLATE "C" PRIMARY KEY,
  seats bigint NOT NULL,
  until_ms bigint NOT NULL,
  beat_ms bigint NOT NULL,
  body bytea NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE {s}.log (
  seq bigint PRIMARY KEY,
  at_ms bigint NOT NULL,
  actor text NOT NULL,
  action text NOT NULL,
  subject text NOT NULL,
  detail text NOT NULL,
  chain text NOT NULL
);

CREATE TABLE {s}.term (
  number bigint NOT NULL,
  holder text NOT NULL,
  until_ms bigint NOT NULL,
  ttl_ms bigint NOT NULL
) WITH (fillfactor = 50);

INSERT INTO {s}.term VALUES (0, '', 0, 0);

-- Counts are sums over slots: a writer changes one of sixteen, last of all, so that writers seldom wait for each other.
-- Slots from 16 on come from transactions of the users' own, and are gathered into the first now and then.  `stops`
-- counts changes of stops, `wakes` how often all were called back; `clock_ms` is the latest time at which a lease was given or a job fired.
CREATE SEQUENCE {s}.tally_slot MINVALUE 16;

CREATE TABLE {s}.tally (
  slot bigint PRIMARY KEY,
  held bigint NOT NULL DEFAULT 0,
  ready bigint NOT NULL DEFAULT 0,
  leased bigint NOT NULL DEFAULT 0,
  dead bigint NOT NULL DEFAULT 0,
  feed bigint NOT NULL DEFAULT 0,
  ends bigint NOT NULL DEFAULT 0,
  jobs bigint NOT NULL DEFAULT 0,
  stops bigint NOT NULL DEFAULT 0,
  wakes bigint NOT NULL DEFAULT 0,
  clock_ms bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_cost_delay = 0);

INSERT INTO {s}.tally (slot) SELECT generate_series(0, 15);

CREATE FUNCTION {s}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE
AS 'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint';
