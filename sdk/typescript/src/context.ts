// The context of an agent: all that an agent can do.

import { Branch } from "./branch.js";
import type { Child } from "./batch.js";
import { Cancelled, Failure } from "./errors.js";
import type { Execution } from "./execution.js";
import { ChildSource, QuestionSource, SignalSource, TimerSource, dataOf, withdrawal, type Source } from "./futures.js";
import { Future, type Results } from "./future.js";
import { choose, joinAll, joinAllSettled, joinOne, timerEnd, type Settled } from "./joins.js";
import { canonical, sha, type Json } from "./json.js";
import { mapOver, parallel, type ItemOptions, type ManyOptions } from "./many.js";
import { durationText, micros, nameFault, versionFault, type Duration } from "./names.js";
import { saga } from "./saga.js";
import { delta, line, message, progress, publish } from "./say.js";
import type { Schema } from "./schema.js";
import type { ThreadMessage } from "./session.js";
import { step, type StepContext, type StepOptions } from "./steps.js";
import { history, newestMessages } from "./thread.js";
import { encode, type Jsonified } from "./value.js";

/** Options of a child. */
export interface SpawnOptions {
  /** The deadline of the child, attempts and pauses included. */
  timeout?: Duration;
  delay?: Duration;
  queue?: string;
  class?: "task" | "agent" | "process";
  priority?: number;
  maxAttempts?: number;
  metadata?: Record<string, string>;
  threadId?: string;
  newThread?: boolean;
  /** The child goes on when this run ends. */
  outlive?: boolean;
  /** Limits that the child is under, its key there, and what it takes of their rates. */
  limits?: string[];
  limitKey?: string;
  units?: number;
  /** Another run of the kind with the same key is in its way: the spawn is refused. */
  unique?: { key: string; while?: "live" | "waiting" | "for"; for?: Duration };
  /** A wait for the child ends if it looks stuck. */
  onStall?: boolean;
  /** The type of its result. */
  schema?: Schema;
}

/** Options of a wait for one thing. */
export interface WaitOptions {
  /** How long is waited; "never" until the run's deadline. 10 minutes unless given. */
  timeout?: Duration | "never";
  /** The type of what comes. */
  schema?: Schema;
}

/** What a person is asked. */
export interface Question {
  title: string;
  /** What would be done. A decision is about exactly this. */
  action?: unknown;
  [field: string]: unknown;
}

/** What a person has decided. */
export interface Verdict {
  approved: boolean;
  timedOut: boolean;
  comment?: string;
  answer?: Json;
  by?: string;
  approvalId?: string;
  at?: Date;
}

/** The context of an agent, or of a branch of it. */
export class Context {
  /** @internal */
  constructor(
    private readonly x: Execution,
    private readonly b: Branch,
  ) {}

  /** The id of the run. */
  get runId(): string {
    return this.x.grant.run_id;
  }
  /** The thread of the run, if it is on one. */
  get threadId(): string | undefined {
    return this.x.grant.thread_id;
  }
  /** It ends when the run is asked to stop. */
  get abortSignal(): AbortSignal {
    return this.x.abort.signal;
  }

  /** Executes a function once, and records its result. */
  step<T>(name: string, f: (s: StepContext) => T | Promise<T>, options: StepOptions<T> = {}): Promise<Jsonified<T>> {
    return step(this.x, this.b, name, f, options);
  }

  /** Begins a branch for each function, and waits until all have ended. The first error, in their order, is thrown. */
  async all<B extends Record<string, (c: Context) => unknown>>(branches: B): Promise<{ [K in keyof B]: Awaited<ReturnType<B[K]>> }> {
    const names = Object.keys(branches);
    return await this.x.call(this.b, `the branches ${names.join(", ")}`, () => this.join(branches, names));
  }

