// Limits of steps: what a step takes before its function is called.
//
// A step asks the server for slots of a concurrency, or for units of a rate. The commit with its entry gives the
// slots back. The journal has nothing of that: a recorded step takes nothing. A wait of up to 2 s is waited out in
// place; for a longer one the run is suspended on a wait of the type limit.

import type { Wait } from "./batch.js";
import type { Branch } from "./branch.js";
import { Cancelled, Failure, clean } from "./errors.js";
import type { Execution } from "./execution.js";
import type { Json } from "./json.js";
import { durationText, micros, nameFault, type Duration } from "./names.js";

/** What a step takes of a limit of the tenant. */
export interface StepLimit {
  /** The name of the limit. */
  name: string;
  /** The key, if the limit has a count of its own for each key. */
  key?: string;
  /** What the step takes of a rate, one unless given. */
  units?: number;
}

/** A limit of a step as the server reads it. */
export type LimitTake = { name: string; key?: string; units?: number };

/** The answer to a step that asks for its limits. */
export interface StepTaken {
  taken: boolean;
  /** When there may be room, in milliseconds, if the server knows it. */
  retry_ms?: number;
}

/** The closure of a limit in a commit. */
export type LimitClosure = { name: string; key?: string; closed_for: string; reason?: string };

/** How long a step waits in place, how often it asks meanwhile, and how often while other branches work. */
const patience = 2_000_000;
const pause = 100;
const look = 1000;
const most = { limits: 4, key: 200, units: 1_000_000, closed: 366 * 864e8 };

/** Says what is wrong with the name of a limit. */
function limitNameFault(name: unknown): string | undefined {
  const bare = typeof name === "string" && name.startsWith("_") ? `x${name.slice(1)}` : name;
  if (typeof name === "string" && name.startsWith("kind:")) return `${name} begins with kind:, as limits of kinds do`;
  return nameFault(bare, 200);
}

function keyFault(key: unknown): string | undefined {
  if (typeof key !== "string") return `the key is a ${typeof key}; it has to be a text`;
  if (Buffer.byteLength(key) > most.key) return `the key has more than ${most.key} bytes`;
  return /[\0-\x1f]/.test(key) ? "the key has a control character" : undefined;
}

/** Returns the limits of a step as the server reads them. Wrong ones are a misuse, and a wrong key an error. */
export function takesOf(x: Execution, key: string, o: StepLimit | readonly StepLimit[] | undefined): LimitTake[] {
  if (o === undefined) return [];
  const list = Array.isArray(o) ? (o as readonly StepLimit[]) : [o as StepLimit];
  const wrong = (text: string) => x.misuse(`the step ${key}: its limit: ${text}`);
  if (list.length < 1 || list.length > most.limits)
    throw wrong(`${list.length} are given; a step has 1 to ${most.limits}`);
  return list.map((l, i) => {
    if (typeof l !== "object" || l === null) throw wrong(`it is a ${typeof l}; write {name, key, units}`);
    const unknown = Object.keys(l).find((f) => !["name", "key", "units"].includes(f));
    if (unknown !== undefined) throw wrong(`it has no option ${unknown}; there are name, key and units`);
    const fault = limitNameFault(l.name);
    if (fault !== undefined) throw wrong(fault);
    if (list.findIndex((m) => m.name === l.name) < i) throw wrong(`${l.name} is named twice`);
    const { units, key: of } = l;
    if (units !== undefined && (!Number.isInteger(units) || units < 1 || units > most.units))
      throw wrong(`${String(units)} units of ${l.name}; they are a whole number from 1 to ${most.units}`);
    const bad = of === undefined ? undefined : keyFault(of);
    if (bad !== undefined)
      throw new Failure("invalid", `step ${key}: the limit ${l.name}: ${bad}`, { permanent: true });
    return { name: l.name, ...(of ? { key: of } : {}), ...(units === undefined ? {} : { units }) };
  });
}

