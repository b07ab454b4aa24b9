// The recorded entries of a run, read once when an execution begins.

import { Defect } from "./errors.js";
import { isObject, parse, print, type Json } from "./json.js";
import { branchOf, firstWait, localOf } from "./names.js";

/** An entry of the journal. */
export interface Entry {
  key: string;
  value: Json;
}

/** An error as the journal has it. */
export interface RecordedError {
  code: string;
  message: string;
}

/** The entry of a step. */
export interface StepEntry {
  aside?: boolean;
  of?: string;
  ignored?: string[];
  as?: string[];
  ok?: Json;
  error?: RecordedError;
}

/** An item of the inbox as a frame has it. */
export interface Item {
  seq: number;
  type: string;
  wait?: string;
  name?: string;
  run?: string;
  outcome?: string;
  data?: Json;
  failure?: RecordedError;
  apart?: boolean;
  quoted?: boolean;
  unfit?: boolean;
}

/** An item of the inbox as a grant has it. */
export interface InboxItem {
  seq: number;
  type: string;
  wait_id?: string;
  name?: string;
  run_id?: string;
  outcome?: string;
  data?: Json;
  message_seq?: number;
}

/** An item that has become a fact, with its place among all facts. */
export interface Fact extends Item {
  order: number;
  /** The frame that has it; of one that is not written yet, the frame that will have it. */
  frame: { key: string };
  /** The index of that frame in the journal; beyond all of them if it is new. */
  at: number;
}

/** The choice among futures. */
export interface Choice {
  first?: string[];
  over?: string[];
}

/** How far a map is. */
export interface Mapped {
  n: number;
  sum: string;
  stopped?: boolean;
}

/** Something that is recorded, and that a call has to ask for. */
export interface Expected {
  id: string;
  /** A text about it for people. */
  text: string;
  name: string;
  branch: string;
  at: number;
}

/** The keys with which an entry of the library begins. */
const known = /^_(frame|said|data|saga|undo|undone|token|history|newest|late|withdraw):/;

/** All that the journal says. */
export class Facts {
  /** The entries by their keys. */
  readonly entries = new Map<string, Json>();
  readonly index = new Map<string, number>();
  readonly items: Fact[] = [];
  readonly seqs = new Set<number>();
  readonly spawned = new Map<string, string>();
  readonly branches = new Set<string>();
  readonly versions = new Map<string, number>();
  readonly now = new Map<string, number>();
  readonly uuid = new Map<string, string>();
  readonly timers = new Map<string, number>();
  readonly unfit = new Set<string>();
  readonly opened = new Set<string>();
  readonly closed = new Set<string>();
  readonly cancelled = new Set<string>();
  readonly winners = new Map<string, Choice>();
  readonly mapped = new Map<string, Mapped>();
  readonly said = new Map<string, string[]>();
  /** The reports of points that the code does not have any more. They are found at any point. */
  saidBefore: string[] = [];
  /** Children that have ended in the original of a retry. */
  readonly endedBefore = new Set<string>();
  /** The fields of the input that the first execution has ignored. */
  ignored: string[] | undefined;
  /** Times, ids and reports that a release before docs/journal.md has recorded without names. */
  readonly oldTimes: number[] = [];
  readonly oldUuids: string[] = [];
  oldMessages = 0;
  oldLines = 0;
  /** What calls have to ask for, by branch. */
  readonly expected = new Map<string, Map<string, Expected>>();
  size = 0;
  private readonly own = new Set<string>();
  private readonly ownMaps = new Map<string, number>();

  /** Tells whether the run is a retry that begins with the journal of another one. */
  get isRetry(): boolean {
    return this.firstEpoch > 0;
  }

