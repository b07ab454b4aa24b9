// The test kit, perdure/test: executes an agent with a crash before and after each of its commits, against a real
// "perdure serve", and compares how the runs end.
//
//   const server = await Server.start();
//   const report = await crash((o) => worker(o), "order", "lamp", { server, during });
//   assert.ok(report.ok, String(report));
//
// A crash is made at the wire: the commit does not arrive, or its answer does not. The worker hears that the lease is
// another's and drops the execution. The run is given back at once, so that nobody waits until the lease ends.

import { spawn, type ChildProcess } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdtemp, open, readFile, rm } from "node:fs/promises";
import { createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable } from "node:stream";
import { isDeepStrictEqual } from "node:util";
import { Client, type StartOptions } from "./client.js";
import { clock } from "./clock.js";
import { print, type Json } from "./json.js";
import { micros, type Duration } from "./names.js";
import { Watch } from "./outside.js";
import type { Run } from "./run.js";
import { Answer, NoAnswer, type Transport } from "./transport.js";
import type { Worker, WorkerOptions } from "./worker.js";

/** Most commits of a run that are crashed, and how many runs are executed at once. */
const mostCommits = 200;
const atOnce = 16;

/** The clock of a server that was started for it: its standard input moves it, and its output tells so. */
class MovedClock {
  ahead = 0; // milliseconds
  private readonly said: AsyncIterator<string>;
  private last: Promise<unknown> = Promise.resolve();

  constructor(private readonly process: ChildProcess) {
    this.said = createInterface({ input: process.stdout as Readable })[Symbol.asyncIterator]();
    process.stdin?.on("error", () => undefined); // the server has ended, and says no more
  }

  /** Moves it to so many milliseconds ahead of this machine's, unless it is there. One move comes after the other. */
  to(ahead: () => number): Promise<void> {
    const moved = this.last.then(async () => {
      const by = Math.ceil((ahead() - this.ahead) * 1000);
      if (by <= 0) return;
      this.process.stdin?.write(`${by}us\n`);
      for (let line = await this.said.next(); ; line = await this.said.next()) {
        if (line.done) throw new Error("the clock can't be moved: the server has ended");
        if (line.value.startsWith("error")) throw new Error(`the clock can't be moved: ${line.value}`);
        if (line.value.startsWith("ahead ")) break;
      }
      this.ahead += by / 1000;
    });
    this.last = moved.catch(() => undefined);
    return moved;
  }
}

/** A server in a process of its own. Its store is in memory where the machine has /dev/shm. */
export class Server {
  private readonly kill = () => void this.process.kill("SIGKILL");

  private constructor(
    readonly url: string,
    /** A key that may do everything. */
    readonly key: string,
    private readonly process: ChildProcess,
    private readonly folder: string,
    private readonly moved?: MovedClock,
  ) {
    globalThis.process.once("exit", this.kill);
  }

  /**
   * Starts the command perdure: by default that of the variable PERDURE, or of the PATH. With movesClock it has a clock
   * that advance and Trial.skip move.
   */
  static async start(options: ServerOptions = {}): Promise<Server> {
    const program = options.program ?? process.env.PERDURE ?? "perdure";
    const folder = await mkdtemp(join(existsSync("/dev/shm") ? "/dev/shm" : tmpdir(), "perdure-test-"));
    const port = await freePort();
    const [data, said] = [join(folder, "data"), join(folder, "log")];
    const log = await open(said, "w");
    const how = options.movesClock ? ["dev", "-clock-from-stdin", "-policy", "watchdog_interval=20ms"] : ["serve"];
    const flags = [...how, "-data", data, "-listen", `127.0.0.1:${port}`, ...(options.flags ?? [])];
    const [stdin, stdout] = options.movesClock ? (["pipe", "pipe"] as const) : (["ignore", log.fd] as const);
    const child = spawn(program, flags, { stdio: [stdin, stdout, log.fd] });
    const moved = options.movesClock ? new MovedClock(child) : undefined;
    const failed = new Promise<string>((resolve) => {
      child.once("error", (err) => resolve(`${err.message}; name the command perdure with the variable PERDURE`));
      child.once("exit", (code) => resolve(`it has ended with ${code}`));
    });
    const url = `http://127.0.0.1:${port}`;
    const over = new AbortController();
    try {
      const why = await Promise.race([failed, ready(url, over.signal)]);
      if (why !== undefined) throw new Error(`perdure serve: ${why}\n${(await readFile(said, "utf8")).slice(-2000)}`);
      return new Server(url, (await readFile(join(data, "admin.key"), "utf8")).trim(), child, folder, moved);
    } catch (err) {
      child.kill("SIGKILL");
      await rm(folder, { recursive: true, force: true });
      throw err;
    } finally {
      over.abort();
      await log.close();
    }
  }

