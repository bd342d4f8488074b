-- A run that was asked for (its cause is not 0) and waits for a later time is `later`, in both tables.  Such runs come last
-- among those of their job, behind what a firing looks at, and have an index by since when they overlap.  So a firing reads
-- what may be in its way, however many runs are for later, and any other run adds to no further index.  It is a matter
-- of cost alone: where a run stands decides whether it overlaps, and one stays `later` when its time has come.
ALTER TABLE {s}.runs ADD COLUMN later boolean NOT NULL DEFAULT false;

ALTER TABLE {s}.line ADD COLUMN later boolean NOT NULL DEFAULT false;

UPDATE {s}.line AS l SET later = true FROM {s}.runs AS r
WHERE r.job_id = l.job_id AND r.seq = l.seq AND r.cause <> 0 AND l.state < 2 AND l.visible_ms > {s}.now_ms();

UPDATE {s}.runs AS r SET later = true FROM {s}.line AS l WHERE r.job_id = l.job_id AND r.seq = l.seq AND l.later;

ALTER TABLE {s}.runs DROP CONSTRAINT runs_pkey;

ALTER TABLE {s}.runs ADD PRIMARY KEY (job_id, later, seq);

CREATE INDEX line_later ON {s}.line (job_id, (CASE WHEN state = 2 THEN 0 ELSE visible_ms END)) WHERE later;

-- The live runs of a job that overlap (see `Run.overlaps_at`), up to a number.  The planner puts it into the statements that
-- ask: it has to stay one SELECT, STABLE and without settings.
CREATE FUNCTION {s}.overlapping(job text, at_ms bigint, many bigint) RETURNS TABLE (later boolean, seq bigint)
LANGUAGE sql STABLE
AS 'SELECT found.later, found.seq FROM (
  (SELECT r.later, r.seq FROM {s}.runs AS r
   WHERE r.job_id = job AND NOT r.later AND CASE WHEN r.cause = 0 THEN true ELSE (
     SELECT l.state = 2 OR l.visible_ms <= at_ms FROM {s}.line AS l WHERE l.seq = r.seq
   ) END
   ORDER BY r.seq LIMIT many)
  UNION ALL
  (SELECT l.later, l.seq FROM {s}.line AS l
   WHERE l.job_id = job AND l.later AND CASE WHEN l.state = 2 THEN 0 ELSE l.visible_ms END <= at_ms
   ORDER BY CASE WHEN l.state = 2 THEN 0 ELSE l.visible_ms END LIMIT many)
) AS found LIMIT many';

DROP FUNCTION {s}.add_alike(
  text, text, text, bigint, smallint, smallint, text, text, boolean, bigint, bigint, text, text
);

-- As before; the time that is given, or the server's, decides whether they are for later.
CREATE FUNCTION {s}.add_alike(
  lines text, payloads text, job text, due bigint, why smallint, rank smallint, of_group text, of_target text,
  at_gate boolean, visible bigint, room bigint, channel text, word text, given bigint
) RETURNS smallint LANGUAGE plpgsql VOLATILE SET enable_seqscan = off
AS 'DECLARE
  ids text[] := string_to_array(lines, E''\n'');
  many bigint := cardinality(ids);
  is_later boolean := why <> 0 AND visible > coalesce(given, {s}.now_ms());
  first bigint;
  of_version smallint;
BEGIN
  SELECT j.version, nextval(''{s}.run_seq'') INTO of_version, first FROM {s}.jobs AS j
  WHERE j.id = job
    AND many + (SELECT sum(held + ready) FROM {s}.tally WHERE tally.version = j.version) <= room
    AND (many > 10 OR NOT EXISTS (
      SELECT 1 FROM {s}.runs WHERE id = ANY(ids) UNION ALL SELECT 1 FROM {s}.past WHERE id = ANY(ids)
    ))
  FOR KEY SHARE OF j;
  IF of_version IS NULL THEN
    RETURN NULL;
  END IF;
  INSERT INTO {s}.runs (seq, id, payload, job_id, due_ms, cause, priority, grp, target, gated, later)
  SELECT first + b.place - 1, b.id, convert_to(b.payload, ''UTF8''), job, due, why, rank, of_group, of_target, at_gate, is_later
  FROM unnest(ids, string_to_array(payloads, E''\n'', ''null'')) WITH ORDINALITY AS b (id, payload, place);
  INSERT INTO {s}.line (seq, job_id, priority, due_ms, state, visible_ms, held_reason, version, later)
  SELECT place, job, rank, due, 1, visible, '''', of_version, is_later FROM generate_series(first, first + many - 1) AS place;
  PERFORM {s}.none_ended(ids);
  UPDATE {s}.tally SET ready = ready + many WHERE tally.version = of_version AND slot = pg_backend_pid() % 16;
  IF word <> '''' THEN
    PERFORM pg_notify(channel, word || of_version);
  END IF;
  RETURN of_version;
END';
