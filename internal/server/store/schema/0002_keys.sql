-- Keys: who may do what. The secret itself is never stored, only its hash.

CREATE TABLE keys (
  id {text} PRIMARY KEY, tenant {text} NOT NULL, name {text} NOT NULL, hash {text} NOT NULL,
  platform INTEGER NOT NULL, scopes {text} NOT NULL,
  created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL, revoked_at BIGINT NOT NULL
);
CREATE INDEX keys_tenant ON keys (tenant, id);
