-- Webhooks: endpoints, what they are told, and every attempt to tell them. Their secrets follow from the one in meta: whoever
-- has the database, or a backup, has them.

CREATE TABLE webhooks (
  tenant {text} NOT NULL, id {text} NOT NULL,
  scope {text} NOT NULL, thread_id {text} NOT NULL, url {text} NOT NULL, events {text} NOT NULL, description {text} NOT NULL,
  secret_version INTEGER NOT NULL, rotated_at BIGINT NOT NULL,
  created_at BIGINT NOT NULL, disabled_at BIGINT NOT NULL, disabled_reason {text} NOT NULL, failing_at BIGINT NOT NULL, deleted_at BIGINT NOT NULL,
  version BIGINT NOT NULL,
  PRIMARY KEY (tenant, id),
  CHECK (scope IN ('tenant','thread','run'))
);
CREATE INDEX webhooks_registered ON webhooks (tenant, id) WHERE scope <> 'run' AND deleted_at = 0;

ALTER TABLE outbox ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outbox ADD COLUMN status INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outbox ADD COLUMN error {text} NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN version BIGINT NOT NULL DEFAULT 0;
-- Until now nothing was ever sent. What was written down for somebody who may have given up waiting stays unsent; what a run
-- with a webhook does from now on is told.
UPDATE outbox SET state = 'dropped', alarm_at = NULL WHERE target = 'run';
DROP INDEX outbox_alarm;
-- By endpoint first: whoever looks for what is due steps over the rows of a dead one.
CREATE INDEX outbox_due ON outbox (tenant, target, alarm_at, run_id, seq) WHERE alarm_at IS NOT NULL;
CREATE INDEX outbox_target ON outbox (tenant, target, created_at, run_id, seq);
CREATE INDEX outbox_dead ON outbox (tenant, target, created_at, run_id, seq) WHERE state = 'dead';

-- There is a new scope. A key of the platform that has all the others was made to have all there are.
UPDATE keys SET scopes = scopes || ' webhooks:admin' WHERE platform = 1 AND ' ' || scopes || ' ' NOT LIKE '% webhooks:admin %'
  AND ' ' || scopes || ' ' LIKE '% runs:create %' AND ' ' || scopes || ' ' LIKE '% runs:read %' AND ' ' || scopes || ' ' LIKE '% runs:control %'
  AND ' ' || scopes || ' ' LIKE '% worker:poll %' AND ' ' || scopes || ' ' LIKE '% worker:report %' AND ' ' || scopes || ' ' LIKE '% keys:admin %';

CREATE TABLE webhook_attempts (
  tenant {text} NOT NULL, run_id {text} NOT NULL, seq BIGINT NOT NULL, target {text} NOT NULL, n BIGINT NOT NULL,
  at BIGINT NOT NULL, took_ms BIGINT NOT NULL, status INTEGER NOT NULL, error {text} NOT NULL, response {text} NOT NULL,
  PRIMARY KEY (tenant, run_id, seq, target, n)
) {without rowid};
