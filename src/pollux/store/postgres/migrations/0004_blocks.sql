-- Runs that come together get their numbers together: one step of the sequence is as many as one call may bring.
ALTER SEQUENCE {s}.run_seq INCREMENT BY 1000;

-- As before, but one look suffices where nothing that ended lies between the first and the last of them: among ids that
-- were just made nothing does.
CREATE OR REPLACE FUNCTION {s}.none_ended(ids text[]) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS 'BEGIN RETURN
  (SELECT NOT EXISTS (SELECT 1 FROM {s}.past WHERE id BETWEEN b.low AND b.high)
   FROM (SELECT min(i COLLATE "C") AS low, max(i COLLATE "C") AS high FROM unnest(ids) AS i) AS b)
  OR 1 / (NOT EXISTS (SELECT 1 FROM {s}.past WHERE id = ANY(ids)))::int = 1; END';
