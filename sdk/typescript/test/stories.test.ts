// The stories of testdata/journal: each is executed as it is told, and cut after every entry.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { CommitBody } from "../src/batch.js";
import type { Entry, InboxItem } from "../src/journal.js";
import type { Json } from "../src/json.js";
import { Refused, type ThreadMessage } from "../src/session.js";
import { stories } from "./agents.js";
import { StorySession, list, load } from "./support.js";

type Commit = CommitBody & { refused?: { code: string; detail: string; field?: string } };
interface StoryGrant {
  at: number;
  epoch: number;
  first_epoch?: number;
  cancel?: boolean;
  journal: number;
  inbox: (InboxItem | number)[];
  input?: Json;
  thread?: ThreadMessage[];
}
interface StoryExecution {
  before?: string;
  grant: StoryGrant;
  commits: Commit[];
  /** Of a story about limits of steps: what steps have asked for. */
  takes?: StorySession["asked"];
}
interface Cut {
  after: number;
  grant: StoryGrant;
  like?: number;
  commits?: Commit[];
  takes?: StorySession["asked"];
  then?: StoryExecution[];
}
interface Told {
  story: string;
  agent: string[];
  input?: Json;
  thread?: boolean;
  executions: StoryExecution[];
  cuts: Cut[];
}

/** One telling of a story: a run from its first execution to its last. */
class Telling {
  readonly session = new StorySession();
  private journal: Entry[] = [];
  private items = new Map<number, InboxItem>();
  private build = 1;
  private input: Json | undefined;
  /** The entries of the run in the order in which they were committed, also those that a retry leaves out. */
  readonly kept: Entry[] = [];

  constructor(private readonly told: Told) {
    this.input = told.input;
  }

  /** Plays an execution, and compares its commits with those wanted. */
  async play(x: StoryExecution, n: number, where: string, exact: boolean): Promise<void> {
    const { grant } = x;
    if (grant.input !== undefined && exact && grant.journal === 0) {
      this.input = grant.input;
      this.journal = [];
      this.items = new Map();
    }
    const builds = [/second build/, /third (one|build)/, /first build is back|third execution is made by the first/];
    if (builds[0]?.test(x.before ?? "")) this.build = 2;
    if (builds[1]?.test(x.before ?? "")) this.build = 3;
    if (builds[2]?.test(x.before ?? "")) this.build = 1;
    if (exact) this.journal = this.journal.slice(0, grant.journal);
    else if (grant.first_epoch === grant.epoch) this.journal = this.journal.filter((e) => e.key !== "buy#1");
    const inbox = grant.inbox.map((i) => (typeof i === "number" ? (this.items.get(i) as InboxItem) : i));
    for (const i of inbox) this.items.set(i.seq, i);
    for (const m of grant.thread ?? []) if (!this.session.thread.some((t) => t.seq === m.seq)) this.session.thread.push(m);
    this.session.clock = grant.at;
    const asked = this.session.asked.length;
    this.session.room = (step) => ({ taken: x.takes?.find((q) => q.step === step)?.taken ?? true });
    const made = await this.execute(grant, inbox, x.commits, n);
    assert.deepEqual(this.session.asked.slice(asked), x.takes ?? [], `${where}: what steps have asked for`);
    assert.deepEqual(made.map(comparable(this.told)), x.commits.map(comparable(this.told)), where);
  }

  private async execute(grant: StoryGrant, inbox: InboxItem[], commits: Commit[], n: number): Promise<CommitBody[]> {
    const { session, told } = this;
    const begun = session.sent.length;
    session.refuse = (body) => {
      const r = commits[session.sent.length - 1 - begun]?.refused;
      if (r) return new Refused(r.code, r.detail, r.field);
      this.journal.push(...(body.journal ?? []));
      this.kept.push(...(body.journal ?? []));
      return undefined;
    };
    const come = [...inbox];
    const news = () => {
      const next = this.tenMore(n, come);
      come.push(...next);
      return next;
    };
    session.news = told.story === "map-of-50" ? news : () => [];
    const agent = stories[told.story]?.({ session, build: this.build, execution: n });
    assert.ok(agent, `there is no agent ${told.story}`);
    const [f, options] = Array.isArray(agent) ? agent : [agent, {}];
    await session.execute(f, options, {
      epoch: grant.epoch,
      journal: structuredClone(this.journal),
      inbox,
      ...(grant.first_epoch === undefined ? {} : { first_epoch: grant.first_epoch }),
      ...(grant.cancel ? { cancel: true } : {}),
      ...(this.input === undefined ? {} : { input: this.input }),
      ...(told.thread ? { thread: true } : {}),
    });
    return session.sent.slice(begun);
  }

