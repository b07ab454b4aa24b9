// Waiting for several futures: joins, and choices that are recorded.

import type { Branch } from "./branch.js";
import { AllTasksFailed, Failure, WaitTimeout } from "./errors.js";
import { follows, type Execution } from "./execution.js";
import { ChildSource, TimerSource, dataOf, type Ending, type Source } from "./futures.js";
import type { Choice, Fact } from "./journal.js";
import { sha } from "./json.js";
import { Misfit, read } from "./schema.js";
import { findHuge } from "./value.js";

/** The modes of a wait for children. */
export type Mode = "all_ok" | "all" | "any" | "any_ok";

/** The most children of one wait. */
const perWait = 1000;

/** Returns the id of a join of these futures. */
export function joinId(x: Execution, b: Branch, mode: Mode, sources: readonly Source[]): string {
  const lines = sources.map((s) => `${s.childKey()} ${s.firstWaitId()}\n`).join("");
  const id = b.key("join", `join:${mode}:${sha(lines, 6)}`);
  x.unasked.delete(id);
  return id;
}

/** Opens all waits of a join, and returns their ids. */
export function openJoin(x: Execution, id: string, mode: Mode, sources: readonly Source[]): string[] {
  const ids: string[] = [];
  const children = sources.filter((s): s is ChildSource => s instanceof ChildSource && !s.fault && !notAtServer(x, s));
  for (const stall of [false, true]) {
    const keys = children.filter((c) => c.onStall === stall).map((c) => c.key);
    for (let i = 0; i < keys.length; i += perWait) {
      const wait = `${id}${stall ? ".stall" : ""}${i > 0 ? `.${i / perWait + 1}` : ""}`;
      const part = keys.slice(i, i + perWait);
      x.room(part.length);
      x.batch.waits.push({ id: wait, type: "children", mode, keys: part, timeout: "never", ...(stall ? { on_stall: true } : {}) });
      x.room(1);
      ids.push(wait);
    }
  }
  for (const s of sources) if (!(s instanceof ChildSource)) ids.push(s.open());
  return ids;
}

/** Tells whether the server does not have a child in this run: it was refused, or has ended in the original. */
function notAtServer(x: Execution, s: ChildSource): boolean {
  return x.facts.endedBefore.has(s.key) || x.facts.items.some((i) => i.type === "child" && i.seq === 0 && i.name === s.key);
}

/** Returns the result of a future that has ended, or throws its error. */
export async function resultOf(x: Execution, s: Source, ending: Ending): Promise<unknown> {
  const fact = ending.take();
  if (ending.error) throw ending.error;
  return await readResult(x, s, fact);
}

async function readResult(x: Execution, s: Source, fact: Fact | undefined): Promise<unknown> {
  const json = dataOf(x, fact);
  const own = fact !== undefined && (fact.type === "signal" || fact.type === "message");
  const misfit = (why: string) =>
    follows(new Failure("invalid_result", `${s.text()}: what came does not fit the type for which the agent asks: ${why}`, { permanent: true }), () => fact?.frame.key);
  if (fact && (own ? fact.unfit === true : x.facts.unfit.has(s.unfitKey()))) throw misfit("an earlier execution could not read it");
  try {
    const huge = findHuge(json);
    if (huge !== undefined) throw new Misfit(`${huge} is an integer beyond 2^53, which JavaScript would round`);
    return await read(s.schema, structuredClone(json));
  } catch (err) {
    if (!(err instanceof Misfit)) throw err;
    if (fact === undefined) throw misfit(err.message);
    if (fact.at !== Infinity && (own || x.left(s.branch)))
      throw x.hold(
        "nondeterminism",
        `${s.unfitKey()}: an earlier release could read what came, and this one can't: ${err.message}`,
      );
    if (own) {
      fact.unfit = true;
      const written = x.unsent().flatMap((b) => b.frame.in).find((i) => i.seq === fact.seq);
      if (written) written.unfit = true;
    } else {
      x.facts.unfit.add(s.unfitKey());
      x.batch.frame.unfit.push(s.unfitKey());
    }
    throw misfit(err.message);
  }
}

