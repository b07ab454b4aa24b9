// One execution of an agent: from a grant to an outcome. It answers calls from the journal, sends
// commits one after the other, and suspends the run when all of its branches wait.

import { AsyncLocalStorage } from "node:async_hooks";
import { Batch, type CommitBody, type Outcome, type Wait } from "./batch.js";
import { Branch, type SagaScope } from "./branch.js";
import { Cancelled, Defect, Failure, WaitTimeout, bugText, describe, findCause, isBug, isPermanent } from "./errors.js";
import { apart, Facts, hasName, itemOf, type Expected, type Fact, type InboxItem, type Item } from "./journal.js";
import { print, type Json } from "./json.js";
import { branchOf, firstWait, nameFault } from "./names.js";
import { Lost, Refused, type Grant, type Session } from "./session.js";
import { depthOf } from "./value.js";

/** Where the code is that makes a call. */
export interface Scope {
  execution: Execution;
  /** The step whose function makes the call. */
  step?: string;
  saga?: SagaScope;
}

/** The place of the code that is being executed. */
export const scopes = new AsyncLocalStorage<Scope>();

/** How an execution has ended. */
export type End = "suspended" | "ended" | "lost" | "broken";

/** Items that end a wait for which the agent has asked by a call of its own. */
const ends = new Set(["signal", "message", "timer", "approval", "callback", "timeout"]);

const causes = new WeakMap<Error, () => string | undefined>();

/** Notes from which entry an error follows. */
export function follows<E extends Error>(err: E, key: () => string | undefined): E {
  causes.set(err, key);
  return err;
}

function causeOf(err: unknown): string | undefined {
  for (let e: unknown = err, n = 0; e instanceof Error && n < 16; e = e.cause, n++) {
    const key = causes.get(e)?.();
    if (key) return key;
  }
  return undefined;
}

