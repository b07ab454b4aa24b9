// Executes leased runs: tasks once, agents from their first line and on their journal.

import { randomUUID } from "node:crypto";
import { begin } from "./agent.js";
import type { CommitBody, Outcome } from "./batch.js";
import { Failure, clean, describe, isPermanent } from "./errors.js";
import type { InboxItem } from "./journal.js";
import type { Json } from "./json.js";
import type { Kind } from "./kinds.js";
import type { Lease } from "./lease.js";
import type { LimitTake, StepTaken } from "./limits.js";
import { Misfit, read } from "./schema.js";
import { Lost, Refused, type CommitAnswer, type Grant, type Session, type ThreadMessage } from "./session.js";
import { Later, Task } from "./task.js";
import { encode, findHuge } from "./value.js";

/** What middleware is told of an execution. */
export interface Executed {
  runId: string;
  kind: string;
  class: "task" | "agent";
  attempt: number;
  tenant: string | undefined;
  /** It ends when the run is asked to stop, or is another worker's by now. */
  signal: AbortSignal;
}

/** A function around each execution. Of an agent whose run is suspended, next never returns. */
export type Middleware = (run: Executed, next: () => Promise<unknown>) => Promise<unknown>;

/** What an execution needs of its worker. */
export interface Executor {
  readonly middleware: readonly Middleware[];
  log(level: "info" | "warn" | "error", text: string): void;
  /** How many milliseconds the clock of the server is ahead of the machine's. */
  ahead(): number;
  /** Hands a run back. */
  handBack(lease: Lease, notBefore: Date): Promise<void>;
}

/** Returns the function of an agent within the middleware. */
export function wrapped(w: Pick<Executor, "middleware">, kind: Kind, grant: Grant, signal: AbortSignal): (ctx: unknown, input: unknown) => Promise<unknown> {
  const agent = kind.agent as (ctx: unknown, input: unknown) => unknown;
  return (ctx, input) => within(w, kind, grant, signal, async () => await agent(ctx, input));
}

function within(w: Pick<Executor, "middleware">, kind: Kind, grant: Grant & { tenant?: string }, signal: AbortSignal, f: () => Promise<unknown>): Promise<unknown> {
  const run: Executed = { runId: grant.run_id, kind: kind.name, class: kind.class, attempt: grant.attempt, tenant: grant.tenant, signal };
  return w.middleware.reduceRight<() => Promise<unknown>>((next, m) => async () => await m(run, next), f)();
}

const failed = (code: string, message: string, retryable = false): Outcome => ({ type: "fail", error: { code, message: clean(message).slice(0, 4000) }, retryable });

/** Executes a task. */
export async function executeTask(w: Executor, kind: Kind, lease: Lease): Promise<void> {
  await lease.confirmed();
  lease.begun = true;
  if (lease.cancelled) return await commitOutcome(w, lease, { type: "cancelled" });
  let input: unknown;
  try {
    input = await inputOf(kind, lease);
  } catch (err) {
    if (!(err instanceof Misfit)) throw err;
    return await commitOutcome(w, lease, failed("invalid_input", `the input does not fit the type of the task: ${err.message}`));
  }
  const task = new Task(lease);
  let outcome: Outcome;
  try {
    const f = kind.task as (input: unknown, task: Task) => unknown;
    const result = await within(w, kind, lease.grant, lease.stop.signal, async () => await f(input, task));
    outcome = { type: "complete", ...(await resultOf(kind, result)) };
  } catch (err) {
    if (err instanceof Later && !lease.cancelled && !lease.lost && !lease.released) {
      await task.end();
      return await w.handBack(lease, err.at);
    }
    outcome = lease.cancelled ? { type: "cancelled" } : failureOf(err);
    w.log("warn", `a task has failed: run ${lease.run} of ${kind.name}: ${describe(err).message}`);
  }
  try {
    await task.end();
  } catch (err) {
    if (!lease.cancelled) outcome = failureOf(err);
  }
  await commitOutcome(w, lease, outcome);
}

async function inputOf(kind: Kind, lease: Lease): Promise<unknown> {
  const json = lease.grant.input ?? null;
  const huge = findHuge(json);
  if (huge !== undefined) throw new Misfit(`${huge} is an integer beyond 2^53, which JavaScript would round`);
  return await read(kind.options.input, json);
}

