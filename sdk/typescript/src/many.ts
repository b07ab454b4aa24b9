// Many items: a child for each (map), or a step for each (parallel).

import type { Branch } from "./branch.js";
import type { Child } from "./batch.js";
import { Failure } from "./errors.js";
import type { Execution } from "./execution.js";
import { ChildSource, type Ending } from "./futures.js";
import { settle, type Settled } from "./joins.js";
import { canonical, digest, sha, type Json } from "./json.js";
import { Crew, type StepLimit } from "./limits.js";
import type { Schema } from "./schema.js";
import { checkOptions, noteUndo, stepOf, type StepContext, type StepOptions } from "./steps.js";
import { encode } from "./value.js";

/** Options of map and parallel. */
export interface ManyOptions {
  /** How many at the same time. */
  limit?: number;
  /** Goes on whatever fails. */
  settle?: boolean;
}

/** Options of the step of each item of a parallel. */
export interface ItemOptions<T = unknown> extends Omit<StepOptions<T>, "limit" | "for"> {
  /** What the step of each item takes of limits, as StepOptions.limit says. */
  limits?: StepLimit | readonly StepLimit[];
}

const most = 1000;

function limitOf(x: Execution, what: string, o: ManyOptions): number {
  const n = o.limit ?? 20;
  if (!Number.isInteger(n) || n < 1 || n > most) throw x.misuse(`${what}: the limit is ${n}; it is a whole number from 1 to ${most}`);
  return n;
}

/** Returns an item as JSON. One that JSON can't write is a misuse: a replay could not tell it from another. */
function inputOf(x: Execution, what: string, item: unknown): Json {
  try {
    return encode(what, item).json;
  } catch (err) {
    if (err instanceof Failure && err.code === "invalid_result") throw x.misuse(err.message);
    throw err;
  }
}

/** One map: what is spawned and what has ended. */
class MapRun {
  private readonly sources: ChildSource[] = [];
  private readonly inputs: Json[];
  private texts: string[] = [];
  private n = 0;
  private stopped = false;
  constructor(
    private readonly x: Execution,
    private readonly b: Branch,
    private readonly key: string,
    private readonly kind: string,
    items: readonly unknown[],
    private readonly o: ManyOptions & { child?: Record<string, Json | undefined>; onStall?: boolean; schema?: Schema },
    private readonly limit: number,
  ) {
    this.inputs = items.map((item, i) => inputOf(x, `map ${key}: its item ${i}`, item));
    this.texts = this.inputs.map((json) => canonical(json));
    for (let i = 0; i < items.length; i++)
      this.sources.push(new ChildSource(x, b, o.schema, `${key}/${i}`, kind, o.onStall === true, undefined));
  }

  /** The id of the wait of a map, without how many have ended. */
  private get waits(): string {
    return `${this.b.prefix}map:${this.key.slice(this.b.prefix.length)}`;
  }

  private sum(n: number): string {
    return sha(this.texts.slice(0, n).map((t) => `${Buffer.byteLength(t)}\0${t}`).join(""));
  }

  /** Looks whether the journal has this map, with the same items. */
  resume(): void {
    const m = this.x.facts.mapped.get(this.key);
    if (!m) {
      this.x.begin(this.b, `${this.key}: the journal does not have this map`);
      return;
    }
    this.x.ask(this.b, "map", this.key);
    this.x.unasked.delete(this.waits);
    if (m.n > this.inputs.length || this.sum(m.n) !== m.sum)
      throw this.x.hold("nondeterminism", `${this.key}: the journal has a map over other items than those for which the agent asks now; announce the change with version`);
    this.n = m.n;
    this.stopped = m.stopped === true;
    const again = [...Array(this.n).keys()].filter((i) => !this.end(i) && !this.x.alive(`${this.key}/${i}`));
    for (const i of again) this.push(i);
  }

  private end(i: number): Ending | undefined {
    return (this.sources[i] as ChildSource).ended(this.waits);
  }

  private push(i: number): void {
    const child: Child = { ...this.o.child, key: `${this.key}/${i}`, kind: this.kind, input: this.inputs[i] as Json };
    this.x.batch.children.push(child);
    this.x.spawnedHere.add(child.key);
  }

  private note(): void {
    this.x.batch.frame.mapped[this.key] = { n: this.n, sum: this.sum(this.n), ...(this.stopped ? { stopped: true } : {}) };
  }

  /** Spawns as many as may work at the same time. Returns whether there were some. */
  private more(): boolean {
    const before = this.n;
    let live = this.live().length;
    while (this.n < this.inputs.length && live < this.limit) {
      this.x.begin(this.b, `${this.key}/${this.n}: the journal does not have this child`);
      this.push(this.n++);
      live++;
      if (this.x.batch.full(1)) {
        this.note();
        this.x.room(1);
      }
    }
    if (this.n > before) this.note();
    return this.n > before;
  }

  private live(): number[] {
    return [...Array(this.n).keys()].filter((i) => !this.end(i));
  }

  /** The first failure, if it ends the map. */
  private failure(): Ending | undefined {
    if (this.o.settle) return undefined;
    let first: Ending | undefined;
    for (let i = 0; i < this.n; i++) {
      const e = this.end(i);
      if (e && !e.ok && (!first || e.order < first.order)) first = e;
    }
    return first;
  }

