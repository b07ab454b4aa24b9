-- History: what happened in each minute, for each tenant. Rows are kept for a week. d0 to d7 count
-- runs by the time that they waited for a worker.
CREATE TABLE history (
  tenant {text} NOT NULL, at BIGINT NOT NULL,
  created BIGINT NOT NULL, completed BIGINT NOT NULL, failed BIGINT NOT NULL, cancelled BIGINT NOT NULL,
  timed_out BIGINT NOT NULL, errors BIGINT NOT NULL, late BIGINT NOT NULL, lateness BIGINT NOT NULL,
  d0 BIGINT NOT NULL, d1 BIGINT NOT NULL, d2 BIGINT NOT NULL, d3 BIGINT NOT NULL,
  d4 BIGINT NOT NULL, d5 BIGINT NOT NULL, d6 BIGINT NOT NULL, d7 BIGINT NOT NULL,
  version BIGINT NOT NULL,
  PRIMARY KEY (tenant, at)
) {without rowid};
CREATE INDEX history_at ON history (at);

-- Lists of runs that ended without success. Completed runs are most of all, and found without it.
CREATE INDEX runs_ended ON runs (tenant, state, id) WHERE alarm_at IS NULL AND state <> 'completed';
