// A worker: leases runs, executes tasks and agents, and keeps their leases alive.

import { randomUUID } from "node:crypto";
import { hostname } from "node:os";
import type { AgentFunction, AgentOptions } from "./agent.js";
import { defaultBuild } from "./build.js";
import { checking, runCheck, type Checked } from "./check.js";
import { around, clock } from "./clock.js";
import { Trust, grantsOf } from "./grants.js";
import { executeAgent, executeTask, isLost, reject, wrapped, type Executor, type Middleware } from "./handlers.js";
import { Heart } from "./heart.js";
import { isObject, parse, type Json } from "./json.js";
import { announcement, checkKind, type Kind, type KindOptions, type TaskFunction } from "./kinds.js";
import { Kept, Lease, type LeasedGrant } from "./lease.js";
import { Problem, problemOf } from "./problems.js";
import type { Grant } from "./session.js";
import { NoAnswer, Transport, reach } from "./transport.js";

/** Options of a worker. */
export interface WorkerOptions {
  /** The server's address, or several of them. PERDURE_URL unless given. */
  url?: string | readonly string[];
  /** A key with worker:poll and worker:report. PERDURE_KEY unless given. */
  key?: string;
  /** Certificates of authorities in PEM, for https. */
  ca?: string;
  /** A name of the worker. It gives no rights. */
  id?: string;
  queues?: readonly string[];
  /** How many tasks are executed at once: 20 unless given. */
  slots?: number;
  /** How many agents are executed at once: 5 unless given. Runs that wait take none. */
  agentSlots?: number;
  /** Identifies the program. A run that a defect holds is granted at once to another build. A hash of the program's files unless given. */
  build?: string;
  /** Works for all tenants, with a key of the platform; except leaves some out. */
  allTenants?: boolean | { except: readonly string[] };
  /** Public keys in PEM by which runs are checked. */
  trust?: string;
  /** Rejects runs without a signature. */
  requireSignatures?: boolean;
  /** Milliseconds that handlers have to end when the worker is told to stop: 30 s unless given. */
  grace?: number;
  /** Functions around each execution; the first is the outermost. */
  middleware?: readonly Middleware[];
  /** Whether kinds are announced: yes unless given. */
  announce?: boolean;
  /** Whether run ends on SIGTERM and SIGINT: yes unless given. */
  signals?: boolean;
  log?: (level: "info" | "warn" | "error", text: string) => void;
}

/** Fields of polls that a server of an earlier release may not know. */
const optional = new Set(["confirms", "build", "start", "except_tenants"]);
const mostKept = 64 << 20;

/** Executes runs of its kinds until it is told to stop. */
export class Worker implements Executor, Checked {
  readonly id: string;
  readonly build: string;
  readonly clock = clock;
  /** @internal How many milliseconds the clock of the server is ahead. perdure/test moves it. */
  ahead = () => 0;
  readonly kept: Kept;
  readonly transport: Transport;
  readonly middleware: readonly Middleware[];
  readonly kinds = new Map<string, Kind>();

  private readonly o: WorkerOptions;
  private readonly heart: Heart;
  private readonly trust: Trust;
  private readonly leases = new Set<Lease>();
  private readonly without = new Set<string>();
  private readonly stopping = new AbortController();
  private waiting: (() => void)[] = [];
  private refused: Problem | undefined;

  constructor(options: WorkerOptions = {}) {
    const { slots = 20, agentSlots = 5 } = options;
    for (const n of [slots, agentSlots]) if (!Number.isInteger(n) || n < 1 || n > 1000) throw new TypeError(`slots and agentSlots are 1 to 1000, not ${n}`);
    this.o = options;
    this.id = options.id ?? `node-${hostname().slice(0, 40).replace(/[^\w.-]/g, "-")}-${randomUUID().slice(0, 8)}`;
    this.build = options.build ?? defaultBuild();
    this.middleware = options.middleware ?? [];
    this.transport = new Transport(reach(options));
    this.trust = new Trust(options.trust ?? "", options.requireSignatures === true);
    this.heart = new Heart(this.transport.reach, this.id, clock, (text) => this.log("warn", text));
    this.kept = new Kept(mostKept, (text) => this.log("warn", text));
  }

  /** Registers a task: a function of the input, which is executed whole in each attempt. */
  task<I = Json, R = unknown>(kind: string, f: TaskFunction<I, R>, options: KindOptions = {}): this {
    return this.add({ name: kind, class: "task", task: f as TaskFunction, options });
  }

