// The shapes of the worker protocol, as docs/api.md describes them. Fields that this worker does not
// use are left out. A worker ignores fields that it does not know; the server refuses them.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** A duration with its unit, such as "30s" or "1h15m". */
export type Duration = string;

/** (run_id, epoch) is the right to write to a run. */
export interface Lease {
  run_id: string;
  epoch: number;
}

export interface PollRequest {
  kinds?: string[];
  queues?: string[];
  slots: number;
  wait?: Duration;
  start?: boolean;
  /** A promise: a run with one attempt begins only after an answered start or heartbeat. */
  confirms?: boolean;
  build?: string;
  news?: boolean;
  holding?: Lease[];
}

export interface PollAnswer {
  runs: Grant[];
  news?: boolean;
}

/** A leased run, with what it has recorded and what was sent to it. */
export interface Grant extends Lease {
  /** The first run of a chain of retries, or this run. */
  origin_run_id?: string;
  attempt: number;
  max_attempts: number;
  kind: string;
  input?: Json;
  /** Counts from when the poll was sent. */
  lease_ms: number;
  journal: JournalEntry[];
  journal_next?: number;
  inbox: Item[];
  inbox_next?: number;
  cancel?: boolean;
}

export interface JournalEntry {
  seq: number;
  key: string;
  value: Json;
}

export interface JournalPage {
  journal: JournalEntry[];
  journal_next?: number;
}

export interface InboxPage {
  inbox: Item[];
  inbox_next?: number;
}

export type ItemType =
  | "child" | "wait" | "timer" | "timeout" | "signal" | "callback" | "approval" | "continue" | "late_result";

/** A message to a run. The one that ended a wait has its wait_id. */
export interface Item {
  seq: number;
  type: ItemType;
  wait_id?: string;
  name?: string;
  run_id?: string;
  outcome?: string;
  data?: Json;
  at: string;
}

export interface Heartbeat extends Lease {
  activity?: string;
  cancel_ack?: boolean;
}

export interface HeartbeatAnswer {
  lost: LeaseResult[];
  cancel: LeaseResult[];
}

export interface LeaseResult extends Lease {
  ok?: boolean;
  cancel?: boolean;
  error?: Refusal;
}

export interface Refusal {
  code: string;
  detail?: string;
  field?: string;
}

export interface Spawn {
  key: string;
  kind: string;
  input?: Json;
  timeout?: Duration;
  on_parent_end?: "cancel" | "continue";
}

export interface WaitSpec {
  id: string;
  type: "children" | "signal" | "timer" | "callback";
  mode?: "all" | "all_ok" | "any" | "any_ok";
  keys?: string[];
  name?: string;
  timeout?: Duration | "never";
}

export type Outcome =
  | { type: "complete"; result: Json }
  | { type: "fail"; error: { code: string; message: string }; retryable?: boolean; defect?: boolean }
  | { type: "suspend"; waits?: string[] }
  | { type: "cancelled" };

/** What a commit says, beside its ids. */
export interface CommitPart {
  journal?: { key: string; value: Json }[];
  children?: Spawn[];
  waits?: WaitSpec[];
  ack?: number[];
  cancel_ack?: boolean;
  outcome?: Outcome;
}

export interface Commit extends CommitPart, Lease {
  commit_id: string;
}

export interface CommitAnswer {
  results: CommitResult[];
}

export interface CommitResult {
  run_id: string;
  ok?: boolean;
  state?: string;
  cancel?: boolean;
  children?: { key: string; run_id: string }[];
  error?: Refusal;
}
