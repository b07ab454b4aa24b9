// Runs as the server tells them.

import type { Json } from "./json.js";

/** The state of a run: where the work is. */
export type State = "queued" | "dispatched" | "running" | "suspended" | "completed" | "failed" | "cancelled" | "timeout";

/** A run. Its fields are those of the API (docs/api.md). */
export interface RunFields {
  run_id: string;
  kind: string;
  class: string;
  queue: string;
  /** The state, or "deferred" while the run is live and nobody waits for it. */
  status: string;
  state: State;
  epoch: number;
  attempt: number;
  max_attempts: number;
  thread_id?: string;
  input?: Json;
  result?: Json;
  error?: { code: string; message: string };
  activity?: string;
  progress?: Json;
  metadata?: Record<string, string>;
  parent_run_id?: string;
  root_run_id?: string;
  created_at?: string;
  deadline_at?: string;
  [field: string]: unknown;
}

const ends = new Set(["completed", "failed", "cancelled", "timeout"]);

/** A run, with what can be asked of it. */
export class Run<R = Json> {
  constructor(
    /** All that the server tells of the run. */
    readonly fields: RunFields,
  ) {}

  get id(): string {
    return this.fields.run_id;
  }
  get state(): State {
    return this.fields.state;
  }
  get status(): string {
    return this.fields.status;
  }
  /** Whether it has ended, in any way. */
  get ended(): boolean {
    return ends.has(this.state);
  }
  /** Whether it goes on, and nobody waits for it any more. It is no error: come back to it. */
  get deferred(): boolean {
    return !this.ended && this.status === "deferred";
  }
  get error(): { code: string; message: string } | undefined {
    return this.fields.error;
  }

  /** The result of a run that has completed. The failure of another one is thrown, and RunNotEnded of one that goes on. */
  result(): R {
    if (this.state === "completed") return (this.fields.result ?? null) as R;
    if (this.ended) throw new RunFailed(this as Run<unknown>);
    throw new RunNotEnded(this as Run<unknown>);
  }
}

/** A run has ended without a result. */
export class RunFailed extends Error {
  readonly code: string;
  constructor(readonly run: Run<unknown>) {
    super(`run ${run.id} is ${run.state}: ${run.error?.code ?? run.state}: ${run.error?.message ?? ""}`);
    this.name = "RunFailed";
    this.code = run.error?.code ?? run.state;
  }
}

/** A run goes on, and has no result yet. */
export class RunNotEnded extends Error {
  readonly code = "deferred";
  constructor(readonly run: Run<unknown>) {
    super(`run ${run.id} is ${run.state}, and goes on`);
    this.name = "RunNotEnded";
  }
}
