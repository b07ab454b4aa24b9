-- expand 0.2.0: runs by their position at limits, each line in claim order.
CREATE INDEX {concurrently} runs_limited ON runs (tenant, limited_at, queue, kind, priority DESC, created_at, id) WHERE limited_at <> '';