  private async join<B extends Record<string, (c: Context) => unknown>>(branches: B, names: string[]) {
    const { x, b } = this;
    for (const name of names) {
      x.checkName("the branch", name, b);
      x.checkFunction(`the branch ${name}`, branches[name]);
    }
    x.goOn(b);
    const begun = names.map((name) => this.begin(name));
    const scope = b.saga();
    const outer = scope ? (b.outermost() ?? scope) : undefined;
    const made = begun.map((key) => new Branch(`${key}//`, b, x.facts.of(`${key}//`), outer));
    b.branches.push(...made);
    const results: PromiseSettledResult<unknown>[] = [];
    let left = names.length;
    const run = async (name: string, i: number, child: Branch) => {
      try {
        const v = await (branches[name] as (c: Context) => unknown)(new Context(x, child));
        if (x.defect) throw x.defect;
        if (child.busy !== undefined) throw x.misuse(`the branch ${name} has returned while ${child.busy} is not awaited; await it`);
        if (!x.cancelled && !child.undoing()) x.checkLeft(child, `the branch ${begun[i]} is joined`);
        results[i] = { status: "fulfilled", value: v };
      } catch (reason) {
        results[i] = { status: "rejected", reason };
        b.pending.push(...child.pending);
      }
      if (--left === 0) x.resume(b);
      x.pause(child, "done");
    };
    if (names.length > 0) {
      for (const _ of made) x.resume(b);
      x.pause(b, "joining");
      await Promise.all(names.map((name, i) => run(name, i, made[i] as Branch)));
    }
    b.branches.splice(0, b.branches.length);
    return this.joined(names, begun, results) as { [K in keyof B]: Awaited<ReturnType<B[K]>> };
  }

  private begin(name: string): string {
    const { x, b } = this;
    const key = b.key("branch", name);
    if (x.facts.branches.has(key)) x.ask(b, "branch", key);
    else {
      x.begin(b, `${key}: the journal does not have this branch`);
      x.batch.frame.branches.push(key);
    }
    return key;
  }

  private joined(names: string[], keys: string[], results: PromiseSettledResult<unknown>[]): Record<string, unknown> {
    const out: Record<string, unknown> = {};
    for (const [i, name] of names.entries()) {
      const r = results[i] as PromiseSettledResult<unknown>;
      this.b.point = `branch ${keys[i]}${r.status === "rejected" ? "!" : ""}`;
      if (r.status === "rejected") throw r.reason;
      out[name] = r.value;
    }
    return out;
  }

  // ---- children and questions

  /** Starts a run of another kind, and returns its future at once. */
  spawn<T = Json>(kind: string, input?: unknown, options: SpawnOptions = {}): Future<T> {
    const { x, b } = this;
    x.guard(b, `the child ${JSON.stringify(kind)}`);
    x.goOn(b);
    const fault = nameFault(kind, 170 - Buffer.byteLength(b.prefix));
    let bad: Error | undefined = fault === undefined ? undefined : new Failure("invalid", `the kind of a child: ${fault}`, { permanent: true });
    let json: Json | undefined;
    try {
      if (input !== undefined) json = encode(`the input of the child ${kind}`, input).json;
    } catch (err) {
      bad ??= err as Error;
    }
    const key = bad ? "" : b.key("child", kind);
    if (!bad) bad = this.spawnNew(key, kind, json, options);
    return new Future<T>(x, b, new ChildSource(x, b, options.schema, key, String(kind), options.onStall === true, bad), this);
  }

  private spawnNew(key: string, kind: string, json: Json | undefined, o: SpawnOptions): Error | undefined {
    const { x, b } = this;
    const digest = sha(`${kind}\0${json === undefined ? "" : canonical(json)}`);
    const recorded = x.facts.spawned.get(key);
    if (recorded !== undefined && recorded !== digest)
      throw x.hold("nondeterminism", `${key}: the journal has a child with another input than the one for which the agent asks now; make the input of the agent's own and of results, or announce the change with version`);
    if (recorded !== undefined) x.ask(b, "child", key);
    if (recorded !== undefined && x.alive(key)) return undefined;
    try {
      if (recorded === undefined || x.cancelled || b.undoing()) x.begin(b, `${key}: the journal does not have this child`);
    } catch (err) {
      if (x.defect) throw err;
      return err as Error;
    }
    x.batch.frame.spawned[key] = digest;
    x.facts.spawned.set(key, digest);
    x.spawnedHere.add(key);
    x.batch.children.push({ key, kind, ...(json === undefined ? {} : { input: json }), ...childFields(o) } as Child);
    x.flushSoon();
    return undefined;
  }

