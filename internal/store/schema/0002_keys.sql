-- Keys: who may do what. The secret itself is never stored, only its hash.

CREATE TABLE keys (
  id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, hash TEXT NOT NULL,
  platform INTEGER NOT NULL, scopes TEXT NOT NULL,
  created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, revoked_at BIGINT NOT NULL
);
CREATE INDEX keys_tenant ON keys (tenant, id);