/** Returns the closure of a limit for a time. Wrong values are an error. */
export function closureOf(name: string, span: Duration, o: { key?: string; reason?: string }): LimitClosure {
  const us = micros(span);
  const fault = limitNameFault(name) ?? (o.key === undefined ? undefined : keyFault(o.key));
  if (fault !== undefined) throw new Failure("invalid", `closeLimit: ${fault}`, { permanent: true });
  if (us < 1000 || us > most.closed)
    throw new Failure("invalid", `closeLimit: ${span} is no time from 1 ms to 366 days`, { permanent: true });
  const reason = o.reason === undefined ? {} : { reason: clean(o.reason).slice(0, 1000) };
  return { name, ...(o.key ? { key: o.key } : {}), closed_for: durationText(us), ...reason };
}

/** The items of a parallel that are executed at once. When all of them wait, the run is suspended on all waits. */
export class Crew {
  /** The waits of the items that have waited for long. */
  readonly stuck = new Map<string, Wait>();
  /** How many ask at present. */
  asking = 0;
  /** One of them suspends the run, or tries to. */
  parked = false;
  constructor(
    /** How many work, or wait. */
    public members: number,
  ) {}
}

/** Takes what a step needs of its limits, and waits for it. */
export async function admit(x: Execution, b: Branch, key: string, takes: LimitTake[], crew?: Crew): Promise<void> {
  if (takes.length === 0) return;
  const bare = key.slice(b.prefix.length);
  const id = `${b.prefix}limit:${bare}:${x.grant.epoch}`;
  const wait: Wait = { id, type: "limit", name: key, limits: takes as unknown as Json, timeout: "never" };
  try {
    for (const began = x.session.now(); ; ) {
      if (x.ended) await new Promise<never>(() => undefined);
      if (x.cancelled) throw new Cancelled();
      if (x.defect) throw x.defect;
      const got = crew?.parked ? undefined : await ask(x, key, takes, 0, crew);
      if (got?.taken) return;
      const next = (got?.retry_ms ?? 0) > 0 ? (got?.retry_ms as number) : pause;
      if (next * 1000 <= patience - (x.session.now() - began)) await x.rest(next);
      else await room(x, b, wait, crew);
    }
  } finally {
    crew?.stuck.delete(key);
  }
}

async function ask(x: Execution, key: string, takes: LimitTake[], n: number, crew?: Crew): Promise<StepTaken> {
  if (crew) crew.asking++;
  try {
    const got = await x.session.limits(key, takes, n);
    if (got.taken) crew?.stuck.delete(key);
    return got;
  } finally {
    if (crew) crew.asking--;
  }
}

/** Suspends the run on the wait of a step, or waits for a while if others of the run work. */
async function room(x: Execution, b: Branch, wait: Wait, crew?: Crew): Promise<void> {
  if (!crew) return await x.waitForRoom(b, () => [wait]);
  crew.stuck.set(wait.name as string, wait);
  if (crew.stuck.size < crew.members || crew.asking > 0 || crew.parked) return await x.rest(look);
  crew.parked = true;
  try {
    const inOrder = (l: Wait, r: Wait) => ((l.name as string) < (r.name as string) ? -1 : 1);
    await x.waitForRoom(b, () => [...crew.stuck.values()].sort(inOrder));
  } finally {
    crew.parked = false;
  }
}

/** Takes units of rates for a further try of a step that has its slots. It waits in place. */
export async function admitAgain(x: Execution, key: string, takes: LimitTake[], n: number): Promise<void> {
  while (takes.length > 0 && !x.cancelled && !x.ended) {
    const got = await ask(x, key, takes, n).catch((err: unknown): StepTaken => {
      if (err instanceof Failure) return { taken: true }; // the function finds out what is wrong
      throw err;
    });
    if (got.taken) return;
    await x.rest(Math.min(Math.max(got.retry_ms ?? 0, pause), look));
  }
}
