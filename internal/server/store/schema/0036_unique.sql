-- expand 0.2.0: the keys of unique and debounced runs. A key without a run is free; its row is kept until
-- retention removes it, so that no batch deletes what another one writes. A node of 0.1.0 does not free
-- keys, so they are refused while one is connected; a key whose run has ended is free whatever its row says.
CREATE TABLE unique_runs (
  tenant {text} NOT NULL, kind {text} NOT NULL, purpose {text} NOT NULL, key {text} NOT NULL, run_id {text} NOT NULL,
  held_while {text} NOT NULL, until_at BIGINT NOT NULL, free_at BIGINT NOT NULL, version BIGINT NOT NULL,
  PRIMARY KEY (tenant, kind, purpose, key)
) {without rowid};
CREATE INDEX unique_runs_free ON unique_runs (free_at) WHERE free_at > 0;
CREATE INDEX unique_runs_run ON unique_runs (tenant, run_id) WHERE run_id <> '';