  /** Whether its clock can be moved. */
  get movesClock(): boolean {
    return this.moved !== undefined;
  }

  /** How many milliseconds its clock is ahead of this machine's. */
  get ahead(): number {
    return this.moved?.ahead ?? 0;
  }

  /** Moves its clock ahead, for all runs. */
  async advance(by: Duration): Promise<void> {
    const ms = micros(by) / 1000;
    await this.clock().to(() => this.ahead + ms);
  }

  /** @internal Moves its clock to an instant, unless it is there. */
  async advanceTo(at: Date): Promise<void> {
    await this.clock().to(() => at.getTime() + 1 - Date.now());
  }

  private clock(): MovedClock {
    if (this.moved) return this.moved;
    throw new Error("the clock of this server can't be moved: start it with movesClock");
  }

  /** A client with all rights. Close it. */
  client(): Client {
    return new Client({ url: this.url, key: this.key });
  }

  /** Ends the process, and removes its folder. */
  async close(): Promise<void> {
    process.removeListener("exit", this.kill);
    const ended = new Promise((resolve) => this.process.once("exit", resolve));
    if (this.process.exitCode === null && this.process.signalCode === null && this.process.kill("SIGKILL")) await ended;
    await rm(this.folder, { recursive: true, force: true });
  }
}

/** Options of a server. */
export interface ServerOptions {
  /** The command perdure. */
  program?: string;
  /** Flags of "perdure serve". */
  flags?: readonly string[];
  /** The clock can be moved. Runs are executed one after the other then, because the clock is that of all. */
  movesClock?: boolean;
}

