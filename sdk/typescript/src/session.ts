// The host of an execution: the worker in production, a story in tests.

import type { CommitBody } from "./batch.js";
import type { Entry, InboxItem } from "./journal.js";
import type { Json } from "./json.js";
import type { LimitTake, StepTaken } from "./limits.js";

/** A lease of a run of an agent, with all that an execution needs to begin. */
export interface Grant {
  run_id: string;
  origin_run_id: string;
  epoch: number;
  /** Of a retry that begins with a journal: the first epoch of this run. */
  first_epoch?: number;
  attempt: number;
  kind: string;
  input?: Json;
  thread_id?: string;
  cancel?: boolean;
  cancel_reason?: string;
  journal: Entry[];
  inbox: InboxItem[];
}

/** A message of a thread. */
export interface ThreadMessage {
  seq: number;
  role: string;
  /** The run that has appended it. */
  run_id?: string;
  content: Json;
  metadata?: Record<string, Json>;
}

/** The answer to a commit. */
export interface CommitAnswer {
  state?: string;
  cancel?: boolean;
  children?: { key: string; run_id: string }[];
  callbacks?: { wait_id: string; token: string }[];
}

/** Thrown by commit if the server does not take it. The same commit would be refused again. */
export class Refused extends Error {
  constructor(
    readonly code: string,
    readonly detail: string,
    readonly field = "",
  ) {
    super(detail);
  }
}

/** Thrown by a session if the run is no longer the worker's. Nothing is sent for it any more. */
export class Lost extends Error {}

/** The host of an execution. */
export interface Session {
  /** Of a check: is told that something would begin that is not recorded. The branch ends there. */
  readonly beyond?: () => void;
  commit(body: CommitBody): Promise<CommitAnswer>;
  /** Items of the inbox beyond a number, as far as they have come. */
  inbox(after: number): Promise<InboxItem[]>;
  messages(query: { after?: number; before?: number }): Promise<{ messages: ThreadMessage[]; next_after?: number; next_before?: number }>;
  /** Takes what a step needs of its limits. A further try of its function has a higher number than 0. */
  limits(step: string, takes: LimitTake[], again: number): Promise<StepTaken>;
  /** What a child is doing. */
  activity(child: string): Promise<Json>;
  /** The time in microseconds since 1970. */
  now(): number;
  uuid(): string;
  sleep(ms: number): Promise<void>;
  /** Calls a function later, unless the execution has ended. */
  later(ms: number, f: () => void): void;
  /** Tells the server with the next heartbeat what is being done. */
  note(activity: { activity?: string; progress?: Json }): void;
}
