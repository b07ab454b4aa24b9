// Futures: what an agent can wait for. Each knows its wait, and when it has ended.

import type { Branch } from "./branch.js";
import type { Wait } from "./batch.js";
import { Cancelled, Failure, Stalled, TaskFailed, TaskTimedOut } from "./errors.js";
import { follows, type Execution } from "./execution.js";
import type { Fact, InboxItem } from "./journal.js";
import { isObject, type Json } from "./json.js";
import { durationText } from "./names.js";
import type { Schema } from "./schema.js";

/** How a future has ended. */
export interface Ending {
  /** The earlier one wins. A future that could not begin is below 0. */
  order: number;
  ok: boolean;
  /** Makes the item that has ended it a fact. */
  take(): Fact | undefined;
  error?: Error;
}

/** The state behind a future. */
export abstract class Source {
  constructor(
    readonly execution: Execution,
    readonly branch: Branch,
    readonly schema: Schema | undefined,
  ) {}
  /** The name in a choice, and in the digest of a join. */
  abstract childKey(): string;
  abstract waitId(): string;
  /** Looks whether it has ended. The waits of a join begin with its id. */
  abstract ended(join: string): Ending | undefined;
  /** The id of its first wait, by which a join names it. */
  firstWaitId(): string {
    return this.waitId();
  }
  /** Opens the wait at the server, and returns its id. */
  abstract open(): string;
  /** Ends the waiting, because another future was first. */
  lose(_recorded: boolean): void {}
  /** What the key of an item that could not be read is. */
  unfitKey(): string {
    return this.childKey() || this.waitId();
  }
  name(): string {
    return this.childKey() || this.waitId();
  }
  /** The text that tells people what is waited for. */
  abstract text(): string;
}

/** A child. */
export class ChildSource extends Source {
  constructor(
    execution: Execution,
    branch: Branch,
    schema: Schema | undefined,
    readonly key: string,
    readonly kind: string,
    readonly onStall: boolean,
    /** Why it could not begin. */
    readonly fault: Error | undefined,
  ) {
    super(execution, branch, schema);
  }
  childKey(): string {
    return this.fault ? "" : this.key;
  }
  waitId(): string {
    return "";
  }
  override name(): string {
    return this.fault ? `!${this.kind}` : this.key;
  }
  text(): string {
    return `the child ${this.key}`;
  }
  ended(join: string): Ending | undefined {
    if (this.fault) return { order: -1, ok: false, take: () => undefined, error: this.fault };
    const facts = this.execution.facts;
    const stalls = (i: Fact) => i.type === "wait" && i.outcome === "stalled" && i.name === this.key && isWaitOf(i.wait, join);
    const fact = facts.items.find((i) => (i.type === "child" && i.name === this.key) || (this.onStall && stalls(i)));
    if (!fact) return undefined;
    const take = () => fact;
    if (fact.type === "wait") return { order: fact.order, ok: false, take, error: this.from(fact, new Stalled(fact.run ?? "", this.kind)) };
    if (fact.outcome === "completed") return { order: fact.order, ok: true, take };
    return { order: fact.order, ok: false, take, error: this.from(fact, this.failure(fact)) };
  }
  private from<E extends Error>(fact: Fact, err: E): E {
    return follows(err, () => fact.frame.key);
  }
  private failure(fact: Fact): Error {
    const data = this.execution.facts.data(fact);
    const { reason, message } = (isObject(data) ? data : {}) as { reason?: string; message?: string };
    const failure = { code: reason ?? "failed", message: message ?? "" };
    const run = fact.run ?? "";
    return fact.outcome === "timeout" ? new TaskTimedOut(run, this.kind, failure) : new TaskFailed(run, this.kind, fact.outcome ?? "failed", failure);
  }
  open(): string {
    throw new Error("children are waited for together");
  }
}

/** Tells whether a wait is one of a join: the join itself, a further part, a round, or that of a stall. */
function isWaitOf(id: string | undefined, join: string): boolean {
  return id !== undefined && id.startsWith(join) && /^(\/\d+)?(\.stall)?(\.\d+)?$/.test(id.slice(join.length));
}

/** A wait of the run's own: for a signal, a message or a timer. It can be lost and begun again. */
abstract class OwnWait extends Source {
  private round = 1;
  constructor(
    execution: Execution,
    branch: Branch,
    schema: Schema | undefined,
    readonly base: string,
  ) {
    super(execution, branch, schema);
  }
  childKey(): string {
    return "";
  }
  waitId(): string {
    return this.round === 1 ? this.base : `${this.base}.${this.round}`;
  }
  override firstWaitId(): string {
    return this.base;
  }
  override lose(recorded: boolean): void {
    const id = this.waitId();
    const x = this.execution;
    if (recorded ? !x.facts.closed.has(id) : !x.facts.opened.has(id)) return;
    if (!recorded) {
      x.batch.frame.closed.push(id);
      x.batch.close.push(id);
      x.facts.closed.add(id);
    }
    this.round++;
  }
  protected fact(): Fact | undefined {
    const id = this.waitId();
    return this.execution.facts.items.find((i) => i.wait === id && i.type !== "wait");
  }
  protected note(wait: Wait): string {
    const x = this.execution;
    x.batch.waits.push(wait);
    x.facts.opened.add(wait.id);
    x.batch.frame.opened.push(wait.id);
    return wait.id;
  }
}

