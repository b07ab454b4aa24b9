-- When the watchdog skipped an inbox item; why is in error. Few items are ever skipped, and those of a run are found by the index.

ALTER TABLE inbox ADD COLUMN watchdog_at BIGINT;
CREATE INDEX inbox_skipped ON inbox (tenant, run_id, seq) WHERE status = 'skipped';
