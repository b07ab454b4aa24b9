// Steps: functions that are executed once, and whose results are in the journal.

import { setTimeout as delay } from "node:timers/promises";
import type { Branch } from "./branch.js";
import { Cancelled, Failure, StepError, describe, isPermanent } from "./errors.js";
import { follows, scopes, type Execution } from "./execution.js";
import type { StepEntry } from "./journal.js";
import { admit, admitAgain, closureOf, takesOf, type Crew, type LimitTake, type StepLimit } from "./limits.js";
import { digest, type Json } from "./json.js";
import { micros, type Duration } from "./names.js";
import { Lost } from "./session.js";
import { Misfit, fieldsLost, read, type Schema } from "./schema.js";
import { decode, encode, findHuge, type Jsonified } from "./value.js";
import { clean } from "./errors.js";

/** How often a failing function is called again within one execution. */
export interface Retry {
  /** How often it is called in all. */
  attempts: number;
  /** The first pause; each further one is twice as long. A second unless given. */
  first?: Duration;
  /** The longest pause. A minute unless given. */
  max?: Duration;
  /** Codes of errors that are not tried again. */
  except?: string[];
}

/** Options of a step. */
export interface StepOptions<T = unknown> {
  /** What the step is about. A replay that asks for another one is held. */
  for?: unknown;
  /** How one try may take at most. */
  timeout?: Duration;
  /** How many times in all it is tried, or how. */
  retries?: number | Retry;
  /** Undoes the step if its saga fails. */
  undo?: (result: Jsonified<T>, s: StepContext) => unknown;
  /** What the step takes of limits before its function is called, up to four. Its entry gives the slots back. */
  limit?: StepLimit | readonly StepLimit[];
  /** The type of the result. A recorded value that it does not read holds the run. */
  schema?: Schema;
}

/** What a step's function is given. */
export class StepContext {
  private said = 0;
  constructor(
    private readonly execution: Execution,
    /** The key of the step, such as "charge#1". */
    readonly key: string,
    /** The number of the try, from 1. */
    readonly attempt: number,
    /** It ends with the run's request to stop, and with the step's time. */
    readonly signal: AbortSignal,
  ) {}

  /** The key to give to the systems that the step calls: it is the same if the step is executed again. */
  get idempotencyKey(): string {
    return `${this.execution.grant.origin_run_id}/${this.key}`;
  }

  /** Streams text, as it is made. */
  delta(text: string): void {
    this.tell(text, {});
  }

  /** Streams what a model thinks before it answers. It is no part of the run's text. */
  reasoning(text: string): void {
    this.tell(text, { channel: "reasoning" });
  }

  private tell(text: string, on: { channel?: string }): void {
    this.said += 1;
    const x = this.execution;
    x.batch.events.push({ type: "llm:delta", data: { text: clean(text), step: this.key, try: x.grant.epoch * 1000 + this.attempt, ...on } });
    x.flushSoon();
  }

  /** Writes a line of the run's log. Its type begins with "x:". */
  emit(type: string, data?: unknown): void {
    const x = this.execution;
    x.batch.events.push({ type: type.startsWith("x:") ? type : `x:${type}`, ...(data === undefined ? {} : { data: encode(`the line ${type}`, data).json }) });
    x.flushSoon();
  }

  /**
   * Closes a limit, or a key of it, for a time: nothing passes it meanwhile, on whatever worker. Call it when another
   * system refuses calls until then, with a 429 for example. It goes with the next commit. One that holds longer stays.
   */
  closeLimit(name: string, span: Duration, options: { key?: string; reason?: string } = {}): void {
    this.execution.batch.limits.push(closureOf(name, span, options));
    this.execution.flushSoon();
  }

  /**
   * Tells whether a user has appended messages to the run's thread after the one with a number. It is not recorded:
   * return what the agent decides by.
   */
  async unread(after: number): Promise<boolean> {
    const { grant, session } = this.execution;
    if (!grant.thread_id) return false;
    for (let at = after; ; ) {
      const page = await session.messages({ after: at });
      if (page.messages.some((m) => m.role === "user" && m.run_id !== grant.run_id)) return true;
      if (page.messages.length === 0 || page.next_after === undefined || page.next_after <= at) return false;
      at = page.next_after;
    }
  }

  /** Tells how far the step is. */
  progress(v: unknown): void {
    this.execution.session.note({ progress: encode("the progress", v).json });
  }

  /** Tells what the step does, with the next heartbeat. */
  heartbeat(activity: string): void {
    this.execution.session.note({ activity: clean(activity).slice(0, 4000) });
  }
}

