// A run that a worker holds. Its commits are kept, and sent with the same bytes until the server has answered.

import type { CommitBody } from "./batch.js";
import { around, type Clock } from "./clock.js";
import { Failure } from "./errors.js";
import { isObject, print, type Json } from "./json.js";
import { problemOf, Problem } from "./problems.js";
import type { LimitTake, StepTaken } from "./limits.js";
import { Lost, Refused, type CommitAnswer, type Grant } from "./session.js";
import { NoAnswer, type Transport } from "./transport.js";

/** A grant as the server writes it. */
export interface LeasedGrant extends Grant {
  tenant?: string;
  class?: string;
  queue: string;
  state?: string;
  lease_ms: number;
  max_attempts?: number;
  deadline_at: string;
  journal_next?: number;
  inbox_next?: number;
  signature?: { key_id: string; value: string };
}

/** The lease is gone, and nothing of the run is this worker's any more. */
const gone = new Set(["stale_epoch", "wrong_state", "run_ended", "not_found"]);
/** The same commit may be taken later. */
const later = new Set(["unavailable", "unknown_outcome", "shutting_down", "too_many_requests", "quota_exceeded", "storage_full", "query_timeout"]);
/** How often a commit is sent again after an internal error of the server. */
const mostDefects = 9;

/** What a lease asks of its worker. */
export interface Holder {
  readonly transport: Transport;
  readonly clock: Clock;
  readonly kept: Kept;
  /** The path of a call of this worker. */
  path(verb: string): string;
  /** Tells the thread of heartbeats what has changed. */
  changed(lease: Lease, what: "told" | "note"): void;
}

/** The right to write to a run: its id and an epoch. */
export class Lease {
  readonly run: string;
  readonly epoch: number;
  readonly kind: string;
  /** Milliseconds between heartbeats. */
  readonly every: number;
  /** The handler begins when a heartbeat was answered, so that the run is not executed twice. */
  readonly confirms: boolean;
  cancelled: boolean;
  lost = false;
  /** Handed back: nothing is sent for it any more. */
  released = false;
  begun = false;
  activity = "";
  progress: Json | undefined;
  /** It ends when the run is asked to stop, is lost, or is handed back. */
  readonly stop = new AbortController();
  onCancel: () => void = () => undefined;
  onLost: () => void = () => undefined;

  private readonly over = new AbortController();
  private chain: Promise<unknown> = Promise.resolve();
  private commits = 0;
  private hear!: () => void;
  private readonly hearing = new Promise<void>((resolve) => (this.hear = resolve));

  constructor(
    private readonly holder: Holder,
    readonly grant: LeasedGrant,
    /** When the poll was sent, by the holder's clock. */
    readonly polled: number,
  ) {
    this.run = grant.run_id;
    this.epoch = grant.epoch;
    this.kind = grant.kind;
    this.every = Math.min(10_000, (grant.lease_ms || 60_000) / 4);
    // An answer that was taken up late may be that of a lease that was granted again meanwhile.
    this.confirms = grant.max_attempts === 1 || holder.clock.now() - polled > 10_000;
    this.cancelled = grant.cancel === true;
    grant.journal ??= [];
    grant.inbox ??= [];
    grant.origin_run_id ||= grant.run_id;
    if (this.cancelled) this.stop.abort(new Failure("cancelled", "the run was asked to stop", { permanent: true }));
  }

  get key(): { run_id: string; epoch: number } {
    return { run_id: this.run, epoch: this.epoch };
  }

  /** A heartbeat was answered. */
  heard(): void {
    this.hear();
  }

  /** Returns when the server has heard that this worker has the run. */
  async confirmed(): Promise<void> {
    if (this.confirms) await this.hearing;
    if (this.lost || this.released) throw new Lost("the run is no longer this worker's");
  }

