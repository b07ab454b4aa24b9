-- expand 0.2.0: paused kinds, as queue_pauses has paused queues. A node of 0.1.0 does not read them, so a kind
-- can't be paused while one is connected.
CREATE TABLE kind_pauses (
  tenant {text} NOT NULL, name {text} NOT NULL, paused_at BIGINT NOT NULL, until_at BIGINT NOT NULL,
  paused_by {text} NOT NULL, platform INTEGER NOT NULL, reason {text} NOT NULL,
  PRIMARY KEY (tenant, name)
) {without rowid};
CREATE INDEX kind_pauses_until ON kind_pauses (until_at) WHERE until_at > 0;
