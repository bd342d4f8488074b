-- Runs of one job that are alike but for their ids and payloads, which come as lines; answers the job's version, or
-- nothing, and does nothing, if the job is gone, there is no room, or one of a few ids is known.  Of many ids nobody asks
-- beforehand: the unique index refuses those that live, and `none_ended` looks, after the rows are there, for those that
-- ended meanwhile.  Their numbers are one step of the sequence.  A session keeps the plans of a function, also behind a
-- pooler: none may walk over a table that was empty when it was made.
CREATE FUNCTION {s}.add_alike(
  lines text, payloads text, job text, due bigint, why smallint, rank smallint, of_group text, of_target text,
  at_gate boolean, visible bigint, room bigint, channel text, word text
) RETURNS smallint LANGUAGE plpgsql VOLATILE SET enable_seqscan = off
AS 'DECLARE
  ids text[] := string_to_array(lines, E''\n'');
  many bigint := cardinality(ids);
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
  INSERT INTO {s}.runs (seq, id, payload, job_id, due_ms, cause, priority, grp, target, gated)
  SELECT first + b.place - 1, b.id, convert_to(b.payload, ''UTF8''), job, due, why, rank, of_group, of_target, at_gate
  FROM unnest(ids, string_to_array(payloads, E''\n'', ''null'')) WITH ORDINALITY AS b (id, payload, place);
  INSERT INTO {s}.line (seq, job_id, priority, due_ms, state, visible_ms, held_reason, version)
  SELECT place, job, rank, due, 1, visible, '''', of_version FROM generate_series(first, first + many - 1) AS place;
  PERFORM {s}.none_ended(ids);
  UPDATE {s}.tally SET ready = ready + many WHERE tally.version = of_version AND slot = pg_backend_pid() % 16;
  IF word <> '''' THEN
    PERFORM pg_notify(channel, word || of_version);
  END IF;
  RETURN of_version;
END';

ALTER FUNCTION {s}.none_ended(text[]) SET enable_seqscan = off;

ALTER FUNCTION {s}.has_not_ended(text) SET enable_seqscan = off;
