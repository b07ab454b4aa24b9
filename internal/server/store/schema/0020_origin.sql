-- A retry has the first run of its chain of retries (origin_id). One that begins with the original's
-- journal has its first epoch, the number of the original's last inbox item, and the number of the
-- last entry that is copied. Its journal_seq says how far the copy is.
ALTER TABLE runs ADD COLUMN origin_id {text} NOT NULL DEFAULT '';
ALTER TABLE runs ADD COLUMN first_epoch BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN inbox_from BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN copy_to BIGINT NOT NULL DEFAULT 0;