  async run(): Promise<Settled<unknown>> {
    const { x, b } = this;
    let idle = 0;
    for (;;) {
      const failure = this.failure();
      if (failure) {
        if (!this.stopped) this.stop();
        b.point = `map ${this.key}!`;
        throw failure.error as Error;
      }
      const left = this.live().length;
      if (left === 0 && this.n === this.inputs.length) break;
      const grown = !x.cancelled && this.more();
      if (grown) await x.flush();
      const before = this.done();
      if (idle < 500) {
        await x.lookIntoInbox();
        if (this.done() === before && !grown) {
          await x.session.sleep(10);
          idle += 10;
        } else if (this.done() !== before) idle = 0;
        continue;
      }
      await this.suspend(before);
      idle = 0;
    }
    b.point = `map ${this.key}`;
    const out: Settled<unknown> = { results: [], errors: [], completed: 0, failed: 0, timedOut: 0, cancelled: 0 };
    for (let i = 0; i < this.n; i++) await settle(x, this.sources[i] as ChildSource, this.end(i) as Ending, out);
    return out;
  }

  private done(): number {
    return this.n - this.live().length;
  }

  private stop(): void {
    this.stopped = true;
    for (const i of this.live()) this.x.batch.cancel.push(`${this.key}/${i}`);
    this.note();
  }

  private async suspend(done: number): Promise<void> {
    const { x, b } = this;
    const id = `${this.waits}.${done}`;
    const attempt = () => (this.done() !== done ? { value: true } : undefined);
    await x.wait(b, `${id}: the journal does not have this wait`, attempt, () => {
      const keys = this.live().map((i) => `${this.key}/${i}`);
      x.room(keys.length);
      x.batch.waits.push({ id, type: "children", mode: "any", keys, timeout: "never", ...(this.o.onStall ? { on_stall: true } : {}) });
      x.room(1);
      x.batch.events.push({ type: "run:progress", data: { map: this.key, done, total: this.inputs.length } });
      return [id];
    });
  }
}

/** Spawns a child for each item, and returns how they have ended. */
export async function mapOver(
  x: Execution,
  b: Branch,
  kind: string,
  items: readonly unknown[],
  o: ManyOptions & { child?: Record<string, Json | undefined>; onStall?: boolean; schema?: Schema },
): Promise<Settled<unknown>> {
  x.checkName("the map over the kind", kind, b);
  const limit = limitOf(x, `the map over ${kind}`, o);
  x.goOn(b);
  const key = b.key("map", kind);
  const run = new MapRun(x, b, key, kind, items, o, limit);
  run.resume();
  return await run.run();
}

/** Executes a function for each item, each as a step. */
export async function parallel<I, T>(
  x: Execution,
  b: Branch,
  name: string,
  items: readonly I[],
  f: (item: I, s: StepContext) => T | Promise<T>,
  o: ManyOptions & ItemOptions<T>,
): Promise<Settled<unknown>> {
  x.checkName("the parallel", name, b);
  x.checkFunction(`the parallel ${name}`, f);
  checkOptions(x, b, `the parallel ${name}`, o);
  if ("for" in o) throw x.misuse(`the parallel ${name}: for is for a step by itself; here each is about its item`);
  const limit = limitOf(x, `the parallel ${name}`, o);
  x.goOn(b);
  const key = b.key("parallel", name);
  const { limit: _, limits, ...rest } = o;
  const step: StepOptions<T> = { ...rest, ...(limits === undefined ? {} : { limit: limits }) };
  const out: Settled<unknown> = { results: new Array<unknown>(items.length), errors: new Array<Error | undefined>(items.length), completed: 0, failed: 0, timedOut: 0, cancelled: 0 };
  const keys = items.map((_, i) => `${key}/${i}`);
  const isRecorded = (k: string) => x.facts.entries.has(k);
  const recordedFailure = keys.some((k) => (x.facts.entries.get(k) as { error?: unknown } | undefined)?.error !== undefined);
  let failed = !o.settle && recordedFailure;
  const one = async (i: number) => {
    const k = keys[i] as string;
    if (failed && !isRecorded(k)) return;
    try {
      const of = digest(inputOf(x, `the item ${i} of ${key}`, items[i]));
      const v = await stepOf(x, b, k, of, true, (s) => f(items[i] as I, s), step, crew);
      noteUndo(x, b, k, v, step);
      out.results[i] = v;
      out.completed++;
    } catch (err) {
      if (x.defect) throw x.defect;
      out.errors[i] = err as Error;
      out.failed++;
      if (!o.settle) failed = true;
    }
  };
  // Recorded entries come first, so that something new begins when all of it was asked for.
  const order = [...keys.keys()].sort((i, j) => Number(isRecorded(keys[j] as string)) - Number(isRecorded(keys[i] as string)) || i - j);
  let next = 0;
  const crew = new Crew(Math.min(limit, items.length));
  const worker = async () => {
    while (next < order.length && !x.defect) await one(order[next++] as number);
    crew.members--;
  };
  await Promise.all(Array.from({ length: Math.min(limit, items.length) }, worker));
  const first = out.errors.find((e) => e !== undefined);
  b.point = `parallel ${key}${first && !o.settle ? "!" : ""}`;
  if (first && !o.settle) throw first;
  if (x.defect) throw new Failure("agent_misuse", x.defect.message);
  return out;
}
