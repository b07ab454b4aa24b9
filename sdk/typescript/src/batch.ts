// A commit in the making: what has become true since the last one was sent.

import type { Choice, Entry, Item, Mapped } from "./journal.js";
import type { Json } from "./json.js";
import type { LimitClosure } from "./limits.js";

/** A child of a commit. */
export type Child = { key: string; kind: string } & Record<string, Json | undefined>;

/** A wait of a commit. */
export type Wait = { id: string; type: string } & Record<string, Json | undefined>;

/** The last word of an execution. */
export type Outcome = { type: string } & Record<string, unknown>;

/** What an execution sends, without the ids of the commit and the run. */
export interface CommitBody {
  journal?: Entry[];
  children?: Child[];
  waits?: Wait[];
  close?: string[];
  cancel?: string[];
  views?: { name: string; value: Json }[];
  messages?: { role: string; content: Json; metadata?: Record<string, string> }[];
  events?: { type: string; data?: Json }[];
  limits?: LimitClosure[];
  ack?: number[];
  cancel_ack?: boolean;
  outcome?: Outcome;
}

/** A frame in the making. */
export class FrameDraft {
  in: Item[] = [];
  spawned: Record<string, string> = {};
  branches: string[] = [];
  versions: Record<string, number> = {};
  now: Record<string, number> = {};
  uuid: Record<string, string> = {};
  timers: Record<string, number> = {};
  ignored: string[] | undefined;
  unfit: string[] = [];
  opened: string[] = [];
  closed: string[] = [];
  winners: Record<string, Choice> = {};
  cancelled: string[] = [];
  mapped: Record<string, Mapped> = {};

  /** Returns the frame without empty fields, or nothing. */
  build(): Json | undefined {
    const out: Record<string, unknown> = {};
    for (const [name, v] of Object.entries(this)) {
      if (v === undefined) continue;
      if (name !== "ignored" && (Array.isArray(v) ? v.length : Object.keys(v as object).length) === 0) continue;
      out[name] = v;
    }
    return Object.keys(out).length > 0 ? (out as Json) : undefined;
  }
}

/** What a commit may have: the server takes 1000 entries and 8 MiB, and an outcome counts as well. */
const largeEntries = 500;
const maxEntries = 998; // without a frame and its reports
const largeBytes = 4 << 20;

/** Says about how many bytes a value has. */
function sizeOf(v: unknown): number {
  if (typeof v === "string") return Buffer.byteLength(v) + 2;
  if (typeof v !== "object" || v === null) return 8;
  let n = 2;
  if (Array.isArray(v)) for (const x of v) n += 1 + sizeOf(x);
  else for (const [name, x] of Object.entries(v)) n += name.length + 4 + sizeOf(x);
  return n;
}

/** What the next commit has. */
export class Batch {
  /** How many entries of each list are counted in bytes. */
  private measured: number[] = [];
  private bytes = 0;

  constructor(
    /** The key of the frame, once it is known. Facts of this batch refer to it. */
    readonly name: { key: string } = { key: "" },
  ) {}

  entries: Entry[] = [];
  frame = new FrameDraft();
  said = new Map<string, string[]>();
  children: Child[] = [];
  waits: Wait[] = [];
  close: string[] = [];
  cancel: string[] = [];
  views = new Map<string, Json>();
  messages: NonNullable<CommitBody["messages"]> = [];
  events: NonNullable<CommitBody["events"]> = [];
  limits: LimitClosure[] = [];
  ack: number[] = [];

  /** Tells whether there is nothing to send. */
  empty(): boolean {
    return (
      this.entries.length + this.said.size + this.children.length + this.waits.length + this.close.length + this.cancel.length === 0 &&
      this.views.size + this.messages.length + this.events.length + this.limits.length + this.ack.length === 0 &&
      this.frame.build() === undefined
    );
  }

  /** Tells whether there is no room for so many entries more, or whether what is to come belongs into another commit. */
  full(more: number): boolean {
    const lists: unknown[][] = [this.entries, this.children, this.waits, this.messages, this.events, this.frame.in];
    lists.forEach((list, i) => {
      for (let at = this.measured[i] ?? 0; at < list.length; at++) this.bytes += sizeOf(list[at]);
      this.measured[i] = list.length;
    });
    let n = this.ack.length + this.close.length + this.cancel.length + this.views.size;
    for (const list of [this.entries, this.children, this.messages, this.events]) n += list.length;
    for (const w of this.waits) n += Math.max(1, Array.isArray(w.keys) ? w.keys.length : 0);
    return n >= largeEntries || n + more > maxEntries || this.bytes >= largeBytes;
  }

  /** Returns a copy to which can be added. */
  copy(): Batch {
    const out = new Batch(this.name);
    out.absorb(this);
    return out;
  }

  /** Adds all that another batch has. */
  absorb(more: Batch): void {
    this.entries.push(...more.entries);
    for (const [field, v] of Object.entries(more.frame)) {
      const to = this.frame as unknown as Record<string, unknown>;
      if (Array.isArray(v)) to[field] = [...((to[field] as unknown[] | undefined) ?? []), ...(v as unknown[])];
      else if (v !== undefined) to[field] = { ...(to[field] as object), ...(v as object) };
    }
    for (const [point, digests] of more.said) this.said.set(point, [...(this.said.get(point) ?? []), ...digests]);
    this.children.push(...more.children);
    this.waits.push(...more.waits);
    this.close.push(...more.close);
    this.cancel.push(...more.cancel);
    for (const [name, v] of more.views) this.views.set(name, v);
    this.messages.push(...more.messages);
    this.events.push(...more.events);
    this.limits.push(...more.limits);
    this.ack.push(...more.ack);
    if (more.name !== this.name) {
      const name = this.name;
      Object.defineProperty(more.name, "key", { get: () => name.key, set: () => undefined });
    }
  }

  /** Builds the commit. The names of its frame and its reports come from next. */
  build(next: (sort: "frame" | "said") => string): CommitBody {
    const journal = [...this.entries];
    if (this.said.size > 0) {
      const value: Record<string, string> = {};
      for (const [point, digests] of this.said) value[point] = digests.join("");
      journal.push({ key: next("said"), value });
    }
    const frame = this.frame.build();
    if (frame !== undefined) {
      this.name.key = next("frame");
      journal.push({ key: this.name.key, value: structuredClone(frame) });
    }
    const out: CommitBody = {};
    if (journal.length > 0) out.journal = journal;
    if (this.children.length > 0) out.children = [...this.children];
    if (this.waits.length > 0) out.waits = [...this.waits];
    if (this.close.length > 0) out.close = [...this.close];
    if (this.cancel.length > 0) out.cancel = [...this.cancel];
    if (this.views.size > 0) out.views = [...this.views].map(([name, value]) => ({ name, value }));
    if (this.messages.length > 0) out.messages = [...this.messages];
    if (this.events.length > 0) out.events = [...this.events];
    if (this.limits.length > 0) out.limits = lastOfEach(this.limits);
    if (this.ack.length > 0) out.ack = [...this.ack];
    return out;
  }
}

/** Of several closures of a limit and key, the last one counts. */
function lastOfEach(list: LimitClosure[]): LimitClosure[] {
  return [...new Map(list.map((c) => [`${c.name}\0${c.key ?? ""}`, c])).values()];
}
