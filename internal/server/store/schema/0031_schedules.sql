-- expand 0.2.0: schedules, runs that are started at instants of a plan. next_at is the next instant, and alarm_at is
-- when it fires: later by its jitter. A schedule that is paused or over has no alarm. A deleted one keeps
-- its row for a while, so that no batch deletes what another one writes.
CREATE TABLE schedules (
  tenant {text} NOT NULL, name {text} NOT NULL, id {text} NOT NULL, plan {text} NOT NULL, submission {text} NOT NULL,
  description {text} NOT NULL, created_at BIGINT NOT NULL, changed_at BIGINT NOT NULL, deleted_at BIGINT NOT NULL,
  paused_at BIGINT NOT NULL, next_at BIGINT NOT NULL, floor_at BIGINT NOT NULL, alarm_at BIGINT,
  waiting_at BIGINT NOT NULL, last_at BIGINT NOT NULL, last_fired_at BIGINT NOT NULL, last_run {text} NOT NULL,
  fired BIGINT NOT NULL, missed BIGINT NOT NULL, skipped BIGINT NOT NULL, failed BIGINT NOT NULL,
  failures BIGINT NOT NULL, last_error {text} NOT NULL, version BIGINT NOT NULL,
  PRIMARY KEY (tenant, name)
) {without rowid};
CREATE INDEX schedules_alarm ON schedules (tenant, alarm_at) WHERE alarm_at IS NOT NULL;
CREATE INDEX schedules_due ON schedules (alarm_at) WHERE alarm_at IS NOT NULL;
CREATE INDEX schedules_deleted ON schedules (deleted_at) WHERE deleted_at > 0;