/** Executes a step, or returns what the journal has of it. */
export async function step<T>(x: Execution, b: Branch, name: string, f: (s: StepContext) => T | Promise<T>, o: StepOptions<T> = {}): Promise<Jsonified<T>> {
  return await x.call(b, `the step ${JSON.stringify(name)}`, async () => {
    x.checkName("the step", name, b);
    x.checkFunction(`the step ${name}`, f);
    checkOptions(x, b, `the step ${name}`, o);
    x.goOn(b);
    const key = b.key("step", name);
    const of = o.for === undefined ? undefined : digestFor(x, key, o.for);
    const out = await stepOf(x, b, key, of, false, f, o);
    noteUndo(x, b, key, out, o);
    return out as Jsonified<T>;
  });
}

/** Looks whether options can be right, before anything is done. */
export function checkOptions(
  x: Execution,
  b: Branch,
  what: string,
  o: Pick<StepOptions<never>, "undo" | "retries" | "timeout">,
): void {
  if (o.undo !== undefined) {
    x.checkFunction(`the undo of ${what}`, o.undo);
    if (!b.outermost()) throw x.misuse(`${what} has an undo and is in no saga: nothing would call it`);
  }
  const attempts = typeof o.retries === "object" ? o.retries.attempts : (o.retries ?? 1);
  if (!Number.isInteger(attempts) || attempts < 0)
    throw x.misuse(`${what}: ${String(attempts)} attempts; they are a whole number, not negative`);
  const spans = [o.timeout, ...(typeof o.retries === "object" ? [o.retries.first, o.retries.max] : [])];
  for (const span of spans) {
    let us = 0;
    try {
      us = span === undefined ? 0 : micros(span);
    } catch (err) {
      throw x.misuse(`${what}: ${(err as Error).message}`);
    }
    if (us < 0) throw x.misuse(`${what}: the time ${String(span)} is negative`);
  }
}

function digestFor(x: Execution, key: string, about: unknown): string {
  try {
    return digest(exact(about));
  } catch (err) {
    throw x.misuse(`the step ${key}: what it is about (for) can't be written as JSON: ${(err as Error).message}`);
  }
}

/** Turns a value into JSON as print does, and keeps bigints. */
function exact(v: unknown): Json {
  if (v === undefined || typeof v === "function" || typeof v === "symbol") throw new TypeError(`a ${typeof v} is no JSON`);
  if (typeof v === "bigint" || v === null || typeof v !== "object") return v as Json;
  const toJson = (v as { toJSON?: unknown }).toJSON;
  if (v instanceof Uint8Array) return Buffer.from(v.buffer, v.byteOffset, v.byteLength).toString("base64");
  if (typeof toJson === "function") return exact(toJson.call(v, ""));
  if (Array.isArray(v)) return v.map(exact);
  return Object.fromEntries(Object.entries(v).filter(([, m]) => m !== undefined).map(([n, m]) => [n, exact(m)]));
}

/** Notes that a step can be undone. */
export function noteUndo<T>(x: Execution, b: Branch, key: string, out: unknown, o: StepOptions<T>): void {
  const saga = b.outermost();
  if (!o.undo || !saga) return;
  const undo = o.undo;
  const call = async () => {
    const s = new StepContext(x, `_undone:${key}`, 1, new AbortController().signal);
    await scopes.run({ execution: x, step: `_undone:${key}` }, async () => undo(out as Jsonified<T>, s));
  };
  saga.done.push({ key, undo: call });
}

/** Executes a function as the step with this key. */
export async function stepOf<T>(
  x: Execution,
  b: Branch,
  key: string,
  of: string | undefined,
  aside: boolean,
  f: (s: StepContext) => T | Promise<T>,
  o: StepOptions<T>,
  crew?: Crew,
): Promise<unknown> {
  const recorded = x.facts.entries.get(key) as StepEntry | undefined;
  if (recorded !== undefined) return await replay(x, b, key, of, recorded, o, aside);
  const takes = takesOf(x, key, o.limit);
  x.begin(b, `${key}: the journal does not have this step`);
  await x.flush();
  if (x.cancelled) throw new Cancelled();
  await x.beyond(b);
  const entry: StepEntry = { ...(aside ? { aside: true } : {}), ...(of === undefined ? {} : { of }) };
  let got: { json: Json; as: string[] };
  let began = false;
  try {
    await admit(x, b, key, takes, crew);
    began = true;
    const v = await attempt(x, key, f, o, takes);
    if (x.defect) throw x.defect;
    got = encode(`step ${key}: its result`, v);
  } catch (err) {
    if (err instanceof Lost || (err instanceof Cancelled && !began)) throw err;
    return await failStep(x, b, key, entry, err, aside);
  }
  const written: StepEntry = { ...entry, ...(got.as.length > 0 ? { as: got.as } : {}), ok: got.json };
  x.batch.entries.push({ key, value: written as unknown as Json });
  if (o.undo && b.saga()) {
    x.batch.entries.push({ key: `_undo:${key}`, value: true });
    x.made.set(key, 1e9 + x.made.size);
  }
  await x.flush();
  if (!aside) b.point = `step ${key}`;
  return await readBack(x, key, written, o);
}

