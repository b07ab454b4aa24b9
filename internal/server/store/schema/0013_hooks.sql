-- Fan-out: events that more endpoints are to be told of than the operation which made them may write rows for. Each waits here as
-- one row, written with the event, until a step of the deliverer has made its notifications. own is the endpoint that came with the
-- run, if that is to be told; after is the last registered one that has been.
CREATE TABLE fanouts (
  tenant {text} NOT NULL, run_id {text} NOT NULL, seq BIGINT NOT NULL,
  type {text} NOT NULL, thread_id {text} NOT NULL, own {text} NOT NULL, at BIGINT NOT NULL, after {text} NOT NULL, version BIGINT NOT NULL,
  PRIMARY KEY (tenant, run_id, seq)
) {without rowid};
CREATE INDEX fanouts_order ON fanouts (tenant, at, run_id, seq);

-- The quota of webhooks: an operation that makes one writes its tenant's row, so that two of them can't both find room for the last.
-- Of those that come with runs, made counts the ones since an instant.
CREATE TABLE webhook_quota (
  tenant {text} NOT NULL, scope {text} NOT NULL, since BIGINT NOT NULL, made BIGINT NOT NULL, version BIGINT NOT NULL,
  PRIMARY KEY (tenant, scope)
) {without rowid};