  /** Opens a callback: somebody answers with its token. */
  callback<T = Json>(name: string, options: WaitOptions = {}): Future<T> {
    return this.ask<T>("callback", name, options, {});
  }

  /** Asks a person, and returns the future of the answer. */
  onApproval(name: string, question: Question, options: WaitOptions = {}): Future<Verdict> {
    const asked = { ...question, ...(question.action === undefined ? {} : { action: encode(`the action of the approval ${name}`, question.action).json }) };
    return this.ask<Verdict>("approval", name, options, { name, approval: asked as Json });
  }

  private ask<T>(sort: "callback" | "approval", name: string, o: WaitOptions, fields: Record<string, Json>): Future<T> {
    const { x, b } = this;
    x.guard(b, `the ${sort} ${JSON.stringify(name)}`);
    x.checkName(`the ${sort}`, name, b);
    x.goOn(b);
    const id = b.key(sort, `${sort}:${name}`);
    x.ask(b, "wait", id);
    const source = new QuestionSource(x, b, o.schema, id, sort, { id, type: sort, ...fields, ...timeoutOf(o.timeout) });
    const known = source.fact();
    const action = (fields.approval as { action?: Json } | undefined)?.action;
    if (known) checkAction(x, id, dataOf(x, known), action);
    else if (x.facts.entries.get(withdrawal(id)) !== true && !x.cancelled && !b.undoing() && (x.facts.isRetry || !x.left(b))) source.openNow();
    return new Future<T>(x, b, source, this);
  }

  /** Asks a person, and waits for the answer. */
  approve(name: string, question: Question, options: WaitOptions = {}): Promise<Verdict> {
    return this.onApproval(name, question, options).join();
  }

  /** The future of the next signal of this name. */
  onSignal<T = Json>(name: string, options: WaitOptions = {}): Future<T> {
    return this.own<T>("signal", name, { timeout: "never", ...options });
  }

  /** Waits for a signal. One that came earlier counts, too. */
  signal<T = Json>(name: string, options: WaitOptions = {}): Promise<T> {
    return this.own<T>("signal", name, options).join();
  }

  /** The future of the next message of a user on the thread. */
  onMessage<T = Json>(options: WaitOptions = {}): Future<T> {
    return this.own<T>("message", "message", { timeout: "never", ...options });
  }

  private own<T>(sort: "signal" | "message", name: string, o: WaitOptions): Future<T> {
    const { x, b } = this;
    x.guard(b, `the ${sort} ${JSON.stringify(name)}`);
    x.checkName(`the ${sort}`, name, b);
    if (sort === "message") x.checkThread("a wait for a message");
    const id = b.key(sort, `${sort}:${name}`);
    x.ask(b, "wait", id);
    const us = o.timeout === undefined ? undefined : o.timeout === "never" ? "never" : micros(o.timeout);
    return new Future<T>(x, b, new SignalSource(x, b, o.schema, id, sort === "signal" ? name : undefined, us === 0 ? undefined : us), this);
  }

  // ---- times and ids

  /** The future of a time from now. */
  after(d: Duration): Future<null> {
    const { x, b } = this;
    x.guard(b, "a timer");
    const us = Math.max(0, micros(d));
    const id = this.timerKey("after", us);
    return new Future<null>(x, b, new TimerSource(x, b, id, timerEnd(x, id, us)), this);
  }

  private timerKey(sort: string, us: number): string {
    const { x, b } = this;
    let id = b.key(sort, `${sort}:${us}`);
    if (us > 0 && !x.facts.opened.has(id)) {
      const old = id.replace(`${sort}:${us}`, `${sort}:${durationText(us)}`);
      if (x.facts.opened.has(old) || x.facts.items.some((i) => i.wait === old)) id = old;
    }
    x.ask(b, "wait", id);
    return id;
  }

