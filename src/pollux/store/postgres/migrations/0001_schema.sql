-- Three tables hold the runs.  `runs` has what a live run is and how its attempts ended; `queue` its state and place:
-- narrow rows with few indexes, because every delivery rewrites them; `history` has the finished runs, so that the busy
-- tables stay small, their indexes short and their vacuum quick.  Every change of a live run locks its row in `queue`
-- first.
-- `state`: 0 held, 1 ready, 2 leased, 3 done, 4 dead, 5 cancelled; `history_class`: 0 finished, 1 finished without a change
-- of the target, 2 dead letter.  Texts are compared byte by byte, whatever the database's own order.
-- `version` is the scheduler version of a job, a run, a feed entry, a node, a term or a row of counters; each version has
-- its own queue, leases, due times, feed, counts and term.  2 is the default.
-- Runs that are made together get their numbers together: one step of the sequence is as many as one call may bring.
CREATE SEQUENCE {s}.run_seq INCREMENT BY 1000;

-- A run is found by its id, or by its job and number, which the queue has, too: one index less to maintain.
-- A run that was asked for (its cause is not 0) and is for a later time has `later`, in both tables.  Such runs come last
-- among those of their job, and have an index by since when they overlap.  So a firing reads only the runs that may
-- overlap it, however many are for later, and any other run adds to no further index.  `later` affects cost alone: state
-- and visible time decide whether a run overlaps, and one stays `later` when its time has come.
CREATE TABLE {s}.runs (
  seq bigint DEFAULT nextval('{s}.run_seq'),
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
  tried bytea,
  later boolean NOT NULL DEFAULT false,
  PRIMARY KEY (job_id, later, seq)
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);

CREATE UNIQUE INDEX runs_id ON {s}.runs (id);

CREATE UNIQUE INDEX runs_key ON {s}.runs (key) WHERE key IS NOT NULL;

CREATE INDEX runs_live ON {s}.runs (due_ms, id);

CREATE TABLE {s}.queue (
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
  settled text NOT NULL DEFAULT '',
  version smallint NOT NULL DEFAULT 2,
  job_id text COLLATE "C" NOT NULL,
  later boolean NOT NULL DEFAULT false
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.05);

CREATE INDEX queue_ready ON {s}.queue (version, priority, visible_ms, seq) WHERE state = 1;

CREATE INDEX queue_leased ON {s}.queue (version, lease_until_ms) WHERE state = 2;

CREATE INDEX queue_held ON {s}.queue (due_ms) WHERE state = 0;

CREATE INDEX queue_later ON {s}.queue (job_id, (CASE WHEN state = 2 THEN 0 ELSE visible_ms END)) WHERE later;

CREATE TABLE {s}.history (
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
  history_class smallint NOT NULL,
  version smallint NOT NULL DEFAULT 2
);

CREATE UNIQUE INDEX history_id ON {s}.history (id);

CREATE INDEX history_of_job ON {s}.history (job_id, finished_ms, seq) WHERE history_class < 2;

CREATE INDEX history_dead ON {s}.history (job_id, finished_ms, seq) WHERE history_class = 2;

CREATE INDEX history_class ON {s}.history (history_class, finished_ms, seq);

-- Failed runs have an index of their own: as many of them are kept per job as of the others.
CREATE INDEX history_failures ON {s}.history (job_id, finished_ms, seq) WHERE history_class < 2 AND failed;

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
  definition bytea NOT NULL,
  version smallint NOT NULL DEFAULT 2
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);

CREATE INDEX jobs_due ON {s}.jobs (version, next_due_ms, id) WHERE next_due_ms IS NOT NULL AND enabled;

CREATE INDEX jobs_spent ON {s}.jobs (coalesce(ended_ms, last_due_ms))
WHERE once AND next_due_ms IS NULL AND last_due_ms IS NOT NULL;

-- The last due time of a deleted job: no due fires twice by delete and add.
CREATE TABLE {s}.tombs (
  n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id text COLLATE "C" NOT NULL UNIQUE,
  revision bigint NOT NULL,
  last_due_ms bigint
);

