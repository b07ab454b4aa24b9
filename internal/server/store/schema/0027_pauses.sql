-- Paused queues. Nothing is granted from a queue with a row whose until_at is zero or in the future.
-- A resumed queue keeps its row until retention removes it, so that no batch deletes what another one
-- writes.
CREATE TABLE queue_pauses (
  tenant {text} NOT NULL, name {text} NOT NULL, paused_at BIGINT NOT NULL, until_at BIGINT NOT NULL,
  paused_by {text} NOT NULL, platform INTEGER NOT NULL, reason {text} NOT NULL,
  PRIMARY KEY (tenant, name)
) {without rowid};
CREATE INDEX queue_pauses_until ON queue_pauses (until_at) WHERE until_at > 0;
