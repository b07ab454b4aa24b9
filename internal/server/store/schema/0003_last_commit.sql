-- The answer to a run's last commit stands in its row; those before it are in the table commits. Runs that are there
-- already may have some in that table, and 1 says so.

ALTER TABLE runs ADD COLUMN committed {text} NOT NULL DEFAULT '1';