  /** Waits for a time, as a row on the server's disk. */
  async sleep(d: Duration): Promise<void> {
    const { x, b } = this;
    await x.call(b, `a sleep of ${d}`, async () => {
      const us = micros(d);
      const id = this.timerKey("sleep", us);
      await joinOne(x, b, new TimerSource(x, b, id, x.session.now() + us));
    });
  }

  /** Waits until an instant. */
  async sleepUntil(at: Date): Promise<void> {
    const { x, b } = this;
    await x.call(b, `a sleep until ${at.toISOString()}`, async () => {
      const us = at.getTime() * 1000;
      const id = b.key("until", `until:${us}`);
      x.ask(b, "wait", id);
      await joinOne(x, b, new TimerSource(x, b, id, us));
    });
  }

  /** The time, recorded under a name. */
  now(name: string): Date {
    const { x } = this;
    const us = this.recorded("time", name, x.facts.now, x.facts.oldTimes, () => x.session.now(), x.batch.frame.now);
    return new Date(us / 1000);
  }

  /** An id that is the same in every execution. */
  uuid(name: string): string {
    const { x } = this;
    return this.recorded("uuid", name, x.facts.uuid, x.facts.oldUuids, () => x.session.uuid(), x.batch.frame.uuid);
  }

  private recorded<T>(sort: string, name: string, facts: Map<string, T>, old: T[], make: () => T, frame: Record<string, T>): T {
    const { x, b } = this;
    const what = `the ${sort} ${JSON.stringify(name)}`;
    x.guard(b, what);
    x.checkName(`the ${sort}`, name, b);
    x.goOn(b);
    const key = b.key(sort, name);
    const known = facts.get(key) ?? old.shift();
    if (known !== undefined) {
      x.ask(b, sort, key);
      return known;
    }
    if (!b.undoing()) x.checkOrder(b, `${key}: the journal does not have this ${sort}`);
    const v = make();
    facts.set(key, v);
    frame[key] = v;
    return v;
  }

  /** Returns the number that this run has for a change of the code: n if it comes here first, 0 if it was past it. */
  version(name: string, n: number): number {
    const { x, b } = this;
    x.guard(b, `the version ${JSON.stringify(name)}`);
    const fault = versionFault(name);
    if (fault !== undefined) throw x.misuse(`the version: ${fault}`);
    if (!Number.isSafeInteger(n) || n < 1) throw x.misuse(`the version ${name}: ${n} is no version; versions are whole numbers from 1`);
    x.goOn(b);
    const key = `${b.prefix}${name}`;
    const known = x.facts.versions.get(key);
    if (known !== undefined) return known;
    const v = x.left(b) ? 0 : n;
    x.facts.versions.set(key, v);
    x.batch.frame.versions[key] = v;
    return v;
  }

  /** Declares that what has this name is gone from the code. */
  removed(name: string): void {
    const { x, b } = this;
    x.guard(b, `removed ${JSON.stringify(name)}`);
    x.remove(b, name);
  }

  // ---- several futures

  /** The states behind futures that a call is given. */
  private sources(what: string, futures: readonly Future<unknown>[]): Source[] {
    return futures.map((f, i) => {
      if (f instanceof Future) return f.source;
      throw this.x.misuse(`${what}: future ${i + 1} of ${futures.length} is a ${typeof f}, and no future`);
    });
  }

  /** The states behind futures of which the first is waited for. */
  private choices(what: string, futures: readonly Future<unknown>[]): Source[] {
    const list = this.sources(what, futures);
    if (list.length === 0) throw this.x.misuse(`${what} of none: it would wait for ever`);
    if (new Set(list).size < list.length) throw this.x.misuse(`${what}: a future is given twice`);
    return list;
  }

  /** Waits for all, or for the first that does not complete: its error is thrown. */
  joinAll<F extends readonly Future<unknown>[]>(futures: readonly [...F]): Promise<Results<F>> {
    const { x, b } = this;
    return x.call(b, "joinAll", async () => (await joinAll(x, b, this.sources("joinAll", futures))) as Results<F>);
  }

