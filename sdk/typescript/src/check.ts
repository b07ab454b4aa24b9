// The check of a release: "perdure builds check -- node worker.js" has the worker replay live runs up to
// where they stand. No step is executed and nothing is written. See docs/releases.md.

import { appendFileSync, readFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { begin } from "./agent.js";
import type { CommitBody } from "./batch.js";
import { Client } from "./client.js";
import type { Entry, InboxItem } from "./journal.js";
import { isObject, parse, type Json } from "./json.js";
import type { Kind } from "./kinds.js";
import type { StepTaken } from "./limits.js";
import { isProblem } from "./problems.js";
import type { CommitAnswer, Grant, Session, ThreadMessage } from "./session.js";

/** What the command asks for, in the environment. */
interface CheckRequest {
  report: string;
  url?: string;
  key?: string;
  ca?: string;
  tenant?: string;
  files?: string[];
  sample?: number;
  at_once?: number;
}

/** All that a replay of a run needs, as GET …/replay and exported files have it. */
interface Replay extends Grant {
  replay_version: number;
  change: number;
  state: string;
  waits?: { id: string; asleep?: boolean }[];
  journal_next?: number;
  inbox_next?: number;
  messages?: ThreadMessage[];
}

/** What a check needs of its worker. */
export interface Checked {
  readonly build: string;
  readonly kinds: ReadonlyMap<string, Kind>;
  /** Calls an agent as an execution does, with the middleware around it. */
  call(kind: Kind, grant: Grant): (ctx: unknown, input: unknown) => Promise<unknown>;
}

type Verdict = "" | "held" | "fails" | "unknown";
type Why = { code: string; message: string };
interface Cause {
  verdict: string;
  kind: string;
  code: string;
  where?: string;
  message: string;
  count: number;
  runs: string[];
}

const variable = "PERDURE_CHECK";
const live = "queued,dispatched,running,suspended,deferred";
const replayTimeout = 30_000;

/** Tells whether perdure builds check has started the program. Worker.run then replays live runs, and returns. */
export function checking(): boolean {
  return Boolean(process.env[variable]);
}

/** Makes the check that the environment asks for, and appends its result to the command's file. */
export async function runCheck(w: Checked): Promise<void> {
  const ask = JSON.parse(process.env[variable] as string) as CheckRequest;
  const tell = (line: object) => appendFileSync(ask.report, `${JSON.stringify(line)}\n`, { flag: "a" });
  tell({ began: true });
  const check = new Check(w, ask);
  try {
    await check.all();
    tell({ ended: true, report: check.report() });
  } catch (err) {
    tell({ ended: true, error: String(err) });
  }
}

class Check {
  private readonly began = Date.now();
  private readonly agents: Map<string, Kind>;
  private readonly causes = new Map<string, Cause>();
  private readonly counts = { runs: 0, held: 0, failed: 0, unknown: 0 };

  constructor(
    private readonly w: Checked,
    private readonly ask: CheckRequest,
  ) {
    this.agents = new Map([...w.kinds].filter(([, k]) => k.class === "agent"));
  }

  async all(): Promise<void> {
    if (this.ask.files?.length) {
      for (const file of this.ask.files) await this.file(file);
      return;
    }
    const { url = "", key = "", tenant, ca } = this.ask;
    const client = new Client({ url, key, ...(tenant ? { tenant } : {}), ...(ca ? { ca: readFileSync(ca, "utf8") } : {}) });
    try {
      for (const kind of [...this.agents.keys()].sort()) await this.kind(client, kind);
    } finally {
      client.close();
    }
  }

  private async kind(client: Client, kind: string): Promise<void> {
    const { sample = 0 } = this.ask;
    const atOnce = this.ask.at_once || 4 * availableParallelism();
    const chosen: string[] = [];
    const busy = new Set<Promise<void>>();
    const run = async (id: string) => {
      const done: Promise<void> = this.run(client, id).finally(() => busy.delete(done));
      busy.add(done);
      if (busy.size >= atOnce) await Promise.race(busy);
    };
    let seen = 0;
    for await (const r of client.list({ kind, status: live, limit: 200 })) {
      // Each run of the list has the same chance to be in the sample.
      const at = sample > 0 ? (chosen.length < sample ? chosen.length : Math.floor(Math.random() * (seen + 1))) : -1;
      seen++;
      if (sample <= 0) await run(r.id);
      else if (at < sample) chosen[at] = r.id;
    }
    for (const id of chosen) await run(id);
    await Promise.all(busy);
  }

  private async run(client: Client, id: string): Promise<void> {
    try {
      const r = await readReplay(client, id);
      if (!["completed", "failed", "cancelled", "timeout"].includes(r.state)) await this.judge(r);
    } catch (err) {
      if (isProblem(err, "not_found")) return; // it has ended and was removed
      if (!isProblem(err, "wrong_state")) throw err;
      this.add("unknown", { run_id: id, kind: "" }, { code: err.code, message: err.message });
    }
  }

  private async file(name: string): Promise<void> {
    const r = parse(readFileSync(name, "utf8")) as unknown as Replay;
    if (!isObject(r) || !r.run_id || !r.kind) throw new Error(`${name} is no exported journal: perdure journal RUN --export FILE writes one`);
    if (r.replay_version !== 1) throw new Error(`${name} has version ${r.replay_version}, and this library reads version 1`);
    if (!this.agents.has(r.kind)) throw new Error(`${name}: it is a run of the kind ${r.kind}, and this worker has no such agent`);
    await this.judge(r);
  }

  private async judge(r: Replay): Promise<void> {
    const kind = this.agents.get(r.kind) as Kind;
    const session = new CheckSession(r);
    const { execution } = begin(this.w.call(kind, r) as never, kind.options, { ...r, cancel: r.cancel === true, origin_run_id: r.origin_run_id || r.run_id }, session);
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<[Verdict, Why]>((resolve) => {
      const message = `its replay did not end in ${replayTimeout / 1000} s: does the function wait for something that a step does?`;
      timer = setTimeout(() => resolve(["unknown", { code: "wait_timeout", message }]), replayTimeout);
    });
    const [verdict, why] = await Promise.race([session.verdict, late]);
    clearTimeout(timer);
    execution.lose();
    this.add(verdict, r, why);
  }

  private add(verdict: Verdict, r: { run_id: string; kind: string }, why: Why): void {
    const { counts } = this;
    counts.runs++;
    if (verdict === "") return;
    counts[verdict === "fails" ? "failed" : verdict]++;
    const key = [verdict, r.kind, why.code, (why.message.split("\n")[0] as string).replace(/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9]+/g, "#")].join("\n");
    let c = this.causes.get(key);
    if (!c) {
      if (this.causes.size >= 1000) return;
      const at = why.code === "nondeterminism" ? why.message.indexOf(": ") : -1;
      c = { verdict, kind: r.kind, code: why.code, ...(at > 0 ? { where: why.message.slice(0, at) } : {}), message: why.message.slice(at > 0 ? at + 2 : 0), count: 0, runs: [] };
      this.causes.set(key, c);
    }
    c.count++;
    if (c.runs.length < 100) c.runs.push(r.run_id);
  }

  report(): Record<string, unknown> {
    const causes = [...this.causes.values()].sort((a, b) => b.count - a.count || (a.kind < b.kind ? -1 : 1));
    return { build: this.w.build, kinds: [...this.agents.keys()].sort(), ...this.counts, causes, ms: Date.now() - this.began };
  }
}

