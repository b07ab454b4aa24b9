-- Open inbox items are found by what they are for, one at a time, however many a run has. Each index holds only
-- its own kind of open item, so that an item is in one of them at most.

CREATE INDEX inbox_signals ON inbox (tenant, run_id, name, seq) WHERE status IN ('pending','processing') AND type = 'signal' AND wait_id = '';
CREATE INDEX inbox_answers ON inbox (tenant, run_id, status, epoch, seq) WHERE status IN ('pending','processing') AND wait_id <> '';
CREATE INDEX inbox_continues ON inbox (tenant, run_id, seq) WHERE status IN ('pending','processing') AND type = 'continue';