async function failStep(x: Execution, b: Branch, key: string, entry: StepEntry, err: unknown, aside: boolean): Promise<never> {
  if (x.defect) throw x.defect;
  if (!aside) b.point = `step ${key}!`;
  const { code, message } = describe(err);
  const record = { key, value: { ...entry, error: { code, message } } as unknown as Json };
  const lasting = isPermanent(err) && !(x.cancelled && err instanceof Cancelled);
  const failure = new StepError(code, message, key, { permanent: lasting, cause: err });
  if (lasting) {
    x.batch.entries.push(record);
    await x.flush();
    throw follows(failure, () => key);
  }
  let fact = false;
  const became = () => {
    fact = true;
    (failure as { permanent: boolean }).permanent = true;
  };
  b.pending.push({ entry: record, became });
  throw follows(failure, () => (fact ? key : undefined));
}

async function attempt<T>(
  x: Execution,
  key: string,
  f: (s: StepContext) => T | Promise<T>,
  o: StepOptions<T>,
  takes: LimitTake[],
): Promise<T> {
  const retry: Retry = typeof o.retries === "number" ? { attempts: o.retries } : (o.retries ?? { attempts: 1 });
  let pause = micros(retry.first ?? "1s") / 1000;
  for (let n = 1; ; n++) {
    try {
      return await once(x, key, n, f, o);
    } catch (err) {
      const { code, message } = describe(err);
      if (n >= retry.attempts || isPermanent(err) || x.cancelled || x.defect || retry.except?.includes(code)) throw err;
      x.batch.events.push({ type: "x:step_retried", data: { step: key, try: n, code, message, pause_ms: Math.round(pause) } });
      x.flushSoon();
      await x.rest(pause);
      await admitAgain(x, key, takes, n);
      pause = Math.min(pause * 2, micros(retry.max ?? "1m") / 1000);
    }
  }
}

async function once<T>(x: Execution, key: string, n: number, f: (s: StepContext) => T | Promise<T>, o: StepOptions<T>): Promise<T> {
  const limit = o.timeout === undefined ? undefined : micros(o.timeout) / 1000;
  const timer = new AbortController();
  const over = limit === undefined ? undefined : new AbortController();
  const signal = over ? AbortSignal.any([x.abort.signal, over.signal]) : x.abort.signal;
  if (over) void delay(limit, undefined, { signal: timer.signal }).then(() => over.abort(new Failure("step_timeout", `step ${key} took longer than ${limit} ms`)), () => undefined);
  try {
    const v = await scopes.run({ execution: x, step: key }, async () => f(new StepContext(x, key, n, signal)));
    if (over?.signal.aborted) throw over.signal.reason;
    return v;
  } catch (err) {
    throw over?.signal.aborted && !isPermanent(err) ? over.signal.reason : err;
  } finally {
    timer.abort();
  }
}

async function replay<T>(x: Execution, b: Branch, key: string, of: string | undefined, entry: StepEntry, o: StepOptions<T>, aside: boolean): Promise<unknown> {
  if (of !== undefined && entry.of !== undefined && of !== entry.of)
    throw x.hold("nondeterminism", `${key}: the journal has a step about another value than the one for which the agent asks now; keep the order of what the steps are about, or announce the change with version`);
  x.ask(b, "step", key);
  if (!aside) b.point = entry.error ? `step ${key}!` : `step ${key}`;
  if (entry.error) throw follows(new StepError(entry.error.code, entry.error.message, key, { permanent: true }), () => key);
  return await readBack(x, key, entry, o);
}

/** Reads a recorded result as the code gets it. */
async function readBack<T>(x: Execution, key: string, entry: StepEntry, o: StepOptions<T>): Promise<unknown> {
  if (!("ok" in entry)) throw x.hold("nondeterminism", `${key}: the entry is damaged: it has neither a result nor an error`);
  const json = entry.ok as Json;
  const huge = findHuge(json);
  if (huge !== undefined)
    throw x.hold("nondeterminism", `step ${key}: ${huge} is an integer beyond 2^53, which JavaScript would round; return it as a text, or let a worker in another language finish the run`);
  const v = decode(structuredClone(json), entry.as ?? []);
  if (o.schema === undefined) return v;
  try {
    const got = await read(o.schema, v);
    const lost = fieldsLost(v as Json, got);
    if (lost.length > 0) throw new Misfit(`the schema does not have ${lost.join(", ")}`);
    return got;
  } catch (err) {
    throw x.hold("nondeterminism", `${key}: the recorded result does not fit the type for which the agent asks now: ${(err as Error).message}`);
  }
}
