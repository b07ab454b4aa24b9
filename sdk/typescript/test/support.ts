// A server for tests: it answers commits as testdata/journal/README.md says.

import { readFileSync, readdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { isDeepStrictEqual } from "node:util";
import { begin, type AgentFunction, type AgentOptions } from "../src/agent.js";
import type { CommitBody } from "../src/batch.js";
import type { Execution } from "../src/execution.js";
import type { Entry, InboxItem } from "../src/journal.js";
import type { LimitTake, StepTaken } from "../src/limits.js";
import { parse, print, type Json } from "../src/json.js";
import { Refused, type CommitAnswer, type Grant, type Session, type ThreadMessage } from "../src/session.js";

const root = fileURLToPath(new URL("../../../../testdata/journal/", import.meta.url));

export function load<T>(name: string): T {
  return parse(readFileSync(root + name, "utf8")) as T;
}

export function list(folder: string): string[] {
  return readdirSync(root + folder).map((f) => `${folder}/${f}`);
}

/** Lets everything go on that waits for no clock. */
export async function turns(n = 30): Promise<void> {
  for (let i = 0; i < n; i++) await new Promise((resolve) => setImmediate(resolve));
}

export interface Granted {
  epoch: number;
  first_epoch?: number;
  cancel?: boolean;
  journal: Entry[];
  inbox: InboxItem[];
  input?: Json;
  thread?: boolean;
}

export class StorySession implements Session {
  clock = 946684800000000;
  uuids = 0;
  readonly sent: CommitBody[] = [];
  readonly thread: ThreadMessage[] = [];
  /** Returns the refusal of the next commit, if there is one. */
  refuse: (body: CommitBody) => Refused | undefined = () => undefined;
  /** Returns what has come into the inbox meanwhile. */
  news: () => InboxItem[] = () => [];
  completeChildren = false;
  private seq = 0;
  private fresh: InboxItem[] = [];
  execution: Execution | undefined;
  firstEpoch: number | undefined;

  async commit(body: CommitBody): Promise<CommitAnswer> {
    await Promise.resolve();
    body = parse(print(body)) as unknown as CommitBody;
    this.sent.push(body);
    const refusal = this.refuse(body);
    if (refusal) throw refusal;
    for (const m of body.messages ?? []) this.thread.push({ seq: (this.thread.at(-1)?.seq ?? 0) + 1, role: m.role, content: m.content });
    if (this.completeChildren)
      for (const c of body.children ?? []) this.fresh.push({ seq: ++this.seq, type: "child", name: c.key, run_id: `run:${c.key}`, outcome: "completed", data: null });
    const retry = this.firstEpoch === undefined ? "" : `${this.firstEpoch}:`;
    return {
      children: (body.children ?? []).map((c) => ({ key: c.key, run_id: `run:${c.key}` })),
      callbacks: (body.waits ?? []).filter((w) => w.type === "callback").map((w) => ({ wait_id: w.id, token: `token:${retry}${w.id}` })),
    };
  }
  inbox(): Promise<InboxItem[]> {
    const out = [...this.fresh, ...this.news()];
    this.fresh = [];
    return Promise.resolve(out);
  }
  messages(q: { after?: number; before?: number }) {
    const fits = this.thread.filter((m) => (q.after === undefined || m.seq > q.after) && (q.before === undefined || m.seq < q.before));
    const messages = q.before === undefined ? fits : fits.reverse();
    return Promise.resolve({ messages, next_after: messages.at(-1)?.seq ?? 0, next_before: q.before === undefined ? 0 : Math.min(...messages.map((m) => m.seq), 0) });
  }
  activity(): Promise<Json> {
    return Promise.resolve({});
  }
  now(): number {
    return this.clock;
  }
  uuid(): string {
    return `00000000-0000-4000-8000-${String(++this.uuids).padStart(12, "0")}`;
  }
  async sleep(ms: number): Promise<void> {
    this.clock += ms * 1000;
    await turns(2);
  }
  later: (ms: number, f: () => void) => void = () => undefined;
  note(): void {}
  /** Whether limits have room for a step. */
  room: (step: string) => StepTaken = () => ({ taken: true });
  /** What steps have asked for. A question that is repeated is there once. */
  readonly asked: { step: string; limits: LimitTake[]; taken: boolean; try?: number }[] = [];
  async limits(step: string, limits: LimitTake[], again: number): Promise<StepTaken> {
    await Promise.resolve();
    const got = this.room(step);
    const last = this.asked.at(-1);
    const one = { step, limits, taken: got.taken, ...(again > 0 ? { try: again } : {}) };
    if (!isDeepStrictEqual(last, one)) this.asked.push(one);
    return got;
  }

  grant(g: Granted): Grant {
    return {
      run_id: "run", origin_run_id: "run", attempt: 1, kind: "story", ...g,
      ...(g.thread ? { thread_id: "thread" } : {}),
    } as Grant;
  }

  /** Executes an agent once. */
  async execute(f: AgentFunction, options: AgentOptions, g: Granted): Promise<{ execution: Execution; end: string }> {
    this.firstEpoch = g.first_epoch;
    const { execution, end } = begin(f, options, this.grant(g), this);
    this.execution = execution;
    return { execution, end: await end };
  }

  /** The failure with which the last commit ends the run. */
  failure(): { code: string | undefined; defect: boolean } {
    const o = this.sent.at(-1)?.outcome as { type: string; error?: { code: string }; defect?: boolean } | undefined;
    return { code: o?.error?.code, defect: o?.defect === true };
  }
}