/** Waits for one future. */
export async function joinOne(x: Execution, b: Branch, s: Source): Promise<unknown> {
  x.goOn(b);
  if (s instanceof ChildSource) {
    const id = joinId(x, b, "all_ok", [s]);
    const ending = await x.wait(b, `${s.text()} would be waited for`, () => wrap(s.ended(id)), () => openJoin(x, id, "all_ok", [s]));
    b.point = `child ${s.key}${ending.ok ? "" : "!"}`;
    return await resultOf(x, s, ending);
  }
  const take = () => {
    const e = s.ended("");
    e?.take();
    return wrap(e);
  };
  const ending = await x.wait(b, `${s.waitId()}: the journal does not have the end of this wait`, take, () => [s.open()]);
  b.point = `wait ${s.waitId()}${ending.ok ? "" : "!"}`;
  return await resultOf(x, s, s.ended("") ?? ending);
}

function wrap<T>(v: T | undefined): { value: T } | undefined {
  return v === undefined ? undefined : { value: v };
}

/** Waits for all futures, or for the first that does not complete. Its error is thrown. */
export async function joinAll(x: Execution, b: Branch, sources: readonly Source[]): Promise<unknown[]> {
  x.goOn(b);
  if (sources.length === 0) return [];
  const id = joinId(x, b, "all_ok", sources);
  const look = (): { value: { failed: Ending | undefined; ends: (Ending | undefined)[] } } | undefined => {
    const ends = sources.map((s) => s.ended(id));
    const failed = earliest(ends.filter((e): e is Ending => e !== undefined && !e.ok));
    if (failed) return { value: { failed, ends } };
    return ends.every((e) => e !== undefined) ? { value: { failed: undefined, ends } } : undefined;
  };
  const got = await x.wait(b, `${id}: the journal does not have this join`, look, () => openJoin(x, id, "all_ok", sources));
  b.point = `wait ${id}${got.failed ? "!" : ""}`;
  if (got.failed?.error) throw got.failed.error;
  const out: unknown[] = [];
  for (const [i, s] of sources.entries()) out.push(await resultOf(x, s, got.ends[i] as Ending));
  return out;
}

function earliest(ends: Ending[]): Ending | undefined {
  return ends.reduce<Ending | undefined>((a, e) => (a === undefined || e.order < a.order ? e : a), undefined);
}

/** What has become of many. */
export interface Settled<T> {
  results: (T | undefined)[];
  errors: (Error | undefined)[];
  completed: number;
  failed: number;
  timedOut: number;
  cancelled: number;
}

/** Waits until all futures have ended. */
export async function joinAllSettled(x: Execution, b: Branch, sources: readonly Source[]): Promise<Settled<unknown>> {
  x.goOn(b);
  const out: Settled<unknown> = { results: [], errors: [], completed: 0, failed: 0, timedOut: 0, cancelled: 0 };
  if (sources.length === 0) return out;
  const id = joinId(x, b, "all", sources);
  const look = () => {
    const ends = sources.map((s) => s.ended(id));
    return ends.every((e) => e !== undefined) ? { value: ends as Ending[] } : undefined;
  };
  const ends = await x.wait(b, `${id}: the journal does not have this join`, look, () => openJoin(x, id, "all", sources));
  b.point = `wait ${id}`;
  for (const [i, s] of sources.entries()) await settle(x, s, ends[i] as Ending, out);
  return out;
}

/** Adds how a future has ended. */
export async function settle(x: Execution, s: Source, ending: Ending, out: Settled<unknown>): Promise<void> {
  try {
    out.results.push(await resultOf(x, s, ending));
    out.errors.push(undefined);
    out.completed++;
  } catch (err) {
    if (x.defect) throw err;
    out.results.push(undefined);
    out.errors.push(err as Error);
    const how = (err as { outcome?: string }).outcome;
    if (how === "timeout") out.timedOut++;
    else if (how === "cancelled") out.cancelled++;
    else out.failed++;
  }
}

/** A choice that was made. */
export interface Chosen {
  id: string;
  /** The indexes of those that were waited for, in the order in which they came. */
  first: number[];
  /** Whether the time limit of a race was first. */
  timedOut: boolean;
}