  /** The ten children of the story of 50 that end next. */
  private tenMore(n: number, inbox: InboxItem[]): InboxItem[] {
    const ended = new Set<string>();
    let last = Math.max(0, ...inbox.map((i) => i.seq));
    const n50 = Math.max(...this.journal.map((e) => (e.value as { mapped?: { "square#1": { n: number } } }).mapped?.["square#1"].n ?? 0));
    const spawned = Array.from({ length: n50 }, (_, i) => `square#1/${i}`);
    for (const e of this.journal) for (const i of (e.value as { in?: InboxItem[] }).in ?? []) if (i.type === "child") {
      ended.add(i.name as string);
      last = Math.max(last, i.seq);
    } else last = Math.max(last, i.seq);
    for (const i of inbox) if (i.type === "child") ended.add(i.name as string);
    if (n === 0 && ended.size >= 20) return [];
    const next = spawned.filter((k) => !ended.has(k)).slice(0, 10);
    return next.map((k) => ({ seq: ++last, type: "child", name: k, run_id: `run:${k}`, outcome: "completed", data: k }));
  }

  /** Returns a telling that stands where the worker has died: with some entries, and nothing else of their commit. */
  static cut(told: Told, entries: Entry[], items: Map<number, InboxItem>, thread: ThreadMessage[], uuids: number, input: Json | undefined, build: number): Telling {
    const t = new Telling(told);
    t.journal = structuredClone(entries);
    t.items = new Map(items);
    t.session.thread.push(...thread);
    t.session.uuids = uuids;
    t.input = input;
    t.build = build;
    return t;
  }

  state() {
    return { items: this.items, uuids: this.session.uuids, input: this.input, build: this.build, journal: this.journal };
  }
}

/** Removes from a commit what the library may say in its own words. */
function comparable(told: Told) {
  const words = `${told.agent.join(" ")} ${JSON.stringify(told.executions.map((x) => x.grant.inbox))}`;
  const own = (o: { message?: string } | undefined) => {
    if (o?.message !== undefined && !words.includes(o.message)) o.message = "";
  };
  return (c: Commit): Commit => {
    const out = structuredClone(c);
    delete out.refused;
    own((out.outcome as { error?: { message: string } } | undefined)?.error);
    for (const e of out.journal ?? []) own((e.value as { error?: { message: string } } | null)?.error);
    return out;
  };
}

/** The commits of an execution from one on, as a later epoch makes them. */
function likeFrom(x: StoryExecution, from: number, epoch: number): Commit[] {
  const text = JSON.stringify(x.commits.slice(from - 1));
  let frames = 0;
  let said = 0;
  const renamed = text
    .replace(/"_frame:\d+\.\d+"/g, () => `"_frame:${epoch}.${++frames}"`)
    .replace(/"_said:\d+\.\d+"/g, () => `"_said:${epoch}.${++said}"`)
    .replace(/"_again:\d+"/g, `"_again:${epoch}"`);
  return (JSON.parse(renamed) as Commit[]).map((c) => {
    const o = c.outcome as { error?: { cause_key?: string } } | undefined;
    const last = c.journal?.find((e) => e.key.startsWith("_frame:"));
    if (o?.error?.cause_key?.startsWith("_frame:") && last) o.error.cause_key = last.key;
    return c;
  });
}

/** Returns how many messages are in commits of which the journal has all entries. */
function saidBefore(x: StoryExecution, begun: number, after: number): number {
  let said = 0;
  let at = begun;
  for (const c of x.commits) {
    at += c.refused ? 0 : (c.journal?.length ?? 0);
    if (at <= after && !c.refused) said += c.messages?.length ?? 0;
  }
  return said;
}

for (const file of [...list("stories"), ...list("limits")]) {
  const told = load<Told>(file);
  test(`story ${told.story}`, async () => {
    const t = new Telling(told);
    /** What was there when each execution ended. */
    const states: (ReturnType<Telling["state"]> & { thread: ThreadMessage[]; before: number; begun: number })[] = [];
    for (const [n, x] of told.executions.entries()) {
      const before = t.session.thread.length;
      const begun = x.grant.journal;
      const uuids = t.session.uuids;
      await t.play(x, n, `execution ${n + 1}`, true);
      const s = t.state();
      states.push({ ...s, uuids, journal: structuredClone(s.journal), items: new Map(s.items), thread: [...t.session.thread], before, begun });
    }
    for (const cut of told.cuts) {
      const where = `cut after ${cut.after}, epoch ${cut.grant.epoch}`;
      const n = told.executions.findIndex((x) => x.grant.epoch === cut.grant.epoch - 1);
      const state = states[n] as (typeof states)[number];
      const x = told.executions[n] as StoryExecution;
      const commits = cut.commits ?? likeFrom(x, cut.like as number, cut.grant.epoch);
      const said = saidBefore(x, state.begun, cut.after);
      const thread = state.thread.slice(0, state.before + (x.grant.thread?.length ?? 0) + said);
      const c = Telling.cut(told, state.journal.slice(0, cut.after), state.items, thread, state.uuids, state.input, state.build);
      await c.play({ grant: cut.grant, commits, takes: cut.takes ?? [] }, n, where, true);
      const rest = cut.then ?? told.executions.slice(n + 1);
      for (const [m, y] of rest.entries()) await c.play(y, n + 1 + m, `${where}: then execution ${n + 2 + m}`, y.grant.input !== undefined);
    }
  });
}

test("every story has an agent, and every agent a story", () => {
  const all = [...list("stories"), ...list("limits")].map((f) => load<Told>(f).story);
  assert.deepEqual(Object.keys(stories).sort(), all.sort());
});
