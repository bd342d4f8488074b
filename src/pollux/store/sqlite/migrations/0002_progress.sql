-- What a handler says while it runs, and what the attempts before ended with (a JSON list of the latest few; null: none).
ALTER TABLE runs ADD COLUMN progress TEXT NOT NULL DEFAULT '';

ALTER TABLE runs ADD COLUMN tried BLOB;

-- A once-job whose run was cancelled before it began never ended by an outcome: it ended when it was due.
DROP INDEX jobs_spent;

CREATE INDEX jobs_spent ON jobs (coalesce(ended_ms, last_due_ms))
WHERE once = 1 AND next_due_ms IS NULL AND last_due_ms IS NOT NULL;
