-- expand 0.2.0: limits that all runs of a queue are under, as JSON, and how many of its runs may be leased at once.
-- A node of 0.1.0 makes queues without any.
ALTER TABLE queues ADD COLUMN limits {text} NOT NULL DEFAULT '';
ALTER TABLE queues ADD COLUMN concurrency BIGINT NOT NULL DEFAULT 0;