/** Returns the id of a wait without the number of a repetition, of a part or a round, and of a map without its count. */
function baseOf(id: string): string {
  return id.replace(/(#\d+)(\/\d+)?(\.stall)?(\.\d+)?$/, "$1");
}

/** One execution of an agent. */
export class Execution {
  readonly facts: Facts;
  batch = new Batch();
  /** Batches that are large enough. They are sent before the one in the making. */
  private before: Batch[] = [];
  readonly main: Branch;
  defect: Defect | undefined;
  cancelled = false;
  readonly abort = new AbortController();
  /** Items of the inbox that no call has taken yet. */
  readonly loose: InboxItem[] = [];
  /** The runs of children and the tokens of callbacks, as answers to commits had them. */
  readonly children = new Map<string, string>();
  readonly tokens = new Map<string, string>();
  /** Waits that have ended since the execution before, and for which no call has asked. */
  readonly unasked = new Set<string>();
  /** Waits for which this execution has asked. */
  private readonly asked = new Set<string>();
  /** Children that this execution has spawned. */
  readonly spawnedHere = new Set<string>();
  /** The order in which this execution has made steps that can be undone. */
  readonly made = new Map<string, number>();
  /** What the run ends with beside its result. */
  continueOn: string[] | undefined;
  continueWith: { input: Json } | undefined;
  readSeq = 0;
  ended = false;
  /** Why the end could not be committed, if it is broken. */
  broken: unknown;

  /** The place of the first new item among all facts. */
  readonly base: number;

  private running = 1;
  private chain: Promise<unknown> = Promise.resolve();
  private lastInbox = 0;
  private frames = 0;
  private reports = 0;
  private watching = false;
  private later = false;
  private firstCommit: boolean;
  private inputFields: string[] | undefined;
  private settle!: (end: End) => void;
  private readonly end = new Promise<End>((resolve) => (this.settle = resolve));

  constructor(
    readonly grant: Grant,
    readonly session: Session,
  ) {
    this.facts = new Facts(grant.journal, grant.first_epoch ?? 0);
    this.base = this.facts.items.length;
    this.firstCommit = grant.journal.length === 0;
    this.main = new Branch("", undefined, this.facts.of(""), undefined);
    this.cancelled = grant.cancel === true;
    if (this.cancelled) this.abort.abort(new Cancelled());
    this.receive(grant.inbox);
    for (const i of grant.inbox) if (i.wait_id && i.type !== "limit") this.unasked.add(baseOf(i.wait_id));
  }

  /** Executes the agent, and commits how it has ended. */
  async run(agent: () => Promise<unknown>, encodeResult: (v: unknown) => Json | undefined): Promise<End> {
    const whole = async () => {
      let outcome: () => Outcome;
      try {
        const v = await scopes.run({ execution: this }, agent);
        outcome = this.completed(encodeResult(v));
      } catch (err) {
        if (err instanceof Lost) return this.settle("lost");
        outcome = this.failed(err);
      }
      if (this.ended) return;
      this.ended = true;
      await this.finish(outcome);
      this.settle("ended");
    };
    whole().catch((err: unknown) => {
      if (err instanceof Lost) return this.settle("lost");
      this.broken = err;
      this.settle("broken");
    });
    const end = await this.end;
    this.ended = true;
    return end;
  }

  /** Ends the execution without an outcome, because the lease is another's. */
  lose(): void {
    this.ended = true;
    this.abort.abort(new Lost("the run is no longer this worker's"));
    this.settle("lost");
  }

  // ---- outcomes

  private completed(result: Json | undefined): () => Outcome {
    if (this.defect) throw this.defect;
    if (this.main.busy !== undefined) throw this.misuse(`the agent has returned while ${this.main.busy} is not awaited; await it`);
    if (!this.cancelled) this.checkLeft(this.main, "the agent completes");
    const outcome: Outcome = { type: "complete" };
    if (result !== undefined) outcome.result = result;
    if (this.continueOn) outcome.continue_on = this.continueOn;
    if (this.continueWith) outcome.continue_with = this.continueWith;
    if (this.readSeq > 0) outcome.read_seq = this.readSeq;
    return () => outcome;
  }

  private failed(err: unknown): () => Outcome {
    const defect = this.defect ?? findCause(err, Defect);
    if (defect) return this.defectOutcome(defect);
    if (this.cancelled) return () => ({ type: "cancelled" });
    if (isBug(err)) {
      return this.defectOutcome(new Defect("panic", bugText(err)));
    }
    const { code, message } = describe(err);
    return () => {
      const cause = causeOf(err);
      return { type: "fail", error: { code, message, ...(cause ? { cause_key: cause } : {}) }, retryable: !isPermanent(err) };
    };
  }

  private defectOutcome(d: Defect): () => Outcome {
    return () => ({ type: "fail", error: { code: d.code, message: d.message.slice(0, 4000) }, retryable: true, defect: true });
  }

  private async finish(outcome: () => Outcome): Promise<void> {
    await this.chain.catch(() => undefined);
    if (this.defect) this.dropNew();
    await this.send(true).catch((err: unknown) => {
      outcome = this.failed(err);
    });
    for (let refused = false; ; ) {
      try {
        this.commitDone(await this.session.commit(this.build(this.batch, outcome, true)));
        return;
      } catch (err) {
        if (!(err instanceof Refused)) throw err;
        const key = this.refuseChild(err);
        if (key !== undefined) {
          if (this.continueOn) this.continueOn = this.continueOn.filter((k) => k !== key);
          continue;
        }
        if (refused) throw err;
        refused = true;
        const code = err.code === "cancel_requested" ? "cancelled" : err.code;
        this.batch = new Batch();
        outcome = code === "cancelled" ? () => ({ type: "cancelled" }) : () => ({ type: "fail", error: { code, message: err.detail }, retryable: false });
      }
    }
  }

  /** Leaves out what a held execution would have begun. Facts that were found in the inbox are kept. */
  private dropNew(): void {
    const found = (b: Batch): Batch => {
      const kept = new Batch(b.name);
      kept.entries = b.entries.filter((e) => e.key.startsWith("_data:"));
      kept.frame.in = b.frame.in;
      kept.ack = b.ack;
      return kept;
    };
    this.before = this.before.map(found);
    this.batch = found(this.batch);
  }

  // ---- calls

  /** Looks whether a call may be made here. */
  guard(b: Branch, what: string): void {
    if (this.defect) throw this.defect;
    if (this.ended) throw new Defect("agent_misuse", `${what}: the execution has ended; await every call before the agent returns`);
    const scope = scopes.getStore();
    if (scope?.execution === this && scope.step !== undefined)
      throw this.misuse(`${what} inside of the step ${scope.step}: a step that is recorded is not executed again; make the call between steps`);
    if (b.state === "done") throw this.misuse(`${what}: its branch ${b.prefix.slice(0, -2)} has ended; await every call of a branch in it`);
    if (b.busy !== undefined)
      throw this.misuse(`${what} while ${b.busy} is not over: one context makes one call at a time; await it, or begin branches with ctx.all`);
    const saga = b.sagas.at(-1);
    if (saga && scope?.saga !== saga) throw this.misuse(`${what} while the saga ${saga.name} is not over: await the saga`);
    this.room(1);
  }

  /**
   * Makes a call that takes its time. A call that fails after the end of the execution stays pending, as a
   * wait does: nobody may be there to take its error, and an error that nobody takes ends the process.
   */
  async call<T>(b: Branch, what: string, f: () => Promise<T>): Promise<T> {
    try {
      this.guard(b, what);
      b.busy = what;
      try {
        return await f();
      } finally {
        b.busy = undefined;
      }
    } catch (err) {
      if (this.ended) return await new Promise<never>(() => undefined);
      throw err;
    }
  }

  /** Looks whether a function is one. */
  checkFunction(what: string, f: unknown): void {
    if (typeof f !== "function") throw this.misuse(`${what}: its function is ${f === null ? "null" : `a ${typeof f}`}`);
  }

  /** Looks whether the run is on a thread. */
  checkThread(what: string): void {
    if (!this.grant.thread_id) throw this.misuse(`${what}: the run is on no thread; start it with a threadId`);
  }

  misuse(text: string): Defect {
    return this.hold("agent_misuse", text);
  }

  /** Makes the execution end as a defect, whatever the agent does with the error. */
  hold(code: string, text: string): Defect {
    this.defect ??= new Defect(code, text);
    return this.defect;
  }

  /** Checks a name that the code gives. */
  checkName(what: string, name: unknown, b: Branch): string {
    const fault = nameFault(name, 170 - Buffer.byteLength(b.prefix));
    if (fault !== undefined) throw this.misuse(`${what}: ${fault}`);
    return name as string;
  }

  /** Takes something recorded off the list of what has to be asked for. */
  ask(b: Branch, sort: string, key: string): void {
    const id = `${sort} ${key}`;
    const e = b.expected.get(id) ?? this.facts.expected.get(`aside ${b.prefix}`)?.get(id);
    if (e) b.lastAsked = Math.max(b.lastAsked, e.at);
    this.unasked.delete(key);
    if (sort === "wait") this.asked.add(key);
    b.expected.delete(id);
    this.facts.expected.get(`aside ${b.prefix}`)?.delete(id);
  }

  /** Makes errors facts, because the code goes on after them. */
  goOn(b: Branch): void {
    for (const { entry, became } of b.pending) {
      this.batch.entries.push(entry);
      became();
    }
    b.pending = [];
  }

  /** Looks whether something new may begin. It throws if not. */
  begin(b: Branch, what: string): void {
    if (b.undoing()) throw new Cancelled("the saga is being undone");
    if (this.cancelled) throw new Cancelled();
    this.checkOrder(b, what);
    this.facts.saidBefore = [];
  }

  checkOrder(b: Branch, what: string): void {
    if (this.cancelled) return;
    const left = [...b.expected.values()];
    if (b.parent) for (const [of, list] of this.facts.expected) if (of.startsWith("aside ")) left.push(...list.values());
    if (left.length > 0) throw this.contradiction(what, left);
  }

  /** Looks whether all was asked for that a branch and those within have recorded. */
  checkLeft(b: Branch, what: string): void {
    const left: Expected[] = [...b.expected.values()];
    for (const [of, list] of this.facts.expected) {
      const inner = of.startsWith("aside ") ? of.slice("aside ".length) : of;
      if (of !== b.prefix && inner.startsWith(b.prefix)) left.push(...list.values());
    }
    if (left.length > 0) throw this.contradiction(what, left);
  }

  private contradiction(what: string, left: Expected[]): Defect {
    const more = left.length > 1 ? ` and ${left.length - 1} more` : "";
    return this.hold(
      "nondeterminism",
      `${what}, but the journal has ${left[0]?.text}${more}, for which the agent has not asked yet; announce what was added, renamed or removed with version or removed`,
    );
  }

  /** Tells whether a child that is recorded works in this run, or has ended: it is not spawned again. */
  alive(key: string): boolean {
    if (this.spawnedHere.has(key) || this.facts.items.some((i) => i.type === "child" && i.name === key)) return true;
    return !this.facts.isRetry || this.facts.spawnedHere(key);
  }

  /** Tells whether there is something left to replay in a branch. */
  left(b: Branch): boolean {
    return b.expected.size > 0 || [...this.unasked].some((id) => branchOf(id) === b.prefix);
  }

  /** Takes all that has a name off the list of what has to be asked for. */
  remove(b: Branch, name: string): void {
    const gone = (id: string) => {
      const space = id.indexOf(" ");
      return space >= 0 && hasName(id.slice(0, space), id.slice(space + 1), name);
    };
    for (const list of this.facts.expected.values()) for (const id of list.keys()) if (gone(id)) list.delete(id);
    for (const id of this.unasked) if (gone(`wait ${id}`)) this.unasked.delete(id);
    // A report after something that is gone comes after what was before it now.
    for (const [point, digests] of this.facts.said) {
      if (point === b.point || !gone(point.replace(/!$/, ""))) continue;
      this.facts.saidBefore.push(...digests);
      this.facts.said.delete(point);
    }
  }

  /** The number of the last item of the inbox that has come. */
  seen(): number {
    return this.lastInbox;
  }

  /** Notes which fields of the input the type of this execution does not have. */
  setInputFields(fields: string[]): void {
    this.inputFields = fields;
  }

  // ---- the inbox

  /** Takes in items of the inbox. Ends of children, answers and timeouts are facts at once. */
  receive(items: readonly InboxItem[]): void {
    for (const item of items) {
      if (item.seq <= this.lastInbox && item.seq > 0) continue;
      this.lastInbox = Math.max(this.lastInbox, item.seq);
      if (this.facts.seqs.has(item.seq)) continue;
      this.room(1);
      if (item.type === "limit") this.batch.ack.push(item.seq);
      else if (["child", "wait", "approval", "callback", "timeout"].includes(item.type)) this.addFact(itemOf(item));
      else this.loose.push(item);
      const wait = item.wait_id ?? "";
      // What has ended a wait is expected: the wait was opened, so the agent has asked for it before.
      const over = wait !== "" && !this.facts.closed.has(wait) && !this.asked.has(firstWait(wait));
      if (over && ends.has(item.type)) this.facts.expectWait(wait, item.type, Infinity);
    }
  }

  /** Makes an item a fact, which is written with the next commit. */
  addFact(item: Item, batch = this.batch): Fact {
    const how = apart(item.data, depthOf);
    const fact: Fact = { ...item, order: this.base + (item.seq || this.lastInbox + 0.5), frame: batch.name, at: Infinity };
    const written = { ...item };
    if (how !== undefined) {
      const value = how === "quoted" ? print(item.data) : (item.data as Json);
      batch.entries.push({ key: `_data:${item.seq}`, value });
      delete written.data;
      written.apart = true;
      if (how === "quoted") written.quoted = true;
    }
    this.facts.items.push(fact);
    const list = batch.frame.in;
    let at = list.length;
    while (item.seq > 0 && at > 0 && (list[at - 1] as Item).seq > item.seq) at--;
    list.splice(at, 0, written);
    if (item.seq > 0) {
      this.facts.seqs.add(item.seq);
      batch.ack.push(item.seq);
    }
    return fact;
  }

  /** Fetches what has come meanwhile, and wakes the waits that are over. */
  async lookIntoInbox(): Promise<void> {
    this.receive(await this.session.inbox(this.lastInbox));
    this.wake();
  }

  // ---- commits

  /** Returns all that is not sent yet. */
  unsent(): Batch[] {
    return [...this.before, this.batch];
  }

  /** Begins another commit if there is no room for so many entries in this one. */
  room(entries: number): void {
    if (this.batch.empty() || !this.batch.full(entries)) return;
    this.before.push(this.batch);
    this.batch = new Batch();
  }

  /** Returns when everything that was done before is durable. */
  async flush(): Promise<void> {
    const sent = this.chain.then(() => (this.ended ? undefined : this.send()));
    this.chain = sent.catch(() => undefined);
    await sent;
  }

  /** Sends what was reported within 50 ms, unless something else is sent before. */
  flushSoon(): void {
    if (this.later) return;
    this.later = true;
    this.session.later(50, () => {
      this.later = false;
      if (!this.ended) this.flush().catch(() => undefined);
    });
  }

  /** Sends the batches that are large enough, and then the one in the making unless it stays. */
  private async send(stays = false): Promise<void> {
    for (;;) {
      const sent = this.before.shift() ?? this.batch;
      const last = sent === this.batch;
      if (last && (stays || sent.empty())) return;
      const body = this.build(sent);
      if (last) this.batch = new Batch();
      try {
        this.commitDone(await this.session.commit(body));
        if (last) return;
      } catch (err) {
        if (err instanceof Lost) {
          this.lose();
          return await new Promise<never>(() => undefined);
        }
        if (!(err instanceof Refused)) throw err;
        if (last && this.before.length === 0) {
          sent.absorb(this.batch);
          this.batch = sent;
        } else this.before.unshift(sent);
        if (this.refuseChild(err, sent) !== undefined) continue;
        this.before = [];
        this.batch = new Batch();
        if (err.code === "nondeterminism") throw this.hold("nondeterminism", err.detail);
        throw new Failure(err.code, err.detail, { permanent: true });
      }
    }
  }

  /** Builds the commit of a batch, and puts the record of the input into the first one. */
  private build(b: Batch, outcome?: () => Outcome, ends = false): CommitBody {
    if (this.firstCommit && this.inputFields !== undefined && !ends) {
      const step = b.entries.find((e) => !e.key.startsWith("_"));
      if (step && b.frame.build() === undefined) {
        const { aside, ...rest } = step.value as { aside?: boolean };
        step.value = { ...(aside ? { aside } : {}), ignored: this.inputFields, ...rest } as unknown as Json;
      } else b.frame.ignored = this.inputFields;
    }
    const epoch = this.grant.epoch;
    const body = b.build((sort) => (sort === "frame" ? `_frame:${epoch}.${++this.frames}` : `_said:${epoch}.${++this.reports}`));
    if (body.journal) this.firstCommit = false;
    if (outcome) body.outcome = outcome();
    return body;
  }

  private commitDone(answer: { cancel?: boolean; children?: { key: string; run_id: string }[]; callbacks?: { wait_id: string; token: string }[] }): void {
    for (const c of answer.children ?? []) this.children.set(c.key, c.run_id);
    for (const c of answer.callbacks ?? []) this.tokens.set(c.wait_id, c.token);
    if (answer.cancel) this.requestCancel(false);
  }

  /** Takes a child that the server has refused out of the batch. Returns its key. */
  private refuseChild(err: Refused, batch = this.batch): string | undefined {
    const n = /\.children\[(\d+)\]/.exec(err.field)?.[1];
    const child = n === undefined || err.code === "nondeterminism" ? undefined : batch.children[Number(n)];
    if (!child) return undefined;
    batch.children.splice(Number(n), 1);
    this.addFact({ seq: 0, type: "child", name: child.key, outcome: "failed", data: { reason: err.code, message: err.detail } }, batch);
    return child.key;
  }

  // ---- waiting

  /** Waits until attempt has an answer. The promise stays pending if the run is suspended meanwhile. */
  async wait<T>(b: Branch, what: string, attempt: () => { value: T } | undefined, open: () => string[]): Promise<T> {
    const got = attempt();
    if (got) return got.value;
    this.begin(b, what);
    return await new Promise<T>((resolve, reject) => {
      const leave = () => {
        b.parked = undefined;
        b.state = "running";
        this.running++;
      };
      b.parked = {
        look: () => {
          let v: { value: T } | undefined;
          try {
            v = attempt();
          } catch (err) {
            leave();
            reject(err as Error);
            return true;
          }
          if (!v) return false;
          leave();
          resolve(v.value);
          return true;
        },
        fail: (err) => {
          leave();
          reject(err);
        },
        open,
      };
      this.pause(b, "parked");
    });
  }

  /** Waits for a time, or until the run is asked to stop. */
  async rest(ms: number): Promise<void> {
    const { signal } = this.abort;
    let stop: () => void = () => undefined;
    const stopped = new Promise<void>((resolve) => (stop = resolve));
    signal.addEventListener("abort", stop, { once: true });
    if (!signal.aborted) await Promise.race([this.session.sleep(ms), stopped]);
    signal.removeEventListener("abort", stop);
  }

  /** Suspends the run on waits for limits. If another branch works, it returns after a second. */
  async waitForRoom(b: Branch, waits: () => Wait[]): Promise<void> {
    let over = false;
    const waited = this.wait(b, "a wait for a limit", () => (over ? { value: undefined } : undefined), () => {
      const list = waits();
      this.batch.waits.push(...list);
      return list.map((w) => w.id);
    });
    this.session.later(1000, () => {
      over = true;
      if (!this.ended && this.running > 0) b.parked?.look();
    });
    await waited;
  }

  /** Ends a branch of a check, where it would do something that is not recorded. */
  async beyond(b: Branch): Promise<void> {
    if (!this.session.beyond) return;
    this.session.beyond();
    b.parked = { look: () => false, fail: () => undefined, open: () => [] };
    this.pause(b, "parked");
    await new Promise<never>(() => undefined);
  }

  /** Notes that a branch does not execute code any more, and suspends the run if none does. */
  pause(b: Branch, state: "parked" | "joining" | "done"): void {
    b.state = state;
    this.running--;
    if (this.running === 0) {
      this.chain = this.chain.then(() => this.suspend()).catch((err: unknown) => this.suspendFailed(err));
    } else void this.watch();
  }

  /** Notes that a branch executes code again. */
  resume(b: Branch): void {
    b.state = "running";
    this.running++;
  }

  private suspendFailed(err: unknown): void {
    if (err instanceof Lost) return this.lose();
    const failure = err instanceof Error ? err : new Error(String(err));
    this.main.each((b) => b.parked?.fail(failure));
  }

  /** Ends waits that are over by now. Returns whether there were some. */
  private wake(): boolean {
    let woken = false;
    this.main.each((b) => {
      if (b.parked?.look()) woken = true;
    });
    return woken;
  }

  /** Looks for news while one branch waits and another one works. */
  private async watch(): Promise<void> {
    if (this.watching) return;
    this.watching = true;
    try {
      while (!this.ended && this.running > 0 && this.anyParked()) {
        await this.session.sleep(200);
        if (!this.ended && this.running > 0 && this.anyParked()) await this.lookIntoInbox();
      }
    } catch (err) {
      if (err instanceof Lost) this.lose();
    } finally {
      this.watching = false;
    }
  }

  private anyParked(): boolean {
    let any = false;
    this.main.each((b) => (any ||= b.parked !== undefined));
    return any;
  }

  private async suspend(): Promise<void> {
    if (this.ended || this.running > 0 || this.wake()) return;
    if (this.defect) throw this.defect; // a call that was not awaited waits, and another one was a misuse
    if (this.before.length > 0) {
      await this.send(true);
      return await this.suspend();
    }
    for (;;) {
      let before = this.batch;
      this.batch = before.copy();
      const ids: string[] = [];
      this.main.each((b) => {
        if (b.parked) ids.push(...b.parked.open());
      });
      if (this.before.length > 0) { // of many waits the first ones are opened before
        await this.send(true);
        if (this.ended || this.running > 0 || this.wake()) return;
        before = new Batch();
      }
      try {
        await this.session.commit(this.build(this.batch, () => ({ type: "suspend", waits: [...new Set(ids)] })));
        this.ended = true;
        return this.settle("suspended");
      } catch (err) {
        if (!(err instanceof Refused)) throw err;
        this.batch = before;
        if (err.code === "cancel_requested") return await this.stopInstead();
        if (this.refuseChild(err) === undefined) throw this.hold(err.code === "nondeterminism" ? "nondeterminism" : "agent_misuse", `suspending: ${err.detail}`);
        return await this.again();
      }
    }
  }

  /** Suspends on a wait that is over at once, so that the next execution sees that a child was refused. */
  private async again(): Promise<void> {
    const id = `_again:${this.grant.epoch}`;
    for (;;) {
      const body = this.build(this.batch, () => ({ type: "suspend", waits: [id] }));
      body.waits = [...(body.waits ?? []), { id, type: "callback", timeout: "1ms" }];
      try {
        await this.session.commit(body);
        this.ended = true;
        return this.settle("suspended");
      } catch (err) {
        if (!(err instanceof Refused)) throw err;
        if (err.code === "cancel_requested") return await this.stopInstead();
        if (this.refuseChild(err) === undefined) throw this.hold("agent_misuse", `suspending: ${err.detail}`);
      }
    }
  }

  private async stopInstead(): Promise<void> {
    await this.send();
    this.requestCancel(true);
  }

  /** Tells the agent that it is asked to stop. */
  requestCancel(wake: boolean): void {
    if (this.ended) return;
    if (!this.cancelled) this.abort.abort(new Cancelled());
    this.cancelled = true;
    if (wake || this.running > 0) this.main.each((b) => b.parked?.fail(new Cancelled()));
  }

  /** The error of a wait in whose time nothing came. */
  timedOut(what: string, fact: Fact): WaitTimeout {
    return follows(new WaitTimeout(`no ${what} came in time`), () => fact.frame.key);
  }
}
