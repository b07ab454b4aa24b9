-- expand 0.2.0: limits of tenants. A deleted one keeps its row until nothing waits at it. alarm_at is set while the
-- keys behind swept_to are to be looked at again, because the limit has changed.
CREATE TABLE limits (
  tenant {text} NOT NULL, name {text} NOT NULL, spec {text} NOT NULL, per_key INTEGER NOT NULL,
  description {text} NOT NULL, created_at BIGINT NOT NULL, changed_at BIGINT NOT NULL, deleted_at BIGINT NOT NULL,
  closed_until BIGINT NOT NULL, close_reason {text} NOT NULL, alarm_at BIGINT, swept_to {text} NOT NULL,
  version BIGINT NOT NULL,
  PRIMARY KEY (tenant, name)
) {without rowid};
CREATE INDEX limits_alarm ON limits (tenant, alarm_at) WHERE alarm_at IS NOT NULL;
CREATE INDEX limits_due ON limits (alarm_at) WHERE alarm_at IS NOT NULL;

-- The counts of a limit, for each key if it counts by key, and otherwise under the empty key. spec has the values
-- that this key has instead of those of the limit.
CREATE TABLE limit_keys (
  tenant {text} NOT NULL, name {text} NOT NULL, key {text} NOT NULL, spec {text} NOT NULL,
  leased BIGINT NOT NULL, waiting BIGINT NOT NULL, offered BIGINT NOT NULL, offered_units BIGINT NOT NULL,
  offered_after BIGINT NOT NULL, passed {text} NOT NULL, turn {text} NOT NULL, full_at BIGINT NOT NULL,
  closed_until BIGINT NOT NULL, close_reason {text} NOT NULL, recount INTEGER NOT NULL,
  used_at BIGINT NOT NULL, alarm_at BIGINT, version BIGINT NOT NULL,
  PRIMARY KEY (tenant, name, key)
) {without rowid};
CREATE INDEX limit_keys_alarm ON limit_keys (tenant, alarm_at) WHERE alarm_at IS NOT NULL;
CREATE INDEX limit_keys_due ON limit_keys (alarm_at) WHERE alarm_at IS NOT NULL;
CREATE INDEX limit_keys_waiting ON limit_keys (tenant, name, key) WHERE waiting > 0;
CREATE INDEX limit_keys_spec ON limit_keys (tenant, name, key) WHERE spec <> '';
CREATE INDEX limit_keys_unused ON limit_keys (used_at) WHERE leased = 0 AND waiting = 0 AND offered = 0 AND spec = '';

-- The position of a run at its limits: where it waits, or that it is offered or holds slots. Empty for all others.
ALTER TABLE runs ADD COLUMN limited_at {text} NOT NULL DEFAULT '';
