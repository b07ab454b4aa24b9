// Calls of programs: start runs, wait for them, follow them, and answer what they ask.

import { randomUUID } from "node:crypto";
import { clock } from "./clock.js";
import { ClientLists, type CallOptions } from "./lists.js";
import type { Json } from "./json.js";
import { micros, type Duration } from "./names.js";
import { query, wire, wireDuration } from "./options.js";
import { Run, type RunFields } from "./run.js";
import { stream, type Event, type StreamOptions } from "./stream.js";
import { encode } from "./value.js";

/** Options of a start. */
export interface StartOptions extends CallOptions {
  /** A name of the caller's choice: another start under it gives the same run. */
  name?: string;
  class?: "task" | "agent" | "process";
  queue?: string;
  priority?: number;
  /** From now to the deadline. */
  timeout?: Duration;
  runAt?: Date;
  delay?: Duration;
  maxAttempts?: number;
  metadata?: Record<string, string>;
  /** Limits that the run is under, its key there, and what it takes of their rates. */
  limits?: string[];
  limitKey?: string;
  units?: number;
  threadId?: string;
  messages?: { role: string; content: unknown; metadata?: Record<string, string> }[];
  multitaskStrategy?: string;
  onDisconnect?: "continue" | "cancel";
  foreground?: boolean;
  webhook?: string;
  webhookEvents?: string[];
  /** The form of what the webhook receives: Perdure's own, or that of a door. */
  webhookFormat?: "perdure" | "openai" | "langgraph";
  unique?: { key: string; while?: "live" | "waiting" | "for"; for?: Duration; onConflict?: string };
  debounce?: { key: string; for: Duration; max: Duration };
}

/** The longest wait of one call. */
const longestWait = 55 * 60_000;

function milliseconds(d: Duration): number {
  return Math.max(0, micros(d) / 1000);
}

function submission(kind: string, input: unknown, o: StartOptions): Record<string, Json> {
  const { idempotencyKey: _, ...options } = o;
  return wire({ kind, ...(input === undefined ? {} : { input }), ...options });
}

/**
 * Calls a server. Calls that change something have an idempotency key, a new one unless you give one,
 * and are repeated under it while nobody answers.
 */
export class Client extends ClientLists {
  // ---- runs

  /** Starts a run, and returns at once. */
  async start<R = Json>(kind: string, input?: unknown, options: StartOptions = {}): Promise<Run<R>> {
    return new Run<R>(await this.send<RunFields>("POST", "/api/v1/runs", submission(kind, input, options), options));
  }

  /** Starts a run and waits for it. One that has not ended in time is deferred: it goes on. */
  async run<R = Json>(kind: string, input?: unknown, options: StartOptions & { wait?: Duration } = {}): Promise<Run<R>> {
    const { wait = "10m", ...o } = options;
    const begun = await this.start<R>(kind, input, { foreground: true, ...o });
    return await this.join<R>(begun.id, wait);
  }

  /** Starts a run, waits for it, and returns its result. A failure is thrown, and RunNotEnded of a run that goes on. */
  async call<R = Json>(kind: string, input?: unknown, options: StartOptions & { wait?: Duration } = {}): Promise<R> {
    return (await this.run<R>(kind, input, options)).result();
  }

  /** Starts up to 1 000 runs, each accepted or refused by itself. */
  async startMany(runs: readonly ({ kind: string; input?: unknown } & StartOptions)[], options: CallOptions = {}): Promise<StartResult[]> {
    const body = runs.map(({ kind, input, idempotencyKey, ...o }) => ({ ...submission(kind, input, o), ...(idempotencyKey ? { idempotency_key: idempotencyKey } : {}) }));
    return (await this.send<{ results: StartResult[] }>("POST", "/api/v1/runs/batch", { runs: body }, options)).results;
  }

  async get<R = Json>(run: string): Promise<Run<R>> {
    return new Run<R>(await this.read<RunFields>(runPath(run)));
  }

  async getByName<R = Json>(name: string): Promise<Run<R>> {
    return new Run<R>(await this.read<RunFields>(`/api/v1/runs/by-name/${encodeURIComponent(name)}`));
  }

  /** Gives a run one more name. It stands for the run from a line of its log on. */
  async nameRun(run: string, name: string, options: { fromSeq?: number } & CallOptions = {}): Promise<Record<string, Json>> {
    const { idempotencyKey: _, ...o } = options;
    return await this.send("PUT", `${runPath(run)}/names/${encodeURIComponent(name)}`, wire(o), options);
  }

