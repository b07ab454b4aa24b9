-- Artifacts: what runs leave beside their results. Bytes are stored once per tenant, by their hash; the chunks are those of the upload
-- that brought them first. uses rises with each that brings them again, and guards their removal.

CREATE TABLE artifacts (
  tenant {text} NOT NULL, run_id {text} NOT NULL, name {text} NOT NULL,
  hash {text} NOT NULL, size BIGINT NOT NULL, media {text} NOT NULL, at BIGINT NOT NULL, attempt INTEGER NOT NULL,
  PRIMARY KEY (tenant, run_id, name)
) {without rowid};
CREATE INDEX artifacts_hash ON artifacts (tenant, hash);

CREATE TABLE contents (
  tenant {text} NOT NULL, hash {text} NOT NULL, size BIGINT NOT NULL, upload {text} NOT NULL, uses BIGINT NOT NULL,
  PRIMARY KEY (tenant, hash)
) {without rowid};

CREATE TABLE chunks (
  tenant {text} NOT NULL, upload {text} NOT NULL, n BIGINT NOT NULL, data {bytes} NOT NULL,
  PRIMARY KEY (tenant, upload, n)
);

-- Removals: what is on its way out, and from when on. A run or a thread is gone with its row, and what belongs to it goes a batch
-- at a time. An upload is one from its beginning, and none any more when it has become somebody's content.
CREATE TABLE removals (
  tenant {text} NOT NULL, kind {text} NOT NULL, id {text} NOT NULL, due_at BIGINT NOT NULL, lines BIGINT NOT NULL,
  PRIMARY KEY (tenant, kind, id),
  CHECK (kind IN ('run','thread','upload'))
) {without rowid};
CREATE INDEX removals_due ON removals (due_at);

-- By these it is found out whether somebody still refers to a run, or to a thread.
CREATE INDEX runs_retry ON runs (tenant, retry_of) WHERE retry_of <> '';
CREATE INDEX gatherings_open ON gatherings (tenant, id) WHERE state = 'open';
