-- As `none_ended`, of a single id.
CREATE FUNCTION {s}.has_not_ended(run_id text) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS 'BEGIN RETURN 1 / (NOT EXISTS (SELECT 1 FROM {s}.past WHERE id = run_id))::int = 1; END';
