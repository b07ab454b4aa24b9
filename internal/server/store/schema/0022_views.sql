-- Waits for messages. taken_seq is up to where the waits of a thread's active run have looked, and
-- listening tells whether it has opened one. A run that is active now takes the messages that come
-- from now on.
ALTER TABLE threads ADD COLUMN taken_seq BIGINT NOT NULL DEFAULT 0;
ALTER TABLE threads ADD COLUMN listening INTEGER NOT NULL DEFAULT 0;
UPDATE threads SET taken_seq = seq WHERE active <> '';
CREATE INDEX messages_user ON messages (tenant, thread_id, seq) WHERE role = 'user' AND run_id = '';

-- The number of a message in its thread, for inbox items of that type; and the items that a closed
-- wait has given back.
ALTER TABLE inbox ADD COLUMN message_seq BIGINT NOT NULL DEFAULT 0;
CREATE INDEX inbox_messages ON inbox (tenant, run_id, seq) WHERE status IN ('pending','processing') AND type = 'message' AND wait_id = '';

-- The inbox item that tells of a wait's end. Zero: the wait is open or closed, or ended before this
-- column was there.
ALTER TABLE waits ADD COLUMN item BIGINT NOT NULL DEFAULT 0;

-- Views: named values that runs publish. Only the latest value of each is kept, in its row: it is
-- not stored by its hash, because every value that was ever published would stay until the run goes.
CREATE TABLE run_views (
  tenant {text} NOT NULL, run_id {text} NOT NULL, name {text} NOT NULL,
  value {text} NOT NULL, size BIGINT NOT NULL, version BIGINT NOT NULL, at BIGINT NOT NULL,
  PRIMARY KEY (tenant, run_id, name)
);

-- The earlier end of an open approval: its wait's timeout, or the deadline of its run.
ALTER TABLE approvals ADD COLUMN expires_by {text} NOT NULL DEFAULT '';
