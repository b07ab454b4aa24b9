// A run in memory, for the tables of edits and misuses: its journal grows, and each execution has a higher epoch.

import type { AgentFunction, AgentOptions } from "../src/agent.js";
import type { CommitBody, Outcome } from "../src/batch.js";
import type { Entry, InboxItem } from "../src/journal.js";
import { canonical, sha, type Json } from "../src/json.js";
import { localOf } from "../src/names.js";
import type { ThreadMessage } from "../src/session.js";
import { StorySession } from "./support.js";

/** A run, from its first execution on. */
export class Trial {
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
    private readonly input?: Json,
    private readonly onThread = true,
  ) {}

  /** Goes on with a build. */
  use(agent: AgentFunction, options: AgentOptions = {}): void {
    this.agent = agent;
    this.options = options;
  }

  send(type: string, item: Omit<InboxItem, "seq" | "type">): void {
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
      const input = this.input === undefined ? {} : { input: this.input };
      const { epoch, journal, inbox, onThread: thread } = this;
      await session.execute(this.agent, this.options, { epoch, journal: [...journal], inbox, thread, ...input });
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

/** Tells how an execution has ended. */
export function word(o: Outcome): string {
  const error = o.error as { code: string; message: string } | undefined;
  if (o.defect === true) return `held: ${error?.message}`;
  if (error) return `${o.type} ${error.code}`;
  return `${o.type} ${String(o.result ?? o.waits)}`;
}