  /** Waits for a run. One that has not ended in time is deferred: it goes on. Restarts of the server don't matter. */
  async join<R = Json>(run: string, wait: Duration = "10m", options: { signal?: AbortSignal } = {}): Promise<Run<R>> {
    const until = clock.now() + milliseconds(wait);
    for (;;) {
      const left = Math.max(0, Math.min(until - clock.now(), longestWait));
      const answer = await this.transport.call("GET", `${runPath(run)}/join`, { query: { timeout: wireDuration(Math.ceil(left)) }, wait: left, signal: options.signal });
      const found = new Run<R>(answer.json() as unknown as RunFields);
      if (found.ended || clock.now() >= until) return found;
      await clock.sleep(50, options.signal); // the server shuts down, and another one answers
    }
  }

  /** Gives the log of a run as it is written, until its end, through restarts of the server and all addresses. */
  stream(run: string, options: StreamOptions = {}): AsyncGenerator<Event, void, void> {
    return stream(this.transport, `${runPath(run)}/stream`, options);
  }

  /** Gives the log of a run by polling, until its end. */
  async *events(run: string, options: { after?: number; signal?: AbortSignal } = {}): AsyncGenerator<Event, void, void> {
    for (let after = options.after ?? 0; ; ) {
      const answer = await this.transport.call("GET", `${runPath(run)}/events`, { query: { after, wait: "20s" }, wait: 20_000, signal: options.signal });
      const page = answer.json() as unknown as { events: Event[]; next_after: number; ended?: boolean; gap?: { from: number; to: number } };
      if (page.gap) yield { type: "stream:gap", seq: page.gap.to, ...page.gap };
      yield* page.events;
      after = page.next_after;
      if (page.ended) return;
    }
  }

  /** Asks a run to stop. With wait the answer comes when it has ended, or when that time has passed. */
  async cancel<R = Json>(run: string, options: { reason?: string; wait?: Duration } & CallOptions = {}): Promise<Run<R>> {
    const { wait, reason } = options;
    const body = reason === undefined ? {} : { reason };
    return new Run<R>(await this.send<RunFields>("POST", `${runPath(run)}/cancel`, body, { ...options, ...(wait === undefined ? {} : { query: { wait: wireDuration(wait) }, wait: milliseconds(wait) }) }));
  }

  /** Makes a new run of an ended one: with its journal, from the start, or from an entry. */
  async retry<R = Json>(run: string, options: { from?: string } & CallOptions = {}): Promise<Run<R>> {
    return new Run<R>(await this.send<RunFields>("POST", `${runPath(run)}/retry`, options.from === undefined ? {} : { from: options.from }, options));
  }

  /** Stops waiting for a run, which goes on. */
  async defer<R = Json>(run: string): Promise<Run<R>> {
    return new Run<R>(await this.send<RunFields>("POST", `${runPath(run)}/defer`, {}, {}));
  }

  /** Deletes an ended run and all that belongs to it. */
  async delete(run: string): Promise<void> {
    await this.send("DELETE", runPath(run), undefined, {});
  }

  /** Sends a signal. A run takes it when it waits for it, also later. */
  async signal(run: string, name: string, data: unknown = null, options: CallOptions = {}): Promise<Record<string, Json>> {
    return await this.send("POST", `${runPath(run)}/signals/${encodeURIComponent(name)}`, { data: encode("the data of the signal", data).json }, options);
  }

  /** What a run is doing. */
  activity(run: string): Promise<Record<string, Json>> {
    return this.read(`${runPath(run)}/activity`);
  }

  /** What an ended run hands over: its result, or what it left behind. */
  deliverable(run: string): Promise<Record<string, Json>> {
    return this.read(`${runPath(run)}/deliverable`);
  }

  /** The runs of a run's tree. */
  async *tree(run: string): AsyncGenerator<Run, void, void> {
    for await (const r of this.pages<RunFields>(`${runPath(run)}/tree`, "runs", {})) yield new Run(r);
  }

  /** Gives runs, the newest first. */
  async *list(filter: RunFilter = {}): AsyncGenerator<Run, void, void> {
    for await (const r of this.pages<RunFields>("/api/v1/runs", "runs", query(filter))) yield new Run(r);
  }

  async views(run: string): Promise<Record<string, Json>[]> {
    return (await this.read<{ views: Record<string, Json>[] }>(`${runPath(run)}/views`)).views;
  }

  /** The latest value of a view that a run has published. */
  view(run: string, name: string): Promise<{ name: string; value: Json; version: number }> {
    return this.read(`${runPath(run)}/views/${encodeURIComponent(name)}`);
  }

  async artifacts(run: string): Promise<Artifact[]> {
    return (await this.read<{ artifacts: Artifact[] }>(`${runPath(run)}/artifacts`)).artifacts;
  }

  /** The bytes of an artifact. */
  async artifact(run: string, name: string): Promise<Uint8Array> {
    const answer = await this.transport.call("GET", `${runPath(run)}/artifacts/${encodeURIComponent(name)}`, { wait: 3600_000 });
    return new Uint8Array(answer.bytes);
  }