  askToStop(): void {
    if (this.cancelled || this.lost) return;
    this.cancelled = true;
    this.stop.abort(new Failure("cancelled", "the run was asked to stop", { permanent: true }));
    this.holder.changed(this, "told");
    this.onCancel();
  }

  lose(): void {
    if (this.lost) return;
    this.lost = true;
    this.end();
  }

  release(): void {
    this.released = true;
    this.end();
  }

  private end(): void {
    const lost = new Lost("the run is no longer this worker's");
    this.over.abort(lost);
    this.stop.abort(lost);
    this.hear();
    this.onLost();
  }

  note(what: { activity?: string; progress?: Json }): void {
    if (what.activity !== undefined) this.activity = what.activity;
    if (what.progress !== undefined) this.progress = what.progress;
    this.holder.changed(this, "note");
  }

  /** Sends a commit, the same bytes again until the server has answered. Commits of a run keep their order. */
  commit(body: CommitBody): Promise<CommitAnswer> {
    const sent = this.chain.then(() => this.prepare(body));
    this.chain = sent.catch(() => undefined);
    return sent;
  }

  private async prepare(body: CommitBody): Promise<CommitAnswer> {
    const whole: Record<string, unknown> = { commit_id: `e${this.epoch}-${++this.commits}`, ...this.key, ...body };
    if (this.cancelled) whole.cancel_ack ??= true;
    const bytes = Buffer.from(print({ commits: [whole] }));
    await this.holder.kept.take(bytes.length, this.over.signal);
    try {
      return await this.send(bytes, body.outcome?.type === "complete");
    } finally {
      this.holder.kept.give(bytes.length);
    }
  }

  private async send(bytes: Buffer, finished: boolean): Promise<CommitAnswer> {
    const { transport, clock } = this.holder;
    for (let pause = 100, defects = 0; ; pause = Math.min(5000, pause * 2)) {
      // A result that comes too late is kept by the server, so it is sent although the lease is lost.
      if (this.released || (this.lost && !finished)) throw new Lost("the run is no longer this worker's");
      let wait = pause;
      try {
        const answer = await transport.once("POST", this.holder.path("commit"), { raw: bytes, wait: 30_000 });
        if (answer.status < 400) return this.taken(answer.json());
        const problem = problemOf(answer.status, answer.headers, answer.text);
        if (problem.code === "quota_exceeded" && this.cancelled) throw new Refused("cancel_requested", problem.detail);
        if (!later.has(problem.code) && (problem.code !== "internal" || ++defects > mostDefects)) this.refused(problem);
        wait = Math.max(pause, problem.retryAfter);
      } catch (err) {
        if (err instanceof Problem) throw new Refused(err.code, err.detail, err.field);
        if (!(err instanceof NoAnswer)) throw err;
        transport.next();
      }
      await clock.sleep(around(wait), finished ? undefined : this.over.signal);
    }
  }

  private taken(answer: Json): CommitAnswer {
    const results = isObject(answer) ? (answer.results as (CommitAnswer & { error?: { code: string; detail?: string; field?: string } })[] | undefined) : undefined;
    const result = results?.[0];
    if (!result) throw new Refused("internal", "the server's answer to the commit has no result");
    if (result.error) this.refused(new Problem(result.error.code, result.error.detail ?? "", { field: result.error.field ?? "" }));
    this.hear();
    if (result.cancel) this.askToStop();
    return result;
  }

  private refused(p: Problem): never {
    if ((gone.has(p.code) && p.field === "") || p.code === "unauthorized" || p.code === "forbidden") {
      this.lose();
      throw new Lost(p.message);
    }
    throw new Refused(p.code, p.detail || p.message, p.field);
  }

