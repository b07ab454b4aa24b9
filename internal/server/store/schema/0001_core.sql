-- Times are microseconds on the store's clock, booleans 0 or 1, JSON and ids text, so that both databases
-- read the same. The words in braces are replaced by the dialect.

CREATE TABLE meta (
  name  {text} PRIMARY KEY,
  value {text} NOT NULL
);

CREATE TABLE runs (
  tenant {text} NOT NULL, id {text} NOT NULL,
  kind {text} NOT NULL, class {text} NOT NULL, queue {text} NOT NULL, priority INTEGER NOT NULL,
  thread_id {text} NOT NULL, parent_id {text} NOT NULL, root_id {text} NOT NULL, journal_key {text} NOT NULL,
  continuation_of {text} NOT NULL, retry_of {text} NOT NULL,
  input {text} NOT NULL, metadata {text} NOT NULL,
  created_at BIGINT NOT NULL, deadline_at BIGINT NOT NULL, max_attempts INTEGER NOT NULL,
  state {text} NOT NULL, version BIGINT NOT NULL, epoch BIGINT NOT NULL,
  attempt INTEGER NOT NULL, strikes INTEGER NOT NULL, deliveries INTEGER NOT NULL,
  turn INTEGER NOT NULL, ready INTEGER NOT NULL, heard INTEGER NOT NULL, resumed INTEGER NOT NULL,
  ready_at BIGINT NOT NULL, granted_at BIGINT NOT NULL, first_grant_at BIGINT NOT NULL,
  lease_until BIGINT NOT NULL, started_at BIGINT NOT NULL, seen_at BIGINT NOT NULL, moved_at BIGINT NOT NULL,
  wait_at BIGINT NOT NULL, finished_at BIGINT NOT NULL, beat_at BIGINT NOT NULL, deferred_at BIGINT NOT NULL,
  worker {text} NOT NULL, activity {text} NOT NULL, said INTEGER NOT NULL,
  result {text} NOT NULL,
  seq BIGINT NOT NULL, inbox_seq BIGINT NOT NULL, inbox_open INTEGER NOT NULL, journal_seq BIGINT NOT NULL,
  waits_open INTEGER NOT NULL, children INTEGER NOT NULL, late INTEGER NOT NULL, watched INTEGER NOT NULL, cascade INTEGER NOT NULL,
  alarm_at BIGINT,
  rest {text} NOT NULL,
  PRIMARY KEY (tenant, id),
  CHECK (state IN ('queued','dispatched','running','suspended','completed','failed','timeout','cancelled')),
  CHECK (state IN ('completed','failed','timeout','cancelled') OR alarm_at IS NOT NULL),
  CHECK (state NOT IN ('completed','failed','timeout','cancelled') OR (alarm_at IS NULL AND ready = 0))
);
CREATE INDEX runs_ready ON runs (tenant, queue, kind, priority DESC, resumed DESC, created_at, id) WHERE ready = 1;
CREATE INDEX runs_alarm ON runs (alarm_at, tenant, id) WHERE alarm_at IS NOT NULL;
CREATE UNIQUE INDEX runs_parent ON runs (tenant, parent_id, journal_key) WHERE parent_id <> '';
CREATE INDEX runs_thread ON runs (tenant, thread_id, turn, created_at, id) WHERE thread_id <> '' AND alarm_at IS NOT NULL;
CREATE INDEX runs_root ON runs (tenant, root_id, id) WHERE root_id <> id;
CREATE INDEX runs_cascade ON runs (tenant, id) WHERE cascade = 1;

CREATE TABLE events (
  tenant {text} NOT NULL, run_id {text} NOT NULL, seq BIGINT NOT NULL,
  type {text} NOT NULL, at BIGINT NOT NULL, attempt INTEGER NOT NULL, epoch BIGINT NOT NULL, data {text} NOT NULL,
  PRIMARY KEY (tenant, run_id, seq)
) {without rowid};

CREATE TABLE journal (
  tenant {text} NOT NULL, run_id {text} NOT NULL, seq BIGINT NOT NULL,
  key {text} NOT NULL, value {text} NOT NULL, digest {text} NOT NULL, at BIGINT NOT NULL,
  PRIMARY KEY (tenant, run_id, seq)
) {without rowid};
CREATE UNIQUE INDEX journal_key ON journal (tenant, run_id, key);

CREATE TABLE commits (
  tenant {text} NOT NULL, run_id {text} NOT NULL, commit_id {text} NOT NULL,
  digest {text} NOT NULL, answer {text} NOT NULL, at BIGINT NOT NULL,
  PRIMARY KEY (tenant, run_id, commit_id)
) {without rowid};

CREATE TABLE waits (
  tenant {text} NOT NULL, run_id {text} NOT NULL, id {text} NOT NULL,
  type {text} NOT NULL, mode {text} NOT NULL, name {text} NOT NULL, targets {text} NOT NULL, on_stall INTEGER NOT NULL,
  state {text} NOT NULL, named INTEGER NOT NULL, opened_at BIGINT NOT NULL, timeout_at BIGINT NOT NULL,
  ended_at BIGINT NOT NULL, ended INTEGER NOT NULL, ok INTEGER NOT NULL,
  PRIMARY KEY (tenant, run_id, id)
) {without rowid};
CREATE INDEX waits_open ON waits (tenant, run_id, id) WHERE state = 'open';