  // ---- people

  approvals(filter: { runId?: string; state?: string; limit?: number } = {}): AsyncGenerator<Approval, void, void> {
    return this.pages<Approval>("/api/v1/approvals", "approvals", query(filter));
  }

  approval(id: string): Promise<Approval> {
    return this.read(`/api/v1/approvals/${encodeURIComponent(id)}`);
  }

  /** Decides about an action. actionHash is that of the action that was looked at. */
  async decide(id: string, decision: "approve" | "reject", options: { actionHash: string; comment?: string; answer?: unknown }): Promise<Approval> {
    return await this.send("POST", `/api/v1/approvals/${encodeURIComponent(id)}`, wire({ decision, ...options }), { idempotencyKey: false });
  }

  /** Answers a callback with a result, or with an error. The same answer may be given again. */
  async answerCallback(token: string, answer: { result: unknown } | { error: { code: string; message: string } }): Promise<Record<string, Json>> {
    const body = "error" in answer ? { error: answer.error } : { result: encode("the answer of the callback", answer.result).json };
    return await this.send("POST", `/api/v1/callbacks/${encodeURIComponent(token)}`, body, { idempotencyKey: false });
  }

  /** Says something to an agent. With wait the answer is there if it came in time. */
  async chat(message: unknown, options: { threadId?: string; kind?: string; wait?: Duration; timeout?: Duration; foreground?: boolean } & CallOptions = {}): Promise<ChatAnswer> {
    const { idempotencyKey: _, ...o } = options;
    return await this.send("POST", "/api/v1/chat", wire({ message, ...o }), { ...options, wait: o.wait === undefined ? 0 : milliseconds(o.wait) });
  }

  // ---- groups

  async createGroup(runIds: readonly string[], options: { mode?: "all" | "all_ok" | "any" | "any_ok"; timeout?: Duration; onLosers?: "continue" | "cancel" } & CallOptions = {}): Promise<Group> {
    const { idempotencyKey: _, ...o } = options;
    return await this.send("POST", "/api/v1/groups", wire({ runIds: [...runIds], ...o }), options);
  }

  group(id: string): Promise<Group> {
    return this.read(`/api/v1/groups/${encodeURIComponent(id)}`);
  }

  /** Gives groups without their runs, newest first. "ended" are those that are not open. */
  groups(filter: { state?: "open" | "satisfied" | "timed_out" | "ended"; limit?: number } = {}): AsyncGenerator<Omit<Group, "run_ids" | "ended_runs">, void, void> {
    return this.pages("/api/v1/groups", "groups", query(filter));
  }

  /** Waits for a group. One that is open after that time goes on. */
  async joinGroup(id: string, wait: Duration = "10m"): Promise<Group> {
    const until = clock.now() + milliseconds(wait);
    for (;;) {
      const left = Math.max(0, Math.min(until - clock.now(), longestWait));
      const answer = await this.transport.call("GET", `/api/v1/groups/${encodeURIComponent(id)}/join`, { query: { timeout: wireDuration(Math.ceil(left)) }, wait: left });
      const group = answer.json() as unknown as Group;
      if (group.state !== "open" || clock.now() >= until) return group;
      await clock.sleep(50);
    }
  }
}

function runPath(run: string): string {
  return `/api/v1/runs/${encodeURIComponent(run)}`;
}

/** Returns a new idempotency key, for a call that a program may repeat by itself. */
export function idempotencyKey(): string {
  return randomUUID();
}

/** The result for one run of startMany. */
export interface StartResult {
  index: number;
  run?: { run_id: string; status: string; state: string; thread_id?: string };
  duplicate?: boolean;
  error?: { code: string; detail: string; field?: string };
}

/** Filters of a list of runs. */
export interface RunFilter {
  kind?: string;
  queue?: string;
  state?: string | string[];
  status?: string | string[];
  threadId?: string;
  createdAfter?: Date;
  createdBefore?: Date;
  metadata?: Record<string, string>;
  limit?: number;
}

/** A file that a run has left beside its result. */
export interface Artifact {
  name: string;
  size: number;
  sha256: string;
  content_type: string;
  [field: string]: Json | undefined;
}

/** What a run wants to be approved. */
export interface Approval {
  approval_id: string;
  run_id: string;
  action_hash: string;
  [field: string]: Json | undefined;
}

/** Which run answers a message, and the answer if it is there. */
export interface ChatAnswer {
  thread_id: string;
  run_id: string;
  started: boolean;
  status: string;
  state: string;
  answer?: Json;
  error?: { code: string; message: string };
  last_seq: number;
}

/** Runs that can be waited for together. */
export interface Group {
  group_id: string;
  state: string;
  total: number;
  ended: number;
  completed: number;
  run_ids: string[];
  [field: string]: Json | undefined;
}