-- Read as a queue, without a cursor: an entry that commits late is read late, and none is skipped.
CREATE TABLE {s}.feed (
  id bigint GENERATED ALWAYS AS IDENTITY,
  ends integer NOT NULL,
  body bytea NOT NULL,
  version smallint NOT NULL DEFAULT 2,
  PRIMARY KEY (version, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0);

-- Entries are read once, and soon: compressing them costs more than it saves.
ALTER TABLE {s}.feed ALTER COLUMN body SET STORAGE EXTERNAL;

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
  body bytea NOT NULL,
  version smallint NOT NULL DEFAULT 2
) WITH (fillfactor = 50);

CREATE TABLE {s}.log (
  seq bigint PRIMARY KEY,
  at_ms bigint NOT NULL,
  actor text NOT NULL,
  action text NOT NULL,
  subject text NOT NULL,
  detail text NOT NULL,
  count bigint NOT NULL,
  chain text NOT NULL
);

-- One row per version.  `in_use`: the version has been led or has jobs.
CREATE TABLE {s}.term (
  number bigint NOT NULL,
  holder text NOT NULL,
  until_ms bigint NOT NULL,
  ttl_ms bigint NOT NULL,
  version smallint PRIMARY KEY DEFAULT 2,
  in_use boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

INSERT INTO {s}.term (number, holder, until_ms, ttl_ms) VALUES (0, '', 0, 0);

-- Counts are sums over slots: a writer changes one of sixteen, last of all, so that writers seldom wait for each other.
-- Slots from 16 on come from the users' own transactions, and are merged into the others now and then.  `dead` and `stops`
-- count for all versions, in rows of version 2.  `stops` counts changes of stops, `wakes` how often all waiters were woken;
-- `clock_ms` is the latest time at which a lease was granted or a job fired.
CREATE SEQUENCE {s}.counters_slot MINVALUE 16;

CREATE TABLE {s}.counters (
  slot bigint NOT NULL,
  held bigint NOT NULL DEFAULT 0,
  ready bigint NOT NULL DEFAULT 0,
  leased bigint NOT NULL DEFAULT 0,
  dead bigint NOT NULL DEFAULT 0,
  feed bigint NOT NULL DEFAULT 0,
  ends bigint NOT NULL DEFAULT 0,
  jobs bigint NOT NULL DEFAULT 0,
  stops bigint NOT NULL DEFAULT 0,
  wakes bigint NOT NULL DEFAULT 0,
  clock_ms bigint NOT NULL DEFAULT 0,
  version smallint NOT NULL DEFAULT 2,
  PRIMARY KEY (version, slot)
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_cost_delay = 0);

INSERT INTO {s}.counters (slot) SELECT generate_series(0, 15);

CREATE FUNCTION {s}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE
AS 'SELECT floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint';

-- Whether the store was moved away, or is being filled, as of this moment; it stays so until the calling write ends.
CREATE FUNCTION {s}.is_sealed() RETURNS boolean LANGUAGE plpgsql VOLATILE SET enable_seqscan = off
AS 'BEGIN
  PERFORM pg_advisory_xact_lock_shared(''{s}.notes''::regclass::oid::int, 5);
  RETURN EXISTS (SELECT 1 FROM {s}.notes WHERE key = ''move:seal'');
END';

-- Plain writes are one statement.  What stands against them is raised with a code of our own: nothing of the statement
-- has happened then, and its caller takes the long way.
-- Whether ids that were just made have ended before, as of this moment, and not as of the start of the calling statement.
-- One look suffices if nothing that ended lies between the first and the last of them: among ids that were just made
-- nothing does.
-- A session keeps the plans of a function, also behind a pooler: none may scan a table that was empty when it was made.
CREATE FUNCTION {s}.refuse_ended(ids text[]) RETURNS void LANGUAGE plpgsql VOLATILE SET enable_seqscan = off
AS 'DECLARE
  low text COLLATE "C";
  high text COLLATE "C";
BEGIN
  SELECT min(i COLLATE "C"), max(i COLLATE "C") INTO low, high FROM unnest(ids) AS i;
  IF EXISTS (SELECT 1 FROM {s}.history WHERE id BETWEEN low AND high)
    AND EXISTS (SELECT 1 FROM {s}.history WHERE id = ANY(ids)) THEN
    RAISE EXCEPTION ''a run has ended that was to be made'' USING ERRCODE = ''PX001'';
  END IF;
END';

-- How many were found, if it is as many as were asked for.
CREATE FUNCTION {s}.all_of(settled bigint, asked bigint) RETURNS bigint LANGUAGE plpgsql VOLATILE
AS 'BEGIN
  IF settled <> asked THEN
    RAISE EXCEPTION ''% of % runs are leased as the caller knows them'', settled, asked USING ERRCODE = ''PX001'';
  END IF;
  RETURN settled;
END';

-- The live runs of a job that overlap (see `Run.overlaps_at`), up to a number.  The planner inlines it into the calling
-- statements: it has to stay one SELECT, STABLE and without settings.
CREATE FUNCTION {s}.overlapping(job text, at_ms bigint, many bigint) RETURNS TABLE (later boolean, seq bigint)
LANGUAGE sql STABLE
AS 'SELECT found.later, found.seq FROM (
  (SELECT r.later, r.seq FROM {s}.runs AS r
   WHERE r.job_id = job AND NOT r.later AND CASE WHEN r.cause = 0 THEN true ELSE (
     SELECT q.state = 2 OR q.visible_ms <= at_ms FROM {s}.queue AS q WHERE q.seq = r.seq
   ) END
   ORDER BY r.seq LIMIT many)
  UNION ALL
  (SELECT q.later, q.seq FROM {s}.queue AS q
   WHERE q.job_id = job AND q.later AND CASE WHEN q.state = 2 THEN 0 ELSE q.visible_ms END <= at_ms
   ORDER BY CASE WHEN q.state = 2 THEN 0 ELSE q.visible_ms END LIMIT many)
) AS found LIMIT many';