/** A wait for a signal or a message. */
export class SignalSource extends OwnWait {
  constructor(
    execution: Execution,
    branch: Branch,
    schema: Schema | undefined,
    base: string,
    /** The name of the signal, or nothing for a message. */
    readonly signal: string | undefined,
    /** Microseconds, "never", or nothing for the default. */
    readonly timeout: number | "never" | undefined,
  ) {
    super(execution, branch, schema, base);
  }
  text(): string {
    return this.signal === undefined ? "the next message" : `the signal ${this.signal}`;
  }
  ended(): Ending | undefined {
    const fact = this.fact();
    const what = this.signal === undefined ? "message" : "signal";
    if (fact) {
      if (fact.type === "timeout") return { order: fact.order, ok: false, take: () => fact, error: this.execution.timedOut(what, fact) };
      return { order: fact.order, ok: true, take: () => fact };
    }
    const item = this.find(what);
    if (!item) return undefined;
    return { order: this.execution.base + item.seq, ok: true, take: () => this.take(item) };
  }
  private find(type: string): InboxItem | undefined {
    const id = this.waitId();
    const { loose, facts } = this.execution;
    const fits = (i: InboxItem) => i.type === type && (this.signal === undefined || i.name === this.signal);
    return loose.find((i) => i.wait_id === id) ?? loose.find((i) => fits(i) && (!i.wait_id || facts.closed.has(i.wait_id)));
  }
  private take(item: InboxItem): Fact {
    const x = this.execution;
    // What was given to the wait is taken at once: the wait was opened, so the agent has asked for it before.
    if (item.wait_id !== this.waitId())
      x.checkOrder(this.branch, `${this.text()} would be taken by a wait that the journal does not have`);
    x.loose.splice(x.loose.indexOf(item), 1);
    const { seq, type, name, data } = item;
    return x.addFact({ seq, type, wait: this.waitId(), ...(name ? { name } : {}), ...(data !== undefined ? { data } : {}) });
  }
  open(): string {
    const wait: Wait = { id: this.waitId(), type: this.signal === undefined ? "message" : "signal" };
    if (this.signal !== undefined) wait.name = this.signal;
    if (this.timeout !== undefined) wait.timeout = this.timeout === "never" ? "never" : durationText(this.timeout);
    return this.note(wait);
  }
}

/** A timer: of a sleep, of after, or the time limit of a race. */
export class TimerSource extends OwnWait {
  constructor(
    execution: Execution,
    branch: Branch,
    base: string,
    /** When it ends, in microseconds since 1970. */
    readonly end: number,
  ) {
    super(execution, branch, undefined, base);
  }
  text(): string {
    return `the timer ${this.base}`;
  }
  ended(): Ending | undefined {
    const fact = this.fact();
    if (fact) return { order: fact.order, ok: true, take: () => fact };
    const x = this.execution;
    const id = this.waitId();
    const item = x.loose.find((i) => i.wait_id === id);
    if (item) {
      const take = () => {
        x.loose.splice(x.loose.indexOf(item), 1);
        return x.addFact({ seq: item.seq, type: "timer", wait: id, outcome: item.outcome ?? "satisfied" });
      };
      return { order: x.base + item.seq, ok: true, take };
    }
    if (x.session.now() < this.end) return undefined;
    const take = () => {
      if (x.facts.opened.has(id)) x.batch.close.push(id);
      return x.addFact({ seq: 0, type: "timer", wait: id, outcome: "satisfied" });
    };
    return { order: Number.MAX_SAFE_INTEGER, ok: true, take };
  }
  open(): string {
    const left = Math.max(1, this.end - this.execution.session.now()); // it may have ended just now
    return this.note({ id: this.waitId(), type: "timer", timeout: durationText(left) });
  }
}

/** A question that is open outside of the run: an approval or a callback. */
export class QuestionSource extends Source {
  constructor(
    execution: Execution,
    branch: Branch,
    schema: Schema | undefined,
    readonly id: string,
    readonly sort: "approval" | "callback",
    private readonly wait: Wait,
  ) {
    super(execution, branch, schema);
  }
  private sent = false;
  childKey(): string {
    return "";
  }
  waitId(): string {
    return this.id;
  }
  text(): string {
    return `the ${this.sort} ${this.id}`;
  }
  fact(): Fact | undefined {
    return this.execution.facts.items.find((i) => i.wait === this.id && i.type !== "wait");
  }
  ended(): Ending | undefined {
    const x = this.execution;
    const fact = this.fact();
    if (!fact) {
      if (x.facts.entries.get(withdrawal(this.id)) !== true) return undefined;
      return { order: -1, ok: false, take: () => undefined, error: new Cancelled(`${this.text()} was withdrawn`) };
    }
    const take = () => fact;
    if (fact.failure) {
      const { code, message } = fact.failure;
      return { order: fact.order, ok: false, take, error: follows(new Failure(code, message, { permanent: true }), () => fact.frame.key) };
    }
    if (fact.type === "timeout" && this.sort === "callback") return { order: fact.order, ok: false, take, error: x.timedOut("answer", fact) };
    return { order: fact.order, ok: true, take };
  }
  open(): string {
    if (!this.sent) this.execution.batch.waits.push(this.wait);
    return this.id;
  }
  /** Opens it with the next commit. */
  openNow(): void {
    this.open();
    this.sent = true;
  }
}

/** Returns the key of the entry that tells whether a question was withdrawn. */
export function withdrawal(id: string): string {
  const branch = /^(.*#\d+\/\/)/s.exec(id)?.[1] ?? "";
  return `_withdraw:${branch}${id.slice(branch.length)}`;
}

/** Reads the data of a fact. */
export function dataOf(x: Execution, fact: Fact | undefined): Json {
  return (fact === undefined ? null : x.facts.data(fact)) ?? null;
}