  /** Reads something that belongs to the lease. */
  async get(what: string, query: Record<string, number | undefined> = {}): Promise<Record<string, Json>> {
    const path = `/api/v1/runs/${encodeURIComponent(this.run)}/${what}`;
    for (;;) {
      if (this.lost || this.released) throw new Lost("the run is no longer this worker's");
      try {
        const answer = await this.holder.transport.call("GET", path, { query: { epoch: this.epoch, ...query } });
        return answer.json() as Record<string, Json>;
      } catch (err) {
        if (!(err instanceof Problem)) throw err;
        if (gone.has(err.code) && err.field === "") this.refused(err);
        if (!later.has(err.code)) throw err;
      }
    }
  }

  /** Asks for the limits of a step, until there is an answer. Asking again takes nothing more. */
  async limits(step: string, takes: LimitTake[], again: number): Promise<StepTaken> {
    const asked = { ...this.key, step, limits: takes, ...(again > 0 ? { try: again } : {}) };
    for (;;) {
      if (this.lost || this.released) throw new Lost("the run is no longer this worker's");
      try {
        const { transport } = this.holder;
        const body = { steps: [asked] };
        const answer = (await transport.call("POST", this.holder.path("limits"), { body, again: true })).json();
        type Result = StepTaken & { error?: { code: string; detail?: string } };
        const [got] = (isObject(answer) ? (answer.results ?? []) : []) as unknown as Result[];
        if (!got) throw new Problem("internal", "the server's answer to a step that asks for limits has no result");
        if (got.error) throw new Problem(got.error.code, got.error.detail ?? "");
        return got;
      } catch (err) {
        if (!(err instanceof Problem)) throw err;
        if (gone.has(err.code)) this.refused(err);
        if (!later.has(err.code)) throw new Failure(err.code, `step ${step}: ${err.detail || err.message}`);
        await this.holder.clock.sleep(around(Math.max(1000, err.retryAfter)), this.over.signal);
      }
    }
  }

  /** Uploads bytes that belong to the lease. */
  async put(what: string, raw: Uint8Array, contentType: string, query: Record<string, string>): Promise<Record<string, Json>> {
    const path = `/api/v1/runs/${encodeURIComponent(this.run)}/${what}`;
    const answer = await this.holder.transport.call("PUT", path, { raw, contentType, query: { epoch: this.epoch, ...query }, again: true, wait: 3600_000 });
    return answer.json() as Record<string, Json>;
  }

  /** Reads what did not come with the grant. */
  async readOn(): Promise<void> {
    for (let after = this.grant.journal_next; after; ) {
      const page = await this.get("journal", { after, limit: 1000 });
      this.grant.journal.push(...((page.journal ?? []) as never[]));
      after = page.journal_next as number | undefined;
    }
    for (let after = this.grant.inbox_next; after; ) {
      const page = await this.get("inbox", { after, limit: 1000 });
      this.grant.inbox.push(...((page.inbox ?? []) as never[]));
      after = page.inbox_next as number | undefined;
    }
  }
}

/** Bounds the bytes of commits that the server has not answered. */
export class Kept {
  private now = 0;
  private waiting: { size: number; go: () => void }[] = [];

  constructor(
    readonly most: number,
    private readonly warn: (text: string) => void,
  ) {}

  /** Returns when there is room. */
  async take(size: number, over: AbortSignal): Promise<void> {
    if (this.now > 0 && this.now + size > this.most) {
      if (this.waiting.length === 0) this.warn(`commits wait: ${this.now} bytes are kept for the server`);
      await new Promise<void>((go) => {
        const entry = { size, go };
        this.waiting.push(entry);
        over.addEventListener("abort", () => {
          const at = this.waiting.indexOf(entry);
          if (at < 0) return;
          this.waiting.splice(at, 1);
          this.now += size;
          go();
        });
      });
      return;
    }
    this.now += size;
  }

  give(size: number): void {
    this.now -= size;
    while (this.waiting[0] && (this.now === 0 || this.now + this.waiting[0].size <= this.most)) {
      const next = this.waiting.shift() as { size: number; go: () => void };
      this.now += next.size;
      next.go();
    }
  }
}