-- Runs of one job that are alike but for their ids and payloads, which come as lines; returns the job's version, or
-- null, and does nothing, if the job was deleted, the queue is full, or one of a few ids is known.  Of many ids that is not
-- looked up before: the unique index refuses those that live, and `refuse_ended` looks, after the rows are inserted, for
-- those that ended meanwhile.  Their numbers are one step of the sequence.  The given time, or the server's, decides
-- whether they are for later.
CREATE FUNCTION {s}.add_alike(
  id_lines text, payloads text, job text, due bigint, why smallint, rank smallint, of_group text, of_target text,
  at_gate boolean, visible bigint, ready_max bigint, channel text, message text, at_ms bigint
) RETURNS smallint LANGUAGE plpgsql VOLATILE SET enable_seqscan = off
AS 'DECLARE
  ids text[] := string_to_array(id_lines, E''\n'');
  many bigint := cardinality(ids);
  is_later boolean := why <> 0 AND visible > coalesce(at_ms, {s}.now_ms());
  first bigint;
  of_version smallint;
BEGIN
  SELECT j.version, nextval(''{s}.run_seq'') INTO of_version, first FROM {s}.jobs AS j
  WHERE j.id = job
    AND many + (SELECT sum(held + ready) FROM {s}.counters WHERE counters.version = j.version) <= ready_max
    AND (many > 10 OR NOT EXISTS (
      SELECT 1 FROM {s}.runs WHERE id = ANY(ids) UNION ALL SELECT 1 FROM {s}.history WHERE id = ANY(ids)
    ))
    AND NOT {s}.is_sealed()
  FOR KEY SHARE OF j;
  IF of_version IS NULL THEN
    RETURN NULL;
  END IF;
  INSERT INTO {s}.runs (seq, id, payload, job_id, due_ms, cause, priority, grp, target, gated, later)
  SELECT first + b.place - 1, b.id, convert_to(b.payload, ''UTF8''), job, due, why, rank, of_group, of_target, at_gate, is_later
  FROM unnest(ids, string_to_array(payloads, E''\n'', ''null'')) WITH ORDINALITY AS b (id, payload, place);
  INSERT INTO {s}.queue (seq, job_id, priority, due_ms, state, visible_ms, held_reason, version, later)
  SELECT place, job, rank, due, 1, visible, '''', of_version, is_later FROM generate_series(first, first + many - 1) AS place;
  PERFORM {s}.refuse_ended(ids);
  UPDATE {s}.counters SET ready = ready + many WHERE counters.version = of_version AND slot = pg_backend_pid() % 16;
  IF message <> '''' THEN
    PERFORM pg_notify(channel, message || of_version);
  END IF;
  RETURN of_version;
END';
