-- The registry of kinds. The tenant '' is the layer of the platform, which lies under every tenant's.
-- A row of kinds has the operator's overrides and names the build that counts: the one that was first
-- seen last. newest_at is 0 if no worker has announced the kind.
CREATE TABLE kinds (
  tenant {text} NOT NULL, kind {text} NOT NULL, newest {text} NOT NULL, newest_at BIGINT NOT NULL,
  overrides {text} NOT NULL, created_at BIGINT NOT NULL, version BIGINT NOT NULL,
  PRIMARY KEY (tenant, kind)
) {without rowid};

-- The announcement of each build of a worker's program. A row is written together with its kind's.
CREATE TABLE kind_builds (
  tenant {text} NOT NULL, kind {text} NOT NULL, build {text} NOT NULL,
  first_seen BIGINT NOT NULL, last_seen BIGINT NOT NULL, definition {text} NOT NULL,
  PRIMARY KEY (tenant, kind, build)
) {without rowid};

-- The number of a tenant's kinds. Whatever adds or removes one writes this row.
CREATE TABLE kind_quota (
  tenant {text} NOT NULL, kinds BIGINT NOT NULL, version BIGINT NOT NULL,
  PRIMARY KEY (tenant)
) {without rowid};

-- The queues and kinds that a worker polls for, as JSON, and whether it polls for all tenants.
ALTER TABLE workers ADD COLUMN polls {text} NOT NULL DEFAULT '';
ALTER TABLE workers ADD COLUMN any_tenant INTEGER NOT NULL DEFAULT 0;
CREATE INDEX workers_any ON workers (seen_at) WHERE any_tenant = 1;

-- A key with every scope keeps having every scope. Other keys get the new one from a person.
UPDATE keys SET scopes = scopes || ' kinds:admin' WHERE platform = 1
  AND ' ' || scopes || ' ' LIKE '% runs:create %' AND ' ' || scopes || ' ' LIKE '% runs:read %' AND ' ' || scopes || ' ' LIKE '% runs:control %'
  AND ' ' || scopes || ' ' LIKE '% runs:approve %' AND ' ' || scopes || ' ' LIKE '% worker:poll %' AND ' ' || scopes || ' ' LIKE '% worker:report %'
  AND ' ' || scopes || ' ' LIKE '% webhooks:admin %' AND ' ' || scopes || ' ' LIKE '% keys:admin %' AND ' ' || scopes || ' ' LIKE '% audit:read %'
  AND ' ' || scopes || ' ' LIKE '% platform:read %' AND ' ' || scopes || ' ' LIKE '% platform:admin %';