async function resultOf(kind: Kind, result: unknown): Promise<{ result?: Json }> {
  if (result === undefined) return {};
  const { json } = encode("the result of the task", result);
  try {
    await read(kind.options.output, json);
  } catch (err) {
    throw new Failure("invalid_result", `the result does not fit the type of the task: ${(err as Error).message}`, { permanent: true });
  }
  return { result: json };
}

function failureOf(err: unknown): Outcome {
  if (err instanceof Refused) return failed(err.code, err.detail);
  const { code, message } = describe(err);
  return failed(code, message, !isPermanent(err));
}

/** Commits an outcome. One that the server refuses becomes a failure that says so. */
async function commitOutcome(w: Executor, lease: Lease, outcome: Outcome): Promise<void> {
  try {
    await lease.commit({ outcome });
  } catch (err) {
    if (!(err instanceof Refused)) throw err;
    const instead = err.code === "cancel_requested" ? { type: "cancelled" } : failed("result_refused", `${err.code}: ${err.detail}`);
    w.log("warn", `an outcome is refused: run ${lease.run}: ${err.detail}`);
    await lease.commit({ outcome: instead });
  }
}

/** Executes an agent. */
export async function executeAgent(w: Executor, kind: Kind, lease: Lease): Promise<void> {
  await lease.confirmed();
  lease.begun = true;
  await lease.readOn();
  const grant: Grant = { ...lease.grant, cancel: lease.cancelled };
  const { execution, end } = begin(wrapped(w, kind, grant, lease.stop.signal) as never, kind.options, grant, new LeaseSession(lease, w));
  lease.onCancel = () => execution.requestCancel(false);
  lease.onLost = () => execution.lose();
  if (lease.cancelled) execution.requestCancel(false);
  if (lease.lost || lease.released) execution.lose();
  const how = await end;
  if (how !== "broken") return;
  const why = execution.broken;
  w.log("error", `an execution can't be committed: run ${lease.run} of ${kind.name}: ${String(why)}`);
  if (!lease.lost && !lease.released) await commitOutcome(w, lease, failureOf(why));
}

/** The host of an agent's execution: the lease of its run. */
class LeaseSession implements Session {
  constructor(
    private readonly lease: Lease,
    private readonly w: Executor,
  ) {}

  commit(body: CommitBody): Promise<CommitAnswer> {
    if (body.outcome?.type === "fail") {
      const { code, message } = body.outcome.error as { code: string; message: string };
      this.w.log("warn", `an agent has failed: run ${this.lease.run} of ${this.lease.kind}: ${code}: ${message}`);
    }
    return this.lease.commit(body);
  }

  async inbox(after: number): Promise<InboxItem[]> {
    const out: InboxItem[] = [];
    for (let next: number | undefined = after; next !== undefined; ) {
      const page: Record<string, Json> = await this.lease.get("inbox", { after: next, limit: 1000 });
      out.push(...((page.inbox ?? []) as unknown as InboxItem[]));
      next = (page.inbox_next as number | undefined) || undefined;
    }
    return out;
  }

  async messages(query: { after?: number; before?: number }) {
    const page = await this.lease.get("messages", query);
    const messages = (page.messages ?? []) as unknown as ThreadMessage[];
    const next = (name: string) => (typeof page[name] === "number" ? { [name]: page[name] as number } : {});
    return { messages, ...next("next_after"), ...next("next_before") };
  }

  async activity(child: string): Promise<Json> {
    return await this.lease.get(`children/${encodeURIComponent(child)}/activity`);
  }

  limits(step: string, takes: LimitTake[], again: number): Promise<StepTaken> {
    return this.lease.limits(step, takes, again);
  }

  now(): number {
    return (Date.now() + this.w.ahead()) * 1000;
  }

  uuid(): string {
    return randomUUID();
  }

  async sleep(ms: number): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, ms));
  }

  later(ms: number, f: () => void): void {
    setTimeout(f, ms);
  }

  note(what: { activity?: string; progress?: Json }): void {
    this.lease.note(what);
  }
}

/** Rejects a run whose signature is not valid. */
export async function reject(lease: Lease): Promise<void> {
  await lease.commit({ outcome: { type: "reject", reason: "signature_invalid" } });
}

/** Tells whether an error says that the lease is another's. */
export function isLost(err: unknown): boolean {
  return err instanceof Lost;
}