  /** Tells whether this run has spawned a child, and not its original. */
  spawnedHere(key: string): boolean {
    const map = /^(.*#\d+)\/(\d+)$/s.exec(key);
    return this.own.has(key) || (map !== null && Number(map[2]) < (this.ownMaps.get(map[1] as string) ?? 0));
  }

  constructor(
    entries: readonly Entry[],
    readonly firstEpoch: number,
  ) {
    for (const e of entries) this.add(e);
    for (const item of this.items) if (item.type === "child" && item.name && this.fromOriginal(item.frame.key)) this.endedBefore.add(item.name);
  }

  private fromOriginal(frame: string): boolean {
    return Number(frame.slice("_frame:".length).split(".")[0]) < this.firstEpoch;
  }

  private add(e: Entry): void {
    const at = this.size++;
    this.entries.set(e.key, e.value);
    this.index.set(e.key, at);
    if (isObject(e.value) && typeof e.value.v === "number" && e.value.v > 1) throw tooNew(e.key, e.value.v);
    if (e.key.startsWith("_") && !known.test(e.key))
      throw new Defect("nondeterminism", `${e.key}: the journal has an entry that this release of the library does not know`);
    if (e.key.startsWith("_frame:")) return this.addFrame(e, at);
    if (e.key.startsWith("_said:")) return this.addSaid(e);
    if (e.key.startsWith("_history:")) return this.expect("history", e.key, localOf(e.key), at, branchOf(e.key));
    if (e.key.startsWith("_newest:")) return this.expect("newest", e.key, localOf(e.key), at, branchOf(e.key));
    if (e.key.startsWith("_saga:")) {
      if (isObject(e.value) && e.value.ok === true && e.value.aside !== true) this.expect("saga", e.key, nameOf(localOf(e.key)), at, branchOf(e.key));
      return;
    }
    if (e.key.startsWith("_late:") && isObject(e.value) && typeof e.value.seq === "number") this.seqs.add(e.value.seq);
    if (e.key.startsWith("_")) return;
    if (!isObject(e.value)) throw damaged(e.key);
    const step = e.value as StepEntry;
    if (step.ignored !== undefined) this.ignored = step.ignored;
    const branch = branchOf(e.key);
    this.expect("step", e.key, nameOf(localOf(e.key)), at, step.aside === true && !/#\d+\/\d+$/.test(e.key) ? `aside ${branch}` : branch);
  }

  private addSaid(e: Entry): void {
    if (!isObject(e.value)) throw damaged(e.key);
    for (const [point, digests] of Object.entries(e.value)) {
      const list = this.said.get(point) ?? [];
      for (let i = 0; i < (digests as string).length; i += 8) list.push((digests as string).slice(i, i + 8));
      this.said.set(point, list);
    }
  }

  private addFrame(e: Entry, at: number): void {
    if (!isObject(e.value)) throw damaged(e.key);
    const f = e.value as Record<string, never>;
    const own = !this.fromOriginal(e.key);
    const aside = new Set<string>((f.aside as string[] | undefined) ?? []);
    for (const item of (f.in as Item[] | undefined) ?? []) this.addItem(item, e.key, at);
    for (const [key, digest] of entriesOf<string>(f.spawned)) {
      this.spawned.set(key, digest);
      if (own) this.own.add(key);
      this.expect("child", key, nameOf(localOf(key)), at, aside.has(key) ? `aside ${branchOf(key)}` : branchOf(key));
    }
    for (const key of listOf(f.branches)) {
      this.branches.add(key);
      this.expect("branch", key, nameOf(localOf(key)), at, branchOf(key));
    }
    for (const [name, n] of entriesOf<number>(f.versions)) if (!this.versions.has(name)) this.versions.set(name, n);
    for (const [key, us] of entriesOf<number>(f.now)) {
      this.now.set(key, us);
      this.expect("time", key, nameOf(localOf(key)), at, branchOf(key));
    }
    for (const [key, id] of entriesOf<string>(f.uuid)) {
      this.uuid.set(key, id);
      this.expect("uuid", key, nameOf(localOf(key)), at, branchOf(key));
    }
    for (const [id, us] of entriesOf<number>(f.timers)) if (own) this.timers.set(id, us);
    for (const [id, ns] of entriesOf<number>(f.due)) if (own) this.timers.set(id, Math.round(Number(ns) / 1000));
    if (f.ignored !== undefined) this.ignored = f.ignored;
    for (const key of listOf(f.unfit)) this.unfit.add(key);
    if (own) for (const id of listOf(f.opened)) this.opened.add(id);
    for (const id of listOf(f.closed)) this.closed.add(id);
    if (own) for (const key of listOf(f.cancelled)) this.cancelled.add(key);
    for (const [id, choice] of entriesOf<Choice>(f.winners)) this.winners.set(id, choice);
    for (const [key, m] of entriesOf<Mapped>(f.mapped)) {
      if (!this.mapped.has(key)) this.expect("map", key, nameOf(localOf(key)), at, branchOf(key));
      this.mapped.set(key, m);
      if (own) this.ownMaps.set(key, m.n);
    }
    this.oldTimes.push(...(((f.times as number[] | undefined) ?? []).map((ns) => Math.floor(Number(ns) / 1000))));
    this.oldUuids.push(...((f.uuids as string[] | undefined) ?? []));
    this.oldMessages += Number(f.messages ?? 0);
    this.oldLines += Number(f.lines ?? 0);
  }

  private addItem(item: Item, frame: string, at: number): void {
    if (item.seq > 0) this.seqs.add(item.seq);
    this.items.push({ ...item, order: this.items.length, frame: { key: frame }, at });
    this.expectWait(item.wait, item.type, at);
  }

  /** Expects that the agent asks for a wait that is over. */
  expectWait(id: string | undefined, type: string, at: number): void {
    if (id === undefined || id === "" || type === "wait" || type === "child") return;
    const kind = waitKind(id);
    if (kind === "join" || kind === "map" || id.startsWith("_again:")) return;
    const first = firstWait(id);
    this.expect("wait", first, nameOf(localOf(first)), at, branchOf(first));
  }

  /** What calls of a branch have to ask for. */
  of(branch: string): Map<string, Expected> {
    let of = this.expected.get(branch);
    if (!of) this.expected.set(branch, (of = new Map()));
    return of;
  }

  private expect(sort: string, key: string, name: string, at: number, branch: string): void {
    const of = this.of(branch);
    const id = `${sort} ${key}`;
    if (!of.has(id)) of.set(id, { id, text: `the ${sort === "step" || sort === "child" ? sort : sort === "time" ? "time" : sort} ${key}`, name, branch, at });
  }

  /** Returns the content of an item, which may be an entry of its own. */
  data(item: Item): Json | undefined {
    if (item.apart !== true) return item.data;
    const v = this.entries.get(`_data:${item.seq}`);
    if (v === undefined) throw damaged(`_data:${item.seq}`);
    return item.quoted === true ? parse(v as string) : v;
  }
}

/** Returns the sort of a wait by its id, without the branch. */
export function waitKind(id: string): string {
  return localOf(id).split(":")[0] ?? "";
}

/** Tells whether a step, child, wait or other thing has a name. A wait has its name with and without its type. */
export function hasName(sort: string, key: string, name: string): boolean {
  const own = nameOf(localOf(key));
  if (own === name || (sort === "wait" && own.replace(/^[a-z]+:/, "") === name)) return true;
  // What is in a branch has the name of the branch, too.
  for (let branch = branchOf(key); branch !== ""; ) {
    const outer = branchOf(branch.slice(0, -2));
    if (nameOf(branch.slice(outer.length, -2)) === name) return true;
    branch = outer;
  }
  return false;
}

/** Returns the name in a key: the part before its last number. */
function nameOf(local: string): string {
  return local.replace(/#\d+(\/\d+)?$/, "");
}

function entriesOf<T>(v: unknown): [string, T][] {
  return v === undefined ? [] : (Object.entries(v as object) as [string, T][]);
}

function listOf(v: unknown): string[] {
  return (v as string[] | undefined) ?? [];
}

function tooNew(key: string, v: number): Defect {
  return new Defect("nondeterminism", `${key}: the journal is of version ${v}, and this release of the library reads version 1; a later release goes on with the run`);
}

function damaged(key: string): Defect {
  return new Defect("nondeterminism", `${key}: the entry is damaged, or has another form than docs/journal.md says`);
}

/** Makes an item of a frame out of one of the inbox. */
export function itemOf(i: InboxItem): Item {
  const out: Item = { seq: i.seq, type: i.type };
  if (i.wait_id !== undefined && i.wait_id !== "") out.wait = i.wait_id;
  if (i.name !== undefined && i.name !== "") out.name = i.name;
  if (i.run_id !== undefined && i.run_id !== "") out.run = i.run_id;
  if (i.outcome !== undefined && i.outcome !== "") out.outcome = i.outcome;
  if (i.type === "callback" && isObject(i.data)) {
    const answer = i.data as { result?: Json; error?: RecordedError };
    if (answer.error) out.failure = answer.error;
    else if (answer.result !== undefined) out.data = answer.result;
  } else if (i.data !== undefined) out.data = i.data;
  return out;
}

/** Tells whether the content of an item is written apart, and how it is written. */
export function apart(data: Json | undefined, depth: (v: unknown) => number): "apart" | "quoted" | undefined {
  if (data === undefined) return undefined;
  const deep = depth(data);
  if (deep > 60) return "quoted";
  return deep > 40 || Buffer.byteLength(print(data)) > 8 << 10 ? "apart" : undefined;
}
