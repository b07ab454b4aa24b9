-- Approvals: actions that wait, or waited, for somebody to decide about them. Each belongs to a wait, and is open while that is.

CREATE TABLE approvals (
  tenant {text} NOT NULL, run_id {text} NOT NULL, wait_id {text} NOT NULL, id {text} NOT NULL,
  kind {text} NOT NULL, name {text} NOT NULL, title {text} NOT NULL, action {text} NOT NULL, action_hash {text} NOT NULL,
  form {text} NOT NULL, if_silent {text} NOT NULL, state {text} NOT NULL, opened_at BIGINT NOT NULL, expires_at BIGINT NOT NULL,
  decided_at BIGINT NOT NULL, decided_by {text} NOT NULL, decided_name {text} NOT NULL, comment {text} NOT NULL, answer {text} NOT NULL, digest {text} NOT NULL,
  PRIMARY KEY (tenant, run_id, wait_id),
  CHECK (state IN ('open','approved','rejected','timed_out','closed')),
  CHECK ((state IN ('approved','rejected')) = (decided_by <> ''))
);
CREATE UNIQUE INDEX approvals_id ON approvals (tenant, id);
CREATE INDEX approvals_open ON approvals (tenant, opened_at, id) WHERE state = 'open';
CREATE INDEX approvals_all ON approvals (tenant, opened_at, id);

-- There is a new scope. A key of the platform that has all the others was made to have all there are.
UPDATE keys SET scopes = scopes || ' runs:approve' WHERE platform = 1 AND ' ' || scopes || ' ' NOT LIKE '% runs:approve %'
  AND ' ' || scopes || ' ' LIKE '% runs:create %' AND ' ' || scopes || ' ' LIKE '% runs:read %' AND ' ' || scopes || ' ' LIKE '% runs:control %'
  AND ' ' || scopes || ' ' LIKE '% worker:poll %' AND ' ' || scopes || ' ' LIKE '% worker:report %' AND ' ' || scopes || ' ' LIKE '% keys:admin %'
  AND ' ' || scopes || ' ' LIKE '% webhooks:admin %';
