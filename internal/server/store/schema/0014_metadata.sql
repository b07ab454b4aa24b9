-- The index of runs by metadata: a row for each entry of a run's metadata. value is the first 128 characters of the entry's value, so
-- that no row is too large for an index of PostgreSQL. The run's own metadata decides whether the whole value is the same.
-- Runs that were there before are added by the program, in batches: see metadata.go.

CREATE TABLE run_metadata (
  tenant {text} NOT NULL, name {text} NOT NULL, value {text} NOT NULL, run_id {text} NOT NULL,
  PRIMARY KEY (tenant, name, value, run_id)
) {without rowid};
