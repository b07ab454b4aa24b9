-- What an operation leaves to be done later, and the indexes that keep every look short.

-- Who goes first among the runs that wait on a thread: 0 interrupted the active one, 1 is a continuation, 2 is any other. Runs
-- that wait already keep the order of their age.
ALTER TABLE runs ADD COLUMN place INTEGER NOT NULL DEFAULT 2;
DROP INDEX runs_thread;
CREATE INDEX runs_thread ON runs (tenant, thread_id, turn, place, created_at, id) WHERE thread_id <> '' AND alarm_at IS NOT NULL;

-- A tenant's live runs, by their alarms: a sweep that finds more than it can do goes round the tenants, and live runs are counted here.
CREATE INDEX runs_live ON runs (tenant, alarm_at, id) WHERE alarm_at IS NOT NULL;

-- How many members of a gathering have been dealt with. Those that wait for nobody any more let go of their members.
ALTER TABLE gatherings ADD COLUMN next INTEGER NOT NULL DEFAULT 0;
CREATE INDEX gatherings_due ON gatherings (tenant, alarm_at, id) WHERE alarm_at IS NOT NULL;
DELETE FROM members WHERE NOT EXISTS (SELECT 1 FROM gatherings g WHERE g.tenant = members.tenant AND g.id = members.gathering_id AND g.state = 'open');