  /** Waits for all, whatever becomes of them. */
  joinAllSettled<T>(futures: readonly Future<T>[]): Promise<Settled<T>> {
    const { x, b } = this;
    const what = "joinAllSettled";
    return x.call(b, what, async () => (await joinAllSettled(x, b, this.sources(what, futures))) as Settled<T>);
  }

  /** Waits for the first that ends, and returns its index. */
  select(...futures: Future<unknown>[]): Promise<number> {
    const { x, b } = this;
    const first = async () => (await choose(x, b, "any", 1, this.choices("select", futures))).first[0] as number;
    return x.call(b, "select", first);
  }

  /** Waits for the first that completes. */
  async selectOK<T>(futures: readonly Future<T>[]): Promise<{ index: number; result: T; remaining: Future<T>[] }> {
    const got = await this.firstOK(1, futures, "selectOK");
    return { index: got.indexes[0] as number, result: got.results[0] as T, remaining: got.remaining };
  }

  /** Waits for the first k that complete. */
  firstOK<T>(k: number, futures: readonly Future<T>[], what = "firstOK"): Promise<{ indexes: number[]; results: T[]; remaining: Future<T>[] }> {
    const { x, b } = this;
    return x.call(b, what, async () => {
      if (!Number.isInteger(k) || k < 1 || k > futures.length) throw x.misuse(`${what}: ${k} of ${futures.length} futures can't complete`);
      const { first } = await choose(x, b, "any_ok", k, this.choices(what, futures));
      const results: T[] = [];
      for (const i of first) results.push(await (futures[i] as Future<T>).value());
      return { indexes: first, results, remaining: futures.filter((f, i) => !first.includes(i) && !f.hasEnded()) };
    });
  }

  /** Waits for the first that ends, at most for a time: then WaitTimeout is thrown. */
  race<T>(limit: Duration, futures: readonly Future<T>[]): Promise<{ index: number; remaining: Future<T>[] }> {
    return this.x.call(this.b, "race", async () => {
      const us = Math.max(0, micros(limit));
      const { first } = await choose(this.x, this.b, "any", 1, this.choices("race", futures), us);
      return { index: first[0] as number, remaining: futures.filter((f, i) => !first.includes(i) && !f.hasEnded()) };
    });
  }

  /** Spawns a child for each item, and returns the results in the order of the items. */
  map<T = Json>(kind: string, items: readonly unknown[], options: ManyOptions & { child?: SpawnOptions } = {}): Promise<Settled<T>> {
    const { child = {}, ...o } = options;
    return this.x.call(this.b, `the map over ${JSON.stringify(kind)}`, async () => {
      const given = { ...o, child: childFields(child), ...(child.onStall ? { onStall: true } : {}), ...(child.schema ? { schema: child.schema } : {}) };
      return (await mapOver(this.x, this.b, kind, items, given)) as Settled<T>;
    });
  }

  /** Executes a function for each item, each as a step, and returns the results in the order of the items. */
  parallel<I, T>(
    name: string,
    items: readonly I[],
    f: (item: I, s: StepContext) => T | Promise<T>,
    options: ManyOptions & ItemOptions<T> = {},
  ): Promise<Settled<Jsonified<T>>> {
    return this.x.call(this.b, `the parallel ${JSON.stringify(name)}`, async () => (await parallel(this.x, this.b, name, items, f, options)) as Settled<Jsonified<T>>);
  }

  /** Executes a function whose steps are undone, the last one first, if it fails. */
  saga<T>(name: string, body: () => Promise<T>): Promise<T> {
    return saga(this.x, this.b, name, body);
  }

  // ---- what it says

  /** Appends a message of the assistant to the thread. */
  message(content: unknown, options: { role?: string; metadata?: Record<string, string> } = {}): void {
    message(this.x, this.b, options.role ?? "assistant", content, options.metadata);
  }
  /** Streams text. */
  delta(text: string): void {
    delta(this.x, this.b, text);
  }
  /** Writes a line of the run's log, whose type begins with "x:". */
  emit(type: string, data?: unknown): void {
    line(this.x, this.b, type, data);
  }
  /** Tells how far the run is. */
  progress(v: unknown): void {
    progress(this.x, this.b, v);
  }
  /** Sets a named view of the run. */
  publish(name: string, v: unknown): void {
    publish(this.x, this.b, name, v);
  }
  /** Tells with the next heartbeat what is being done. */
  heartbeat(activity: string): void {
    this.x.guard(this.b, "a heartbeat");
    this.x.session.note({ activity });
  }