  /** Registers an agent: a function of a context and the input, whose steps are recorded. */
  agent<I = Json, R = unknown>(kind: string, f: AgentFunction<I, R>, options: KindOptions & AgentOptions = {}): this {
    return this.add({ name: kind, class: "agent", agent: f as AgentFunction, options });
  }

  private add(k: Kind): this {
    checkKind(k.name, k.options);
    if (this.kinds.has(k.name)) throw new TypeError(`the kind ${k.name} is there already`);
    this.kinds.set(k.name, k);
    return this;
  }

  log(level: "info" | "warn" | "error", text: string): void {
    if (this.o.log) this.o.log(level, text);
    else if (level !== "info") console.error(`perdure ${level}: ${text}`);
  }

  /** Returns the function of an agent within the middleware. */
  call(kind: Kind, grant: Grant): (ctx: unknown, input: unknown) => Promise<unknown> {
    return wrapped(this, kind, grant, new AbortController().signal);
  }

  // ---- the life of a worker

  /** Works until stop is called, or the process gets SIGTERM or SIGINT. It throws if the server refuses the worker. */
  async run(): Promise<void> {
    if (this.kinds.size === 0) throw new TypeError("the worker has no kind: register one with task or agent");
    if (checking()) return await runCheck(this);
    let told = false;
    const tell = () => {
      told = true;
      this.stop();
    };
    const signals = this.o.signals === false ? [] : (["SIGTERM", "SIGINT"] as const);
    for (const s of signals) process.once(s, tell);
    try {
      await this.heart.ready();
      if (this.o.announce !== false) await this.announce();
      await Promise.all([this.polls("task", this.o.slots ?? 20), this.polls("agent", this.o.agentSlots ?? 5)]);
      await this.drain();
    } finally {
      for (const s of signals) process.removeListener(s, tell);
      await this.heart.end();
      this.transport.close();
    }
    // A leftover, such as a handler that was handed back, must not keep a process alive that was told to end.
    if (told) setTimeout(() => process.exit(), 1000).unref();
    if (this.refused) throw this.refused;
  }

  /** Leases no more, gives handlers the grace to end, and hands the others back. */
  stop(): void {
    this.stopping.abort();
    this.wake();
  }

