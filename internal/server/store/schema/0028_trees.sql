-- Threads that were made for children, by the root of their tree: they go with it. The row without a thread stands
-- for a root that was removed, and says when the next of its threads are looked at.
CREATE TABLE tree_threads (
  tenant {text} NOT NULL, root_id {text} NOT NULL, thread_id {text} NOT NULL, due_at BIGINT NOT NULL,
  round BIGINT NOT NULL, aged INTEGER NOT NULL,
  PRIMARY KEY (tenant, root_id, thread_id)
) {without rowid};
CREATE INDEX tree_threads_due ON tree_threads (due_at, tenant, root_id) WHERE due_at > 0;