  /** Reads the thread, without the notices of the server. */
  history(): Promise<ThreadMessage[]> {
    return this.x.call(this.b, "history", () => history(this.x, this.b, false));
  }
  /** Reads the thread with the notices of the server. */
  historyWithNotices(): Promise<ThreadMessage[]> {
    return this.x.call(this.b, "history", () => history(this.x, this.b, true));
  }
  /** Reads the thread from its end. Leave the loop when enough is read. */
  newestMessages(): AsyncGenerator<ThreadMessage, void, void> {
    return newestMessages(this.x, this.b);
  }

  // ---- ends

  /** Ends the run with a result, and has a new one continue when these children have ended. Return what it returns. */
  continueOn<T>(result: T, futures: readonly Future<unknown>[]): T {
    const { x, b } = this;
    x.guard(b, "continueOn");
    x.checkThread("continueOn");
    for (const s of this.sources("continueOn", futures))
      if (!(s instanceof ChildSource)) throw x.misuse(`continueOn waits for children, and ${s.text()} is none`);
    if (x.continueOn ?? x.continueWith) throw x.misuse("continueOn: the run has said already how it goes on");
    x.continueOn = futures.map((f) => f.key);
    return result;
  }

  /** Ends the run with a result, and begins it anew with this input and an empty journal. Return what it returns. */
  continueWith<T>(result: T, input: unknown): T {
    const { x, b } = this;
    x.guard(b, "continueWith");
    if (x.continueOn ?? x.continueWith) throw x.misuse("continueWith: the run has said already how it goes on");
    if (x.cancelled) throw new Cancelled();
    x.continueWith = { input: encode("the input of the new run", input).json };
    return result;
  }
}

function timeoutOf(t: Duration | "never" | undefined): { timeout?: string } {
  if (t === undefined) return {};
  const us = t === "never" ? undefined : micros(t);
  return us === undefined ? { timeout: "never" } : us === 0 ? {} : { timeout: durationText(us) };
}

function childFields(o: SpawnOptions): Record<string, Json | undefined> {
  const out: Record<string, Json | undefined> = {};
  if (o.timeout !== undefined && micros(o.timeout) !== 0) out.timeout = durationText(Math.max(1, micros(o.timeout)));
  if (o.delay !== undefined) out.delay = durationText(micros(o.delay));
  if (o.queue !== undefined) out.queue = o.queue;
  if (o.class !== undefined) out.class = o.class;
  if (o.priority !== undefined) out.priority = o.priority;
  if (o.maxAttempts !== undefined) out.max_attempts = o.maxAttempts;
  if (o.metadata !== undefined) out.metadata = o.metadata;
  if (o.threadId !== undefined) out.thread_id = o.threadId;
  if (o.newThread) out.new_thread = true;
  if (o.limits !== undefined) out.limits = o.limits;
  if (o.limitKey !== undefined) out.limit_key = o.limitKey;
  if (o.units !== undefined) out.units = o.units;
  if (o.unique !== undefined) out.unique = uniqueField(o.unique);
  if (o.outlive) out.on_parent_end = "continue";
  return out;
}

function uniqueField(u: NonNullable<SpawnOptions["unique"]>): Json {
  const { key, while: during, for: span } = u;
  return { key, ...(during === undefined ? {} : { while: during }), ...(span === undefined ? {} : { for: durationText(micros(span)) }) };
}

function checkAction(x: Execution, id: string, data: Json, action: Json | undefined): void {
  const hash = (data as { action_hash?: string } | null)?.action_hash;
  if (hash === undefined || action === undefined) return;
  if (`sha256:${sha(canonical(action), 32)}` !== hash)
    throw x.hold("nondeterminism", `${id}: a person has decided about another action than the one for which the agent asks now; announce the change with version`);
}