  private async announce(): Promise<void> {
    for (const kind of this.kinds.values()) {
      const body = announcement(kind, this.build);
      if (this.o.allTenants) body.all_tenants = true;
      for (;;) {
        try {
          await this.transport.call("PUT", `/api/v1/kinds/${encodeURIComponent(kind.name)}`, { body, again: true, signal: this.stopping.signal });
        } catch (err) {
          if (this.stopping.signal.aborted) return;
          if (!(err instanceof Problem)) throw err;
          const field = err.field.split(/[.[]/)[0] as string;
          if (err.code === "invalid" && err.detail.includes("is no field") && field !== "class" && field in body) {
            this.log("warn", `the server does not know ${field} of a kind: it is of an earlier release`);
            delete body[field];
            continue;
          }
          if (["unauthorized", "forbidden", "invalid", "too_large", "unknown_limit"].includes(err.code)) throw err;
          this.log("warn", `the kind ${kind.name} is not announced: ${err.message}`);
        }
        break;
      }
    }
  }

  private async drain(): Promise<void> {
    const until = clock.now() + (this.o.grace ?? 30_000);
    for (const lease of this.leases) if (!lease.begun && !lease.lost) await this.release([lease]);
    while (this.leases.size > 0 && clock.now() < until) {
      const timer = setTimeout(() => this.wake(), until - clock.now());
      await this.change();
      clearTimeout(timer);
    }
    await this.release([...this.leases].filter((l) => !l.lost && !l.released));
  }

  private async release(leases: Lease[], notBefore?: Date): Promise<void> {
    if (leases.length === 0) return;
    for (const l of leases) {
      l.release();
      this.heart.drop(l);
    }
    const runs: Record<string, Json>[] = leases.map((l) => ({ ...l.key, ...(notBefore ? { not_before: notBefore.toISOString() } : {}) }));
    for (;;) {
      try {
        await this.transport.call("POST", this.path("release"), { body: { runs }, again: true });
        return;
      } catch (err) {
        if (err instanceof Problem && err.code === "invalid" && err.field.endsWith("not_before")) {
          for (const r of runs) delete r.not_before;
          continue;
        }
        return this.log("warn", `runs could not be handed back: ${String(err)}`);
      }
    }
  }

  /** Hands back a run whose handler could do nothing. */
  async handBack(lease: Lease, notBefore: Date): Promise<void> {
    await this.release([lease], notBefore);
  }

  path(verb: string): string {
    return `/api/v1/workers/${encodeURIComponent(this.id)}/${verb}`;
  }

  changed(lease: Lease, what: "told" | "note"): void {
    this.heart.changed(lease, what);
  }

  private wake(): void {
    for (const go of this.waiting.splice(0)) go();
  }

  private change(): Promise<void> {
    return new Promise((resolve) => this.waiting.push(resolve));
  }

  // ---- polls

  private async polls(of: "task" | "agent", slots: number): Promise<void> {
    const kinds = [...this.kinds.values()].filter((k) => k.class === of).map((k) => k.name);
    let pause = 100;
    while (kinds.length > 0 && !this.stopping.signal.aborted) {
      const used = [...this.leases].filter((l) => this.kinds.get(l.kind)?.class === of).length;
      if (used >= slots) {
        await this.change();
        continue;
      }
      const polled = clock.now();
      try {
        const answer = await this.poll(kinds, slots - used);
        pause = 100;
        if (answer !== undefined) this.take(answer, polled);
      } catch (err) {
        if (err instanceof Problem && ["unauthorized", "forbidden", "invalid"].includes(err.code)) {
          this.refused = err;
          return this.stop();
        }
        if (!(err instanceof Problem || err instanceof NoAnswer)) throw err;
        if (err instanceof NoAnswer) this.transport.next();
        await clock.sleep(around(err instanceof Problem ? Math.max(pause, err.retryAfter) : pause), this.stopping.signal);
        pause = Math.min(5000, pause * 2);
      }
    }
  }

  private async poll(kinds: string[], slots: number): Promise<string | undefined> {
    const body: Record<string, Json> = { queues: [...(this.o.queues ?? ["default"])], kinds, slots, wait: "5s", start: true, confirms: true, build: this.build };
    const { allTenants } = this.o;
    if (allTenants) body.all_tenants = true;
    if (typeof allTenants === "object" && allTenants.except.length > 0) body.except_tenants = [...allTenants.except];
    for (const name of this.without) delete body[name];
    const answer = await this.transport.once("POST", this.path("poll"), { body, wait: 5000 });
    if (answer.status < 400) return answer.text;
    const problem = problemOf(answer.status, answer.headers, answer.text);
    if (problem.code !== "invalid" || !optional.has(problem.field) || this.without.has(problem.field)) throw problem;
    this.log("warn", `the server does not know ${problem.field} of a poll: it is of an earlier release`);
    this.without.add(problem.field);
    return undefined;
  }

  private take(answer: string, polled: number): void {
    const signed = this.trust.checks ? grantsOf(answer) : undefined;
    const grants = signed?.map((s) => s.grant) ?? plain(answer);
    for (const [i, grant] of grants.entries()) {
      const lease = new Lease(this, grant, polled);
      this.leases.add(lease);
      this.heart.add(lease);
      const valid = signed === undefined || this.trust.accepts(grant, signed[i]?.input ?? "");
      if (!valid) this.log("error", `the signature of run ${lease.run} is not valid`);
      void this.execute(lease, valid);
    }
  }

  private async execute(lease: Lease, valid: boolean): Promise<void> {
    const kind = this.kinds.get(lease.kind) as Kind;
    try {
      if (lease.grant.state === "dispatched") await this.begin(lease);
      if (!valid) await reject(lease);
      else await (kind.class === "agent" ? executeAgent : executeTask)(this, kind, lease);
    } catch (err) {
      if (isLost(err)) this.log("info", `run ${lease.run} is no longer this worker's`);
      else this.log("error", `run ${lease.run} of ${lease.kind} is broken off: ${String(err)}`);
    } finally {
      this.leases.delete(lease);
      this.heart.drop(lease);
      this.wake();
    }
  }

  /** Begins with a run of a server that does not begin it with the grant. */
  private async begin(lease: Lease): Promise<void> {
    const answer = await this.transport.call("POST", this.path("start"), { body: { runs: [lease.key] }, again: true });
    const got = answer.json();
    const results = isObject(got) ? ((got.results ?? []) as { error?: unknown }[]) : [];
    if (results[0]?.error !== undefined) lease.lose();
  }
}

function plain(answer: string): LeasedGrant[] {
  const body = parse(answer);
  return isObject(body) ? ((body.runs ?? []) as unknown as LeasedGrant[]) : [];
}