CREATE TABLE inbox (
  tenant {text} NOT NULL, run_id {text} NOT NULL, seq BIGINT NOT NULL,
  type {text} NOT NULL, status {text} NOT NULL, epoch BIGINT NOT NULL, wait_id {text} NOT NULL, name {text} NOT NULL,
  from_run {text} NOT NULL, outcome {text} NOT NULL, data {text} NOT NULL, created_at BIGINT NOT NULL, alarm_at BIGINT, error {text} NOT NULL,
  PRIMARY KEY (tenant, run_id, seq),
  CHECK (status IN ('done','skipped') OR alarm_at IS NOT NULL)
) {without rowid};
CREATE INDEX inbox_open ON inbox (tenant, run_id, seq) WHERE status IN ('pending','processing');
CREATE INDEX inbox_alarm ON inbox (alarm_at, tenant, run_id, seq) WHERE alarm_at IS NOT NULL;

CREATE TABLE threads (
  tenant {text} NOT NULL, id {text} NOT NULL,
  metadata {text} NOT NULL, created_at BIGINT NOT NULL, version BIGINT NOT NULL, active {text} NOT NULL, seq BIGINT NOT NULL,
  PRIMARY KEY (tenant, id)
);

CREATE TABLE messages (
  tenant {text} NOT NULL, thread_id {text} NOT NULL, seq BIGINT NOT NULL,
  role {text} NOT NULL, content {text} NOT NULL, metadata {text} NOT NULL, run_id {text} NOT NULL, at BIGINT NOT NULL,
  PRIMARY KEY (tenant, thread_id, seq)
) {without rowid};

CREATE TABLE gatherings (
  tenant {text} NOT NULL, id {text} NOT NULL,
  kind {text} NOT NULL, mode {text} NOT NULL, on_losers {text} NOT NULL, state {text} NOT NULL, version BIGINT NOT NULL,
  created_at BIGINT NOT NULL, alarm_at BIGINT, ended_at BIGINT NOT NULL,
  total INTEGER NOT NULL, ended INTEGER NOT NULL, ok INTEGER NOT NULL, made {text} NOT NULL, members {text} NOT NULL,
  PRIMARY KEY (tenant, id)
);
CREATE INDEX gatherings_alarm ON gatherings (alarm_at, tenant, id) WHERE alarm_at IS NOT NULL;

CREATE TABLE members (
  tenant {text} NOT NULL, run_id {text} NOT NULL, gathering_id {text} NOT NULL,
  PRIMARY KEY (tenant, run_id, gathering_id)
) {without rowid};

CREATE TABLE late_results (
  tenant {text} NOT NULL, run_id {text} NOT NULL, n INTEGER NOT NULL,
  commit_id {text} NOT NULL, epoch BIGINT NOT NULL, from_run {text} NOT NULL,
  result {text} NOT NULL, summary {text} NOT NULL, state {text} NOT NULL, at BIGINT NOT NULL,
  PRIMARY KEY (tenant, run_id, n)
) {without rowid};
CREATE UNIQUE INDEX late_results_commit ON late_results (tenant, run_id, commit_id);

CREATE TABLE dead_letters (
  tenant {text} NOT NULL, run_id {text} NOT NULL,
  kind {text} NOT NULL, queue {text} NOT NULL, cause {text} NOT NULL, message {text} NOT NULL,
  at BIGINT NOT NULL, expires_at BIGINT NOT NULL, redriven_by {text} NOT NULL,
  PRIMARY KEY (tenant, run_id)
) {without rowid};
CREATE INDEX dead_letters_expiry ON dead_letters (expires_at);

CREATE TABLE idempotency (
  tenant {text} NOT NULL, key {text} NOT NULL,
  digest {text} NOT NULL, ref {text} NOT NULL, expires_at BIGINT NOT NULL,
  PRIMARY KEY (tenant, key)
) {without rowid};
CREATE INDEX idempotency_expiry ON idempotency (expires_at);

CREATE TABLE blobs (
  tenant {text} NOT NULL, hash {text} NOT NULL, size BIGINT NOT NULL, content {text} NOT NULL,
  PRIMARY KEY (tenant, hash)
);
CREATE TABLE blob_refs (
  tenant {text} NOT NULL, owner {text} NOT NULL, hash {text} NOT NULL,
  PRIMARY KEY (tenant, owner, hash)
) {without rowid};
CREATE INDEX blob_refs_hash ON blob_refs (tenant, hash);

CREATE TABLE outbox (
  tenant {text} NOT NULL, run_id {text} NOT NULL, seq BIGINT NOT NULL, target {text} NOT NULL,
  type {text} NOT NULL, state {text} NOT NULL, attempts INTEGER NOT NULL, created_at BIGINT NOT NULL, alarm_at BIGINT,
  PRIMARY KEY (tenant, run_id, seq, target)
) {without rowid};
CREATE INDEX outbox_alarm ON outbox (alarm_at) WHERE alarm_at IS NOT NULL;

CREATE TABLE tenants (
  id {text} PRIMARY KEY, created_at BIGINT NOT NULL, max_live_runs BIGINT NOT NULL
);
CREATE TABLE queues (
  tenant {text} NOT NULL, name {text} NOT NULL, created_at BIGINT NOT NULL,
  PRIMARY KEY (tenant, name)
) {without rowid};

CREATE TABLE workers (
  tenant {text} NOT NULL, id {text} NOT NULL, queues {text} NOT NULL, slots INTEGER NOT NULL,
  seen_at BIGINT NOT NULL, offline INTEGER NOT NULL,
  PRIMARY KEY (tenant, id)
) {without rowid};
CREATE INDEX workers_seen ON workers (seen_at) WHERE offline = 0;

CREATE TABLE waiters (
  tenant {text} NOT NULL, run_id {text} NOT NULL, node {text} NOT NULL, expires_at BIGINT NOT NULL,
  PRIMARY KEY (tenant, run_id, node)
) {without rowid};
CREATE INDEX waiters_expiry ON waiters (expires_at);
