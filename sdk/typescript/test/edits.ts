// Executes the edits of docs/agents.md, for edits_test.go. Reads them as JSON, and writes what has become of each.
//
// A run waits for "go on" under the words before the edit, and goes on under those after it. Its server is in memory:
// children end in the order in which they were begun, timers fire, and nobody answers questions.

import { readFileSync } from "node:fs";
import type { AgentFunction, AgentOptions } from "../src/agent.js";
import type { CommitBody, Outcome } from "../src/batch.js";
import type { Entry, InboxItem } from "../src/journal.js";
import { canonical, sha, type Json } from "../src/json.js";
import { localOf } from "../src/names.js";
import type { JsonSchema } from "../src/schema.js";
import type { ThreadMessage } from "../src/session.js";
import { script, types } from "./scripts.js";
import { StorySession } from "./support.js";

/** A case of internal/testkit/agentcases. */
interface Case {
  Before: string;
  After: string;
  Input: string;
  Reads: string;
  ReadsAfter: string;
  Signals: Record<string, string> | null;
}

/** A run, from its first execution on. */
class Trial {
  readonly effects: string[] = [];
  readonly journal: Entry[] = [];
  readonly said = { message: [] as string[], line: [] as string[], delta: "" };
  private inbox: InboxItem[] = [];
  private readonly thread: ThreadMessage[] = [];
  private readonly hashes = new Map<string, string>();
  private readonly over = new Set<string>();
  private kids: { key: string; kind: string; input: { In: string } }[] = [];
  private waits: string[] = [];
  private epoch = 0;
  private seq = 0;
  private agent!: AgentFunction;
  private options!: AgentOptions;

  constructor(
    private readonly told: Case,
    words: string,
    reads: string,
  ) {
    const names = [...`${told.Before} ${told.After}`.matchAll(/(?:^| )signal:([a-z]+)/g)].map((m) => m[1] as string);
    const dataOf = (name: string) => JSON.parse(told.Signals?.[name] ?? "1") as Json;
    for (const name of new Set(names)) this.send("signal", { name, data: dataOf(name) });
    this.use(words, reads);
  }

  /** Goes on with another build. */
  use(words: string, reads: string): void {
    this.agent = script(words, (_, what) => this.effects.push(what), reads !== "") as AgentFunction;
    this.options = reads === "" ? {} : { input: types[reads] as JsonSchema };
    if (reads === "moved ignores") this.options.ignores = ["City"];
  }

  private send(type: string, item: Omit<InboxItem, "seq" | "type">): void {
    this.inbox.push({ seq: ++this.seq, type, ...item });
  }

  /** Sends the signal on which the run waits to the wait that is open for it. */
  goOn(): void {
    const wait = this.waits.find((w) => localOf(w) === "signal:go on#1");
    this.send("signal", { name: "go on", data: null, ...(wait === undefined ? {} : { wait_id: wait }) });
  }

  /** Executes until the run waits for the signal, ends, or is held. */
  async go(): Promise<Outcome> {
    for (;;) {
      const session = new StorySession();
      session.uuids = ++this.epoch * 100;
      session.thread.push(...this.thread);
      const input = this.told.Input === "" ? {} : { input: JSON.parse(this.told.Input) as Json };
      const { epoch, journal, inbox } = this;
      await session.execute(this.agent, this.options, { epoch, journal: [...journal], inbox, thread: true, ...input });
      this.thread.splice(0, this.thread.length, ...session.thread);
      for (const body of session.sent) this.take(body);
      const outcome = session.sent.at(-1)?.outcome as Outcome;
      this.waits = (outcome.waits as string[] | undefined) ?? [];
      if (outcome.type !== "suspend" || !this.wakes()) return outcome;
    }
  }

  private take(body: CommitBody): void {
    this.journal.push(...(body.journal ?? []));
    this.inbox = this.inbox.filter((i) => !body.ack?.includes(i.seq));
    this.kids.push(...((body.children ?? []) as unknown as typeof this.kids));
    for (const w of body.waits ?? []) {
      const action = (w.approval as { action?: Json } | undefined)?.action;
      if (action !== undefined) this.hashes.set(w.id, `sha256:${sha(canonical(action), 32)}`);
    }
    for (const m of body.messages ?? []) this.said.message.push(String(m.content));
    for (const e of body.events ?? []) {
      if (e.type === "llm:delta") this.said.delta += (e.data as { text: string }).text;
      if (e.type === "x:line") this.said.line.push(String(e.data));
    }
  }

  /** Ends what the run waits for. Returns whether there was something. */
  private wakes(): boolean {
    let woken = false;
    for (const { key, kind, input } of this.kids.splice(0)) {
      if (kind === "never") continue;
      const data = kind === "priced" ? { Amount: 7, Tax: 1 } : kind + input.In;
      this.send("child", { name: key, run_id: `run:${key}`, outcome: "completed", data });
      if (kind !== "priced") this.effects.push(kind + input.In);
      woken = true;
    }
    for (const w of this.waits) {
      const sort = localOf(w).split(":")[0] as string;
      if (this.over.has(w) || !["sleep", "approval", "callback"].includes(sort)) continue;
      this.over.add(w);
      const data = sort === "approval" ? { decision: "reject", action_hash: this.hashes.get(w) as string } : null;
      this.send(sort === "sleep" ? "timer" : "timeout", { wait_id: w, data });
      woken = true;
    }
    return woken;
  }
}

function word(o: Outcome): string {
  const error = o.error as { code: string; message: string } | undefined;
  if (o.defect === true) return `held: ${error?.message}`;
  if (error) return `${o.type} ${error.code}`;
  return `${o.type} ${String(o.result ?? o.waits)}`;
}

async function judge(c: Case): Promise<object> {
  const trial = new Trial(c, c.Before, c.Reads);
  const first = word(await trial.go());
  const [effects, entries] = [trial.effects.length, trial.journal.length];
  trial.use(c.After, c.ReadsAfter);
  trial.goOn();
  const past = await trial.go();
  const did = [...trial.effects];
  const fresh = new Trial(c, c.After, c.ReadsAfter);
  fresh.goOn();
  const out = { First: first, Past: word(past), Fresh: word(await fresh.go()), Effects: did, Said: saidBy(trial) };
  if (past.defect !== true) return out;
  // The release before continues it as if nothing had been.
  const written = trial.journal.slice(entries).map((e) => e.key).filter((k) => !k.startsWith("_frame:"));
  trial.use(c.Before, c.Reads);
  const old = new Trial(c, c.Before, c.Reads);
  old.goOn();
  const back = [word(await trial.go()), word(await old.go()), trial.effects, old.effects];
  return { ...out, Back: [written, did.slice(effects), ...back] };
}

function saidBy({ said }: Trial): string[] {
  return [said.message.join(" "), said.line.join(" "), said.delta.trim()].filter((s) => s !== "");
}

const results: object[] = [];
for (const c of JSON.parse(readFileSync(0, "utf8")) as Case[])
  results.push(await judge(c).catch((err: unknown) => ({ Error: String((err as Error).stack ?? err) })));
process.stdout.write(JSON.stringify(results));
