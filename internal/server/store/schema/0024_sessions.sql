-- Logins of people. A session is a key that another key has made for a browser: it ends with that key.
ALTER TABLE keys ADD COLUMN parent {text} NOT NULL DEFAULT '';
CREATE INDEX keys_parent ON keys (parent, created_at) WHERE parent <> '';
