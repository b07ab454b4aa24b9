-- expand 0.2.0: the runs of a thread, those that have ended too, in the order of their ids.
CREATE INDEX {concurrently} runs_on_thread ON runs (tenant, thread_id, id) WHERE thread_id <> '';
