// A Perdure worker of nothing but Node's own fetch. It speaks the worker protocol of docs/api.md.
//
// A handler is executed from its beginning each time that its run is granted. The journal has what
// it did before, and the inbox what was sent to it:
//
//   - step executes a function and records what it returns. A recorded step is not executed again.
//   - wait sends a wait and suspends the run, which frees the worker. The next grant has the items
//     that ended the wait. One commit records them in the journal and acknowledges them, because
//     the inbox never has them again.
//
// A worker that is killed loses the step at hand and nothing else. That step is executed again. The
// systems that it calls recognize it by a key: the run's origin, which is the same in a retry, and the
// step's key.
//
// A defect of the handler's code holds its run. No attempt is spent, and the run goes on with the next
// build of the program.

import { createHash, randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import type {
  Commit, CommitAnswer, CommitPart, Duration, Grant, Heartbeat, HeartbeatAnswer, InboxPage, Item, Json,
  JournalPage, Lease, LeaseResult, Outcome, PollAnswer, PollRequest, Refusal, Spawn, WaitSpec,
} from "./wire.js";

export type Handler = (run: Run) => Promise<Json>;

export interface WorkerOptions {
  url: string;
  key: string;
  handlers: Record<string, Handler>;
  slots?: number;
  /** Identifies the program, such as a version. A run that a defect holds is granted at once to another
   *  build. The default is a hash of the file that Node.js was started with. */
  build?: string;
  /** How long a step at hand may go on after stop. The default is 10 s. */
  graceMs?: number;
}

/** The run is asked to stop. A handler catches this to clean up, with run.cleanup, and throws it again. */
export class Cancelled extends Error {}

/** The run waits. The worker has nothing to do with it until it is granted again. */
class Suspended extends Error {}

/** The lease is gone: somebody else holds the run, or it has ended. Nothing more may be done for it. */
class Lost extends Error {}

/** The worker shuts down. It hands the run back. */
class Released extends Error {}

/** The server refuses what was sent, and would again. */
class Refused extends Error {
  constructor(readonly code: string, readonly field: string | undefined, detail: string) {
    super(detail);
  }
}

/** Nobody answered, or the server can't now. Nothing is known, and the same call may be sent again. */
class Unanswered extends Error {}

const languageErrors = [TypeError, ReferenceError, RangeError, SyntaxError];

const sleep = (ms: number) => new Promise<void>((done) => setTimeout(done, ms));

/** A leased run. */
export class Run implements Lease {
  readonly run_id: string;
  readonly epoch: number;
  readonly kind: string;
  readonly input: Json;
  cancelRequested: boolean;
  /** What the run is doing, for those who watch. */
  activity = "";
  lost = false;
  beatAt: number;
  readonly beatEvery: number;

  private readonly stopping = new AbortController();
  private readonly journal = new Map<string, Json>();
  private readonly inbox: Item[] = [];
  private readonly stepErrors = new WeakSet<object>();
  private cleaning = false;
  private commits = 0;

  constructor(private readonly worker: Worker, private readonly grant: Grant) {
    this.run_id = grant.run_id;
    this.epoch = grant.epoch;
    this.kind = grant.kind;
    this.input = grant.input ?? null;
    this.cancelRequested = grant.cancel ?? false;
    this.beatEvery = Math.min(10_000, grant.lease_ms / 4);
    this.beatAt = Date.now() + Math.min(1_000, this.beatEvery);
  }

  /** Waits until the server has heard that this worker has the run, if that has one attempt. So the poll
   *  promises: the server may grant a run again whose worker it has not heard. */
  async confirm(): Promise<void> {
    if (this.grant.max_attempts !== 1) return;
    const beat: Heartbeat = { run_id: this.run_id, epoch: this.epoch, cancel_ack: this.cancelRequested };
    const answer = await this.send<HeartbeatAnswer>("POST", this.worker.path("heartbeat"), { runs: [beat] });
    if (answer.cancel.length > 0) this.askToStop();
    if (answer.lost.length > 0) {
      this.lose();
      throw new Lost();
    }
  }

  /** Reads the journal and the inbox, with the pages that did not fit into the grant. */
  async load(): Promise<void> {
    let journal: JournalPage = this.grant;
    let inbox: InboxPage = this.grant;
    for (;;) {
      for (const entry of journal.journal) this.journal.set(entry.key, entry.value);
      if (journal.journal_next === undefined) break;
      journal = await this.page<JournalPage>("journal", journal.journal_next);
    }
    for (;;) {
      this.inbox.push(...inbox.inbox);
      if (inbox.inbox_next === undefined) break;
      inbox = await this.page<InboxPage>("inbox", inbox.inbox_next);
    }
  }

  private page<T>(list: string, after: number): Promise<T> {
    return this.send<T>("GET", `runs/${this.run_id}/${list}?epoch=${this.epoch}&after=${after}`);
  }

  /** Executes a step and records what it returns, or returns what is recorded. The signal aborts when
   *  the run has to stop. The key identifies the step to other systems. */
  async step<T extends Json>(key: string, execute: (signal: AbortSignal, key: string) => Promise<T>): Promise<T> {
    if (this.journal.has(key)) return this.journal.get(key) as T;
    this.check();
    this.activity = key;
    // In a cleanup the signal of the run has aborted already.
    const signal = this.cleaning ? new AbortController().signal : this.stopping.signal;
    const value = await execute(signal, `${this.grant.origin_run_id ?? this.run_id}/${key}`).catch((err: unknown) => {
      this.check();
      if (err instanceof Error) this.stepErrors.add(err);
      throw err;
    });
    await this.commit({ journal: [{ key, value }] });
    this.journal.set(key, value);
    return value;
  }

  /** Spawns children and waits until all of them have ended. Returns an item for each, in the order
   *  of the children. Their deadlines bound the wait, so that it needs no timeout. */
  async join(id: string, children: Spawn[]): Promise<Item[]> {
    const keys = children.map((child) => child.key);
    const items = await this.wait({ id, type: "children", mode: "all", keys, timeout: "never" }, children);
    return keys.flatMap((key) => items.filter((item) => item.type === "child" && item.name === key));
  }

  /** Waits for a signal. Returns undefined if it has not come in time. */
  async signal(id: string, name: string, timeout: Duration): Promise<Item | undefined> {
    const items = await this.wait({ id, type: "signal", name, timeout }, []);
    return items.find((item) => item.type === "signal");
  }

  /** The children that have ended and that no wait has taken yet. A cleanup looks at them. */
  endedChildren(): Item[] {
    return this.inbox.filter((item) => item.type === "child");
  }

  private async wait(spec: WaitSpec, children: Spawn[]): Promise<Item[]> {
    const key = `wait:${spec.id}`;
    const before = this.journal.get(key) as number[] | undefined;
    if (before !== undefined) return before.map((seq) => this.journal.get(`${key}/${seq}`) as unknown as Item);
    // One item has the wait's id. Those of its children have their keys.
    if (this.inbox.some((item) => item.wait_id === spec.id)) {
      const items = this.inbox.filter((item) => item.wait_id === spec.id ||
        (item.type === "child" && spec.keys?.includes(item.name ?? "")));
      const seqs = items.map((item) => item.seq);
      // Each item has an entry of its own, because an entry is bounded.
      const entries = items.map((item) => ({ key: `${key}/${item.seq}`, value: item as unknown as Json }));
      await this.commit({ journal: [{ key, value: seqs }, ...entries], ack: seqs });
      return items;
    }
    this.check();
    // Children and waits that the server knows already are nothing new to it, so they may be sent again.
    await this.commit({ children, waits: [spec], outcome: { type: "suspend", waits: [spec.id] } });
    throw new Suspended();
  }

  /** Executes steps of a run that is asked to stop. They are recorded too, and not executed again. */
  async cleanup(execute: () => Promise<void>): Promise<void> {
    this.cleaning = true;
    try {
      await execute();
    } finally {
      this.cleaning = false;
    }
  }

  /** Throws if the handler must not go on. */
  private check(): void {
    if (this.lost) throw new Lost();
    if (this.cancelRequested && !this.cleaning) throw new Cancelled("the run is asked to stop");
    if (this.worker.draining) throw new Released();
  }

  /** Says what becomes of the run when its handler has thrown. */
  failure(err: unknown): Outcome {
    const fail = (code: string, message = String(err)) =>
      ({ type: "fail" as const, error: { code, message: message.slice(0, 1000) } });
    if (err instanceof Refused) {
      // The journal contradicts the code.
      if (err.code === "nondeterminism") return { ...fail(err.code), defect: true };
      return { ...fail(err.code), retryable: false };
    }
    // The language throws these for a mistake in the code. In a step they may be about another system:
    // fetch throws a TypeError if it can't connect.
    if (languageErrors.some((type) => err instanceof type) && !this.stepErrors.has(err as Error)) {
      return { ...fail("panic", (err as Error).stack), defect: true };
    }
    return fail("handler_failed");
  }

  /** Aborts the step at hand. */
  abort(): void {
    this.stopping.abort();
  }

  lose(): void {
    this.lost = true;
    this.abort();
  }

  askToStop(): void {
    this.cancelRequested = true;
    this.abort();
  }

  /** Sends a commit until the server takes or refuses it. It has the same commit_id each time, and so
   *  it counts once. */
  async commit(part: CommitPart): Promise<void> {
    const commit: Commit = {
      commit_id: `${this.epoch}-${++this.commits}`, run_id: this.run_id, epoch: this.epoch,
      ...(this.cancelRequested ? { cancel_ack: true } : {}), ...part,
    };
    const answer = await this.send<CommitAnswer>("POST", this.worker.path("commit"), { commits: [commit] });
    if (answer.results[0]?.cancel) this.askToStop();
  }

  /** Hands the run back unfinished. It costs no attempt. */
  async release(): Promise<void> {
    await this.send("POST", this.worker.path("release"), { runs: [{ run_id: this.run_id, epoch: this.epoch }] });
  }

  /** Sends a call until it is answered, however long the server is away. Only the server knows
   *  whether the lease has outlasted that. */
  private async send<T>(method: string, path: string, body?: unknown): Promise<T> {
    for (let pause = 50, defects = 0; ; pause = Math.min(2_000, pause * 2)) {
      try {
        return await this.worker.call<T>(method, path, body);
      } catch (err) {
        if (!(err instanceof Refused || err instanceof Unanswered)) throw err;
        if (err instanceof Refused && (err.code !== "internal" || ++defects === 5)) throw this.refused(err);
      }
      if (this.worker.graceOver) throw new Released();
      await sleep(pause * (0.5 + Math.random()));
    }
  }

  /** Says what a refusal means for the handler. One with a field is about a part of the commit, such
   *  as a child's thread that does not exist, and not about the run. */
  private refused(err: Refused): Error {
    if (err.field !== undefined) return err;
    switch (err.code) {
      case "cancel_requested": // a run that is asked to stop may not suspend
        this.askToStop();
        return new Cancelled(err.message);
      case "stale_epoch":
      case "wrong_state":
      case "run_ended":
      case "not_found":
        this.lose();
        return new Lost(err.message);
    }
    return err;
  }
}

function hashOf(file: string): string {
  return createHash("sha256").update(readFileSync(file)).digest("hex").slice(0, 16);
}

/** Polls for runs, executes them and keeps their leases alive. */
export class Worker {
  readonly id = `typescript-${randomUUID().slice(0, 8)}`;
  draining = false;
  graceOver = false;

  private readonly slots: number;
  private readonly build: string;
  private readonly runs = new Map<Run, Promise<void>>();
  private beating = false;
  private wake: () => void = () => {};

  constructor(private readonly opt: WorkerOptions) {
    this.slots = opt.slots ?? 8;
    this.build = opt.build ?? hashOf(process.argv[1]!);
  }

  /** Works until stop is called. Throws if the server refuses this worker. */
  async run(): Promise<void> {
    // Heartbeats have a timer of their own, so that they are sent while handlers wait for others. A
    // handler that computes for long without an await holds them up.
    const timer = setInterval(() => void this.beat(), 100);
    void this.listen();
    try {
      while (!this.draining) await this.lease();
      await Promise.all(this.runs.values());
    } finally {
      clearInterval(timer);
    }
  }

  /** Leases no more, lets the steps at hand finish, and hands the runs back. */
  stop(): void {
    this.draining = true;
    this.wake();
    setTimeout(() => {
      this.graceOver = true;
      for (const run of this.runs.keys()) run.abort();
    }, this.opt.graceMs ?? 10_000).unref();
  }

  /** Polls once, and starts the runs that it gets. The wait is short, because stop lets a poll end: a
   *  grant that nobody reads would only come back after a while. */
  private async lease(): Promise<void> {
    const slots = this.slots - this.runs.size;
    if (slots === 0) return new Promise((done) => { this.wake = done; });
    const request: PollRequest = { kinds: Object.keys(this.opt.handlers), slots, wait: "2s", start: true,
      confirms: true, build: this.build };
    try {
      const answer = await this.call<PollAnswer>("POST", this.path("poll"), request);
      for (const grant of answer.runs) {
        const run = new Run(this, grant);
        this.runs.set(run, this.execute(run).finally(() => {
          this.runs.delete(run);
          this.wake();
        }));
      }
    } catch (err) {
      if (err instanceof Refused && err.code !== "internal") throw err;
      await sleep(100 + 200 * Math.random());
    }
  }

  /** Executes a run's handler, and commits what came of it. Never throws. */
  private async execute(run: Run): Promise<void> {
    try {
      await run.confirm();
      await run.load();
      await run.commit({ outcome: { type: "complete", result: await this.opt.handlers[run.kind]!(run) } });
    } catch (err) {
      await this.conclude(run, err).catch((err: unknown) => {
        if (!(err instanceof Lost)) console.error(`run ${run.run_id}: ${err}`);
      });
    }
  }

  private async conclude(run: Run, err: unknown): Promise<void> {
    if (err instanceof Suspended) return;
    if (err instanceof Lost || run.lost) {
      console.error(`run ${run.run_id}: epoch ${run.epoch} is no longer ours`);
    } else if (err instanceof Released) {
      await run.release();
    } else if (run.cancelRequested) {
      await run.commit({ outcome: { type: "cancelled" } });
    } else {
      await run.commit({ outcome: run.failure(err) });
    }
  }

  /** Sends a heartbeat for the runs that need one, all in one call. */
  private async beat(all = false): Promise<void> {
    const runs = [...this.runs.keys()].filter((run) => !run.lost && (all || run.beatAt <= Date.now()));
    if (runs.length === 0 || (this.beating && !all)) return;
    this.beating = true;
    const beats = runs.map((run): Heartbeat => ({
      run_id: run.run_id, epoch: run.epoch, activity: run.activity, cancel_ack: run.cancelRequested,
    }));
    try {
      const answer = await this.call<HeartbeatAnswer>("POST", this.path("heartbeat"), { runs: beats }, 5_000);
      const among = (list: LeaseResult[], run: Run) =>
        list.some((lease) => lease.run_id === run.run_id && lease.epoch === run.epoch);
      for (const run of runs) {
        run.beatAt = Date.now() + run.beatEvery;
        if (among(answer.lost, run)) run.lose();
        if (among(answer.cancel, run) && !run.cancelRequested) {
          run.askToStop();
          run.beatAt = 0; // acknowledge at once
        }
      }
    } catch {
      // The server is away. The runs go on, and the next tick tries again.
    } finally {
      this.beating = false;
    }
  }

  /** Keeps a poll open that is answered when a run is asked to stop. Without it, a cancel request
   *  would arrive with the next heartbeat. */
  private async listen(): Promise<void> {
    for (;; await sleep(100)) {
      if (this.runs.size === 0) continue;
      const holding = [...this.runs.keys()].filter((run) => !run.lost && !run.cancelRequested)
        .map((run): Lease => ({ run_id: run.run_id, epoch: run.epoch }));
      try {
        const request: PollRequest = { news: true, slots: 0, wait: "30s", holding };
        const answer = await this.call<PollAnswer>("POST", this.path("poll"), request);
        if (answer.news) await this.beat(true);
      } catch {
        // The server is away, or refuses: lease says so.
      }
    }
  }

  path(verb: string): string {
    return `workers/${this.id}/${verb}`;
  }

  /** One call. Throws Refused or Unanswered. */
  async call<T>(method: string, path: string, body?: unknown, timeoutMs = 60_000): Promise<T> {
    let status: number, answer: unknown;
    try {
      const response = await fetch(`${this.opt.url}/api/v1/${path}`, {
        method, signal: AbortSignal.timeout(timeoutMs), body: body === undefined ? null : JSON.stringify(body),
        headers: { Authorization: `Bearer ${this.opt.key}`, "Content-Type": "application/json" },
      });
      status = response.status;
      answer = await response.json();
    } catch (err) {
      throw new Unanswered(String(err));
    }
    if (status < 300) return answer as T;
    const { code = String(status), detail, field } = answer as Partial<Refusal>;
    if (status === 429 || status > 500) throw new Unanswered(detail);
    throw new Refused(code, field, `${code}: ${detail}`);
  }
}
