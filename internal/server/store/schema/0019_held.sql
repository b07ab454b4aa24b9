-- The builds that may not claim a run before the end of its hold's backoff, each between line breaks.
-- Empty: the run is not held back. Polls of other builds find it by the index.

ALTER TABLE runs ADD COLUMN held_by {text} NOT NULL DEFAULT '';
CREATE INDEX runs_held ON runs (tenant, queue, kind, id) WHERE held_by <> '';
