-- Rows that would only grow are found by the instant from which on nobody needs them, and removed
-- by the retention. Workers: the last sign of life of one that is offline. Keys: when one was
-- revoked, or expired.
CREATE INDEX workers_offline ON workers (seen_at, tenant, id) WHERE offline = 1;
CREATE INDEX keys_revoked ON keys (revoked_at, id) WHERE revoked_at > 0;
CREATE INDEX keys_expired ON keys (expires_at, id) WHERE expires_at > 0;

-- Webhooks: when one was deleted, and of those that came with runs the last deadline of these runs.
-- Zero: it is registered. The runs that are live now may have come with any of them.
ALTER TABLE webhooks ADD COLUMN unused_at BIGINT NOT NULL DEFAULT 0;
UPDATE webhooks SET unused_at = (SELECT coalesce(max(deadline_at), 0) FROM runs WHERE alarm_at IS NOT NULL) WHERE scope = 'run';
UPDATE webhooks SET unused_at = created_at WHERE scope = 'run' AND unused_at < created_at;
UPDATE webhooks SET unused_at = deleted_at WHERE unused_at < deleted_at;
CREATE INDEX webhooks_unused ON webhooks (unused_at, tenant, id) WHERE unused_at > 0;
-- The greatest secret version of the removed ones: an endpoint that is made again for the same URL
-- begins above it.
ALTER TABLE webhook_quota ADD COLUMN removed_version BIGINT NOT NULL DEFAULT 0;

-- Threads in the order of their last activity. The title is bounded; a list makes out that of an
-- older thread from its messages.
ALTER TABLE threads ADD COLUMN updated_at BIGINT NOT NULL DEFAULT 0;
ALTER TABLE threads ADD COLUMN title {text} NOT NULL DEFAULT '';
UPDATE threads SET updated_at = coalesce((SELECT m.at FROM messages m WHERE m.tenant = threads.tenant AND m.thread_id = threads.id AND m.seq = threads.seq), created_at);
CREATE INDEX threads_updated ON threads (tenant, updated_at DESC, id DESC);