async function freePort(): Promise<number> {
  const probe = createServer();
  await new Promise<void>((resolve) => probe.listen(0, "127.0.0.1", resolve));
  const { port } = probe.address() as AddressInfo;
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

/** Returns when a server takes calls. */
async function ready(url: string, over: AbortSignal): Promise<undefined> {
  const client = new Client({ url, key: "none" });
  try {
    while (!over.aborted) {
      try {
        if ((await client.transport.once("GET", "/readyz")).status === 200) return undefined;
      } catch (err) {
        if (!(err instanceof NoAnswer)) throw err;
      }
      await clock.sleep(20, over);
    }
    return undefined;
  } finally {
    client.close();
  }
}

/** One run of a scenario. It crashes at one of its commits, or at none. */
export class Trial {
  /** The id of the run. */
  runId = "";
  /** How many commits the run has made. */
  commits = 0;
  crashed = false;
  private readonly seen = new Set<string>();
  private readonly skipped = new Set<string>();

  constructor(
    readonly client: Client,
    /** The number of the commit at which it crashes, from 1; 0 is no crash. */
    readonly crash = 0,
    /** The commit arrives, and its answer is lost. */
    readonly after = false,
    private readonly server?: Server,
  ) {}

  toString(): string {
    if (this.crash === 0) return "without a crash";
    return `with a crash ${this.after ? "after" : "before"} commit ${this.crash}`;
  }

  /** Sends a signal. A run takes it when it waits for it, also later. */
  async signal(name: string, data: unknown = null): Promise<void> {
    await this.client.signal(this.runId, name, data);
  }

  /** Waits until the run asks a person, and answers. */
  async decide(decision: "approve" | "reject", answer?: unknown): Promise<void> {
    for (;;) {
      for await (const a of this.client.approvals({ runId: this.runId })) {
        const more = answer === undefined ? {} : { answer };
        await this.client.decide(a.approval_id, decision, { actionHash: a.action_hash, ...more });
        return;
      }
      if ((await this.client.get(this.runId)).ended) return;
      await clock.sleep(20);
    }
  }

  /**
   * Waits until the run sleeps, and moves the clock to the end of the sleep. With another type of wait, such as
   * "signal", it moves the clock to the timeout of that. Each wait is skipped once.
   */
  async skip(type: "timer" | "signal" | "approval" | "callback" | "message" | "children" = "timer"): Promise<void> {
    for (;;) {
      const { waits = [] } = (await this.client.activity(this.runId)) as { waits?: OpenWait[] };
      const due = waits.find((w) => w.type === type && w.timeout_at !== undefined && !this.skipped.has(w.wait_id));
      if (due?.timeout_at !== undefined) {
        this.skipped.add(due.wait_id);
        return await this.server?.advanceTo(new Date(due.timeout_at));
      }
      if ((await this.client.get(this.runId)).ended) return;
      await clock.sleep(20);
    }
  }

  /** @internal Counts a commit, and tells whether the trial crashes at it. */
  counts(id: string): boolean {
    if (!this.seen.has(id)) this.commits++;
    this.seen.add(id);
    return this.crash > 0 && !this.crashed && this.commits === this.crash;
  }
}

interface OpenWait {
  wait_id: string;
  type: string;
  timeout_at?: string;
}

/** How a run has ended, as far as it is compared. */
export interface End {
  state: string;
  result?: Json;
  /** The code of its error. */
  code?: string;
  /** Why it is held: a defect of the code. */
  held?: string;
  /** The messages of its thread. */
  messages?: { role: string; content: Json }[];
  /** What observe has returned. */
  observed?: unknown;
}

/** What has become of the runs. */
export class Report {
  /** How many runs have crashed. */
  crashes = 0;
  /** A text for each run that has ended in another way than the one without a crash. */
  readonly differences: string[] = [];
  /**
   * What the agent's code did to the machine between its steps: what it wrote, fetched and started, and the environment
   * and the name of the machine, if it read these.
   */
  outside: string[] = [];

  constructor(
    /** How the run without a crash has ended. */
    readonly end: End,
  ) {}

  /** All have ended as the one without a crash, which was not held, and nothing was done between steps. */
  get ok(): boolean {
    return this.differences.length === 0 && this.outside.length === 0 && this.crashes > 0 && this.end.held === undefined;
  }

  toString(): string {
    const { crashes, differences, end } = this;
    if (end.held !== undefined) return `without a crash the run is held: ${end.held}`;
    if (crashes === 0) return "no run has crashed: has the agent no commit?";
    const outside = this.outside.map((what) => `between its steps it ${what}: do that in a step`);
    return [`${crashes} runs have crashed, and ${differences.length} have ended otherwise`, ...differences, ...outside].join("\n");
  }
}

/** Options of crash, beside those of a start. */
export interface CrashOptions extends Omit<StartOptions, "idempotencyKey" | "threadId" | "class"> {
  server: Server;
  /** Is called for each run, to send signals and to decide. */
  during?: (trial: Trial) => unknown;
  /** Returns what else is compared, of a run that has ended: its effects, for example. */
  observe?: (runId: string) => unknown;
  /** Gives each run a thread of its own, whose messages are compared. */
  onThread?: boolean;
  /** How long a run may take: two minutes unless given. */
  wait?: Duration;
  /** Names of files and environment variables that may be used between steps. */
  allow?: readonly string[];
}

/**
 * Executes an agent without a crash, and then once with a crash before and once after each of its commits. All runs
 * have to end in the same way: state, result, code of the error, and messages of the thread.
 *
 * make returns a worker with the kinds of the scenario. It gets options with the address of the server, which it passes
 * on. Tasks are executed without crashes.
 */
export async function crash(
  make: (options: WorkerOptions) => Worker,
  kind: string,
  input: unknown,
  options: CrashOptions,
): Promise<Report> {
  const { server } = options;
  const log = (level: string, text: string) => void (level === "error" && console.error(text));
  const common = { log, announce: false, signals: false, grace: 0, slots: 64, agentSlots: 64, build: "test" };
  const worker = make({ url: server.url, key: server.key, ...common });
  worker.ahead = () => server.ahead;
  const client = server.client();
  const watch = new Watch(options.allow);
  const wire = new Wire(worker.transport, worker.path("release"), watch);
  let refused: unknown;
  const works = worker.run().catch((err: unknown) => (refused = err));
  const execute = async (trial: Trial) => {
    if (refused !== undefined) throw refused;
    return await executed(client, wire, trial, kind, input, options);
  };
  try {
    const first = new Trial(client, 0, false, server);
    const report = new Report(await execute(first));
    if (report.end.held !== undefined) return report;
    const rest: Trial[] = [];
    for (let n = 1; n <= Math.min(first.commits, mostCommits); n++)
      for (const after of [false, true]) rest.push(new Trial(client, n, after, server));
    const ends: (End | undefined)[] = [];
    let next = 0;
    const some = async () => {
      for (let n = next++; n < rest.length; n = next++) ends[n] = await execute(rest[n] as Trial);
    };
    await Promise.all(Array.from({ length: server.movesClock ? 1 : atOnce }, some));
    for (const [n, trial] of rest.entries()) {
      report.crashes += trial.crashed ? 1 : 0;
      const [got, want] = [ends[n], report.end].map((e) => print(e));
      if (!isDeepStrictEqual(ends[n], report.end))
        report.differences.push(`${trial} it ends with ${got}, and without one with ${want}`);
    }
    report.outside = [...watch.seen].sort();
    return report;
  } finally {
    watch.close();
    worker.stop();
    worker.transport.close(); // polls that wait are given up
    await works;
    client.close();
  }
}

/** Starts a run, waits for it, and returns how it has ended. */
async function executed(
  client: Client,
  wire: Wire,
  trial: Trial,
  kind: string,
  input: unknown,
  options: CrashOptions,
): Promise<End> {
  const { server: _, during, observe, onThread, wait = "2m", allow: __, ...start } = options;
  const thread = onThread ? (await client.createThread()).thread_id : undefined;
  const more = thread === undefined ? {} : { threadId: thread };
  await wire.begin(trial, async () => (await client.start(kind, input, { ...start, ...more, class: "agent" })).id);
  const run = trial.runId;
  let failed: unknown;
  const others = Promise.resolve(during?.(trial)).catch(async (err: unknown) => {
    failed = err;
    await client.cancel(run, { reason: "the test has failed" });
  });
  const ended = await endOf(client, run, clock.now() + micros(wait) / 1000);
  if (failed !== undefined) throw failed;
  if (!ended.ended) {
    await client.cancel(run, { reason: "it is held", wait: "5s" });
    return { state: "held", held: String((ended.fields.hold as { message?: string }).message) };
  }
  await others;
  const out: End = { state: ended.state };
  if (ended.fields.result !== undefined) out.result = ended.fields.result;
  if (ended.error) out.code = ended.error.code;
  if (thread !== undefined) {
    out.messages = [];
    for await (const m of client.messages(thread)) out.messages.push({ role: m.role, content: m.content });
  }
  if (observe) out.observed = await observe(run);
  return out;
}

/** Waits until a run has ended, or is held: a build that holds a run gets it no more. */
async function endOf(client: Client, id: string, until: number): Promise<Run> {
  for (;;) {
    const run = await client.join(id, 500);
    if (run.ended || run.fields.hold !== undefined) return run;
    if (clock.now() >= until) throw new Error(`run ${id} is ${run.state}, and has not ended in time`);
  }
}

/** Sees the commits of a worker, and loses one of each trial. */
class Wire {
  private readonly trials = new Map<string, Trial>();
  private readonly beginning = new Set<Promise<unknown>>();
  private readonly once: Transport["once"];

  constructor(
    transport: Transport,
    private readonly release: string,
    private readonly watch: Watch,
  ) {
    this.once = transport.once.bind(transport);
    transport.once = (...call) => (call[1].endsWith("/commit") ? this.commit(...call) : this.once(...call));
  }

  /** Starts the run of a trial. None of its commits is sent before its id is known. */
  async begin(trial: Trial, start: () => Promise<string>): Promise<void> {
    const begun = start().then((id) => {
      trial.runId = id;
      this.watch.run(id);
      this.trials.set(id, trial);
    });
    const settled = begun.catch(() => undefined);
    this.beginning.add(settled);
    void settled.then(() => this.beginning.delete(settled));
    await begun;
  }

  private async commit(...call: Parameters<Transport["once"]>): Promise<Answer> {
    const text = Buffer.from(call[2]?.raw as Uint8Array).toString();
    const { commits } = JSON.parse(text) as { commits: [{ commit_id: string; run_id: string; epoch: number }] };
    const { commit_id, run_id, epoch } = commits[0];
    if (!this.trials.has(run_id)) await Promise.all(this.beginning);
    const trial = this.trials.get(run_id);
    if (!trial?.counts(commit_id)) return await this.once(...call);
    trial.crashed = true;
    if (trial.after) await this.once(...call);
    // It is refused if the commit has ended or suspended the run.
    await this.once("POST", this.release, { body: { runs: [{ run_id, epoch }] } });
    return new Answer(409, {}, Buffer.from('{"code":"stale_epoch","detail":"the test has crashed the worker here"}'));
  }
}