/** Waits for the first k futures: that end, or that complete. The choice is recorded. */
export async function choose(x: Execution, b: Branch, mode: "any" | "any_ok", k: number, sources: readonly Source[], limit?: number): Promise<Chosen> {
  x.goOn(b);
  const id = joinId(x, b, mode, sources);
  const all: Source[] = [...sources];
  if (limit !== undefined) all.push(raceTimer(x, b, id, limit));
  const recorded = x.facts.winners.get(id);
  if (recorded) return replayChoice(x, b, id, mode, k, recorded, all, sources.length);
  const attempt = () => firstOf(x, id, mode, k, all);
  const round = () => (mode === "any_ok" ? completedOf(id, all).length : 0);
  const open = () => {
    const n = round();
    const done = new Set(n === 0 ? [] : completedOf(id, all));
    return openJoin(x, n === 0 ? id : `${id}/${n}`, mode, all.filter((s) => !done.has(s)));
  };
  const got = await x.wait(b, `${id}: the journal does not have this choice`, attempt, open);
  x.checkOrder(b, `${id}: the journal does not have this choice`);
  for (const s of got.first) s.ended(id)?.take();
  for (const s of all) if (!got.first.includes(s)) s.lose(false);
  const choice: Choice = {};
  if (got.first.length > 0) choice.first = got.names;
  if (got.over.length > 0) choice.over = got.over;
  x.facts.winners.set(id, choice);
  x.batch.frame.winners[id] = choice;
  return finishChoice(x, b, id, k, got.first, all, sources.length);
}

function raceTimer(x: Execution, b: Branch, id: string, limit: number): TimerSource {
  const bare = id.slice(b.prefix.length);
  const base = `${b.prefix}race:${bare}`;
  x.ask(b, "wait", base);
  return new TimerSource(x, b, base, timerEnd(x, base, limit));
}

/** Returns when a timer ends that begins now, or that an earlier execution has begun. */
export function timerEnd(x: Execution, id: string, us: number): number {
  const at = x.facts.timers.get(id) ?? x.session.now() + us;
  if (!x.facts.timers.has(id)) {
    x.facts.timers.set(id, at);
    x.batch.frame.timers[id] = at;
  }
  return at;
}

function completedOf(id: string, sources: readonly Source[]): Source[] {
  const ends = sources.map((s) => ({ s, e: s.ended(id) })).filter((p) => p.e?.ok === true);
  return ends.sort((a, c) => (a.e as Ending).order - (c.e as Ending).order).map((p) => p.s);
}

function firstOf(x: Execution, id: string, mode: "any" | "any_ok", k: number, all: readonly Source[]) {
  const ended = all.map((s) => ({ s, e: s.ended(id) })).filter((p): p is { s: Source; e: Ending } => p.e !== undefined);
  ended.sort((a, c) => a.e.order - c.e.order);
  const wanted = mode === "any" ? ended : ended.filter((p) => p.e.ok);
  const possible = mode === "any" || all.length - ended.length + wanted.length >= k;
  if (wanted.length < k && possible) return undefined;
  const first = wanted.slice(0, k);
  const last = first.length < k ? Infinity : (first.at(-1) as { e: Ending }).e.order;
  const over = mode === "any" ? [] : ended.filter((p) => !p.e.ok && p.e.order < last);
  return { value: { first: first.map((p) => p.s), names: first.map((p) => p.s.name()), over: over.map((p) => p.s.name()) } };
}

function replayChoice(x: Execution, b: Branch, id: string, mode: string, k: number, choice: Choice, all: readonly Source[], n: number): Chosen {
  const first: Source[] = [];
  for (const name of choice.first ?? []) {
    const s = all.find((f) => f.name() === name);
    if (!s) throw x.hold("nondeterminism", `${id}: the journal has a choice of ${name}, which is none of the futures now; announce the change with version`);
    first.push(s);
  }
  if (mode === "any_ok" && first.length !== k && first.length > 0 && all.length - (choice.over?.length ?? 0) >= k)
    throw x.hold("nondeterminism", `${id}: the journal has a choice of ${first.length} futures, and the agent asks for ${k} now; announce the change with version`);
  for (const s of all) if (!first.includes(s)) s.lose(true);
  return finishChoice(x, b, id, k, first, all, n);
}

function finishChoice(x: Execution, b: Branch, id: string, k: number, first: Source[], all: readonly Source[], n: number): Chosen {
  const indexes = first.map((s) => all.indexOf(s));
  const timedOut = indexes.some((i) => i >= n);
  b.point = `wait ${id}${timedOut || first.length < k ? "!" : ""}`;
  if (timedOut) {
    const fact = x.facts.items.find((i) => i.wait === first[0]?.waitId());
    throw follows(new WaitTimeout("none has ended in time"), () => fact?.frame.key);
  }
  if (first.length >= k) return { id, first: indexes, timedOut };
  const ends = all.map((s) => s.ended(id));
  const errors = ends.map((e) => e?.error).filter((e): e is Error => e !== undefined);
  const last = x.facts.items.filter((i) => i.type === "child" && all.some((s) => s.childKey() === i.name)).sort((a, c) => c.order - a.order)[0];
  throw follows(new AllTasksFailed(errors), () => last?.frame.key);
}
