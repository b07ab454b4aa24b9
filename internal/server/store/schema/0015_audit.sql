-- The audit log: who did what to what, and when. An entry is written in the transaction of the change that it tells of. Its id begins
-- with the instant, so that the newest entries are the greatest. tenant is empty for what concerns the platform.

CREATE TABLE audit (
  id {text} PRIMARY KEY, tenant {text} NOT NULL, at BIGINT NOT NULL,
  key_id {text} NOT NULL, key_name {text} NOT NULL, platform INTEGER NOT NULL,
  action {text} NOT NULL, target {text} NOT NULL, detail {text} NOT NULL, remote {text} NOT NULL
) {without rowid};
CREATE INDEX audit_tenant ON audit (tenant, id);

-- Platform routes ask for scopes now. Keys of the platform keep what they could do before.
UPDATE keys SET scopes = scopes || ' platform:read platform:admin' WHERE platform = 1;
-- A key that may make keys may read who made which.
UPDATE keys SET scopes = scopes || ' audit:read' WHERE ' ' || scopes || ' ' LIKE '% keys:admin %';

-- The first start of a store makes a key of the platform. A store that has one has had its first start.
INSERT INTO meta (name, value) SELECT 'bootstrap', id FROM keys WHERE platform = 1 ORDER BY created_at, id LIMIT 1;
