-- Processes: runs of the class process, found by their id alone because that is the name of their
-- folder; and the live ones, for lists and the monitor.
CREATE INDEX runs_process ON runs (id, tenant) WHERE class = 'process';
CREATE INDEX runs_process_live ON runs (id, tenant) WHERE class = 'process' AND alarm_at IS NOT NULL;
