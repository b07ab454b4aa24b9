-- Lists of runs of a kind, and of a queue. Runs of the default queue are most of all, and found without it.
CREATE INDEX runs_kind ON runs (tenant, kind, id);
CREATE INDEX runs_queue ON runs (tenant, queue, id) WHERE queue <> 'default';