/** Reads a run with its whole journal and inbox, and what it has read of its thread. */
async function readReplay(client: Client, id: string): Promise<Replay> {
  const path = `/api/v1/runs/${encodeURIComponent(id)}/replay`;
  for (let tries = 1; ; tries++) {
    const r = await client.read<Replay>(path);
    let same = true;
    while (same && (r.journal_next || r.inbox_next)) {
      const part = await client.read<Replay>(path, { journal_after: r.journal_next || undefined, inbox_after: r.inbox_next || undefined });
      same = part.change === r.change;
      r.journal.push(...((part.journal ?? []) as Entry[]));
      r.inbox.push(...((part.inbox ?? []) as InboxItem[]));
      r.journal_next = part.journal_next ?? 0;
      r.inbox_next = part.inbox_next ?? 0;
    }
    if (same || tries >= 5) {
      r.journal ??= [];
      r.inbox ??= [];
      r.messages = [];
      if (r.thread_id && r.journal.some((e) => /^_(history|newest):/.test(e.key))) for await (const m of client.messages(r.thread_id)) r.messages.push(m);
      return r;
    }
  }
}

/** The host of a replay: nothing is sent, and where something new would begin it ends. */
class CheckSession implements Session {
  readonly verdict: Promise<[Verdict, Why]>;
  private end!: (v: [Verdict, Why]) => void;
  private past = false;

  constructor(private readonly r: Replay) {
    this.verdict = new Promise((resolve) => (this.end = resolve));
  }

  beyond(): void {
    this.past = true;
  }

  commit(body: CommitBody): Promise<CommitAnswer> {
    this.end(this.judge(body));
    return new Promise(() => undefined);
  }

  private judge({ outcome }: CommitBody): [Verdict, Why] {
    const why = { code: "", message: "" };
    const error = outcome?.error as Why | undefined;
    if (outcome?.type === "fail" && error) {
      if (outcome.defect === true) return ["held", error];
      // The journal of a run that does not sleep says that it fails.
      return this.r.state === "suspended" && !this.r.cancel ? ["fails", error] : ["", why];
    }
    const { waits } = (outcome ?? {}) as { waits?: string[] };
    if (outcome?.type !== "suspend" || !waits || this.past || this.r.state !== "suspended") return ["", why];
    const other = this.r.waits?.find((s) => s.asleep && !s.id.startsWith("_again:") && !waits.includes(s.id));
    if (!other) return ["", why];
    const message = `${other.id}: the run sleeps on this wait, and the agent waits for ${waits.join(", ")} now; announce the change with version or removed`;
    return ["held", { code: "nondeterminism", message }];
  }

  inbox(): Promise<InboxItem[]> {
    return Promise.resolve([]);
  }

  messages({ after, before }: { after?: number; before?: number }) {
    const all = this.r.messages ?? [];
    const messages = before === undefined ? all.filter((m) => m.seq > (after ?? 0)) : all.filter((m) => m.seq < before).reverse();
    return Promise.resolve({ messages, next_after: messages.at(-1)?.seq ?? after ?? 0, next_before: 0 });
  }

  /** It is not recorded, so the agent can't have decided by it. */
  activity(): Promise<Json> {
    return this.commit({}) as Promise<never>;
  }

  /** A step that is not recorded does not begin in a check. */
  limits(): Promise<StepTaken> {
    return Promise.resolve({ taken: false });
  }

  now(): number {
    return Date.now() * 1000;
  }
  uuid(): string {
    return "00000000-0000-4000-8000-000000000000";
  }
  async sleep(ms: number): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, ms));
  }
  later(): void {}
  note(): void {}
}
