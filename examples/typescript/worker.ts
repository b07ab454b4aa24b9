// A Perdure worker of nothing but Node's own fetch; PERDURE_URL and PERDURE_KEY say which server. It is the shortest
// description of the protocol of docs/api.md. Agents with durable steps are written with the SDK (sdk/typescript).
//
// A handler takes the run's input and the run. Its return value is the result; when it throws, the attempt failed and
// is tried again. One that takes long looks at run.stop: the run was asked to stop, or is no longer ours.

import { randomUUID } from "node:crypto";

const { PERDURE_URL = "http://127.0.0.1:7373", PERDURE_KEY = "" } = process.env;
const worker = `node-${randomUUID().slice(0, 8)}`;
const slots = 4;

type Handler = (input: never, run: Run) => unknown;
const handlers: Record<string, Handler> = {
  greet: (name: string) => `Hello, ${name}`,
  divide: ([a, b]: [bigint, bigint]) => Number(BigInt(a) / BigInt(b)),
  count: async (to: number, run) => { // a second for each number, unless it is stopped
    for (let n = 0; n < to; n++) {
      run.activity = `at ${n} of ${to}`; // for those who watch
      await sleep(1000, run.stop.signal);
      if (run.stop.signal.aborted) throw new Error(`stopped at ${n}`);
    }
    return to;
  },
};

interface Grant { run_id: string; epoch: number; kind: string; input?: unknown; lease_ms: number; max_attempts: number; cancel?: boolean }
interface Leases { run_id: string; epoch: number }

class Run { // a leased run; (id, epoch) is the right to write to it
  readonly id: string;
  readonly epoch: number;
  readonly every: number; // milliseconds between heartbeats: four to a lease
  readonly stop = new AbortController();
  beatAt: number;
  cancel: boolean;
  lost = false;
  activity = "";
  heard!: () => void;
  readonly hearing = new Promise<void>((resolve) => (this.heard = resolve));

  constructor(readonly grant: Grant) {
    this.id = grant.run_id;
    this.epoch = grant.epoch;
    this.every = Math.min(10_000, grant.lease_ms / 4);
    // Unheard of for 5 s, it is granted to others. So one with a single attempt begins when the server has heard of us.
    this.beatAt = Date.now() + (grant.max_attempts === 1 ? 0 : Math.min(2000, this.every));
    this.cancel = grant.cancel ?? false;
  }
}

const runs = new Set<Run>();
let draining = false;

function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

/** One call of the worker protocol: its status and answer. Status 0: nobody answered, nothing is known. */
async function call(verb: string, body: unknown, timeout = 30_000): Promise<{ status: number; answer: any }> {
  try {
    const headers = { Authorization: `Bearer ${PERDURE_KEY}`, "Content-Type": "application/json" };
    const response = await fetch(`${PERDURE_URL.replace(/\/$/, "")}/api/v1/workers/${worker}/${verb}`,
      { method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(timeout) });
    return { status: response.status, answer: await response.json() };
  } catch {
    return { status: 0, answer: {} };
  }
}

async function execute(run: Run): Promise<void> {
  let outcome: Record<string, unknown>;
  try {
    if (run.grant.max_attempts === 1) await run.hearing;
    if (run.cancel || run.lost) throw new Error("nothing has begun, nothing is to be cleaned up");
    const result = await (handlers[run.grant.kind] as Handler)(run.grant.input as never, run);
    outcome = { type: "complete", result: result ?? null };
  } catch (err) {
    const { name, message } = err as Error;
    outcome = run.cancel ? { type: "cancelled" } : { type: "fail", error: { code: name, message: message.slice(0, 1000) } };
  }
  // Sent until the server takes or refuses it, however long it is away, and always under the same commit_id: it
  // counts once, whatever answers are lost. Finished work is sent even when it is late: the server keeps it.
  let commit = { commit_id: `e${run.epoch}-1`, run_id: run.id, epoch: run.epoch, outcome };
  for (let pause = 100; !run.lost || commit.outcome.type === "complete"; pause = Math.min(5000, pause * 2)) {
    const { status, answer } = await call("commit", { commits: [commit] });
    if ([400, 413, 422].includes(status) && commit.outcome.type === "complete") { // no server takes this result: say so instead
      const error = { code: "result_refused", message: String(answer.detail) };
      commit = { ...commit, commit_id: `e${run.epoch}-2`, outcome: { type: "fail", retryable: false, error } };
    } else if ([200, 400, 404, 409, 413, 422].includes(status)) break; // taken; or refused: the run is no longer ours
    else await sleep(pause * (1 + Math.random()));
  }
  runs.delete(run);
}

/** Keeps the leases alive, many in one call; the answer says what is lost and what was asked to stop. */
async function heartbeats(): Promise<void> {
  for (; ; await sleep(100)) {
    const due = [...runs].filter((r) => !r.lost && r.beatAt <= Date.now());
    if (due.length === 0) continue;
    const beats = due.map((r) => ({ run_id: r.id, epoch: r.epoch, activity: r.activity, cancel_ack: r.cancel }));
    const { status, answer } = await call("heartbeat", { runs: beats }, 10_000);
    const has = (list: Leases[] | undefined, r: Run) => list?.some((x) => x.run_id === r.id && x.epoch === r.epoch) ?? false;
    for (const r of due) {
      r.beatAt = Date.now() + (status === 200 ? r.every : 500);
      if (has(answer.cancel, r) && !r.cancel) r.beatAt = Date.now(); // acknowledge at once
      r.lost ||= has(answer.lost, r);
      r.cancel ||= has(answer.cancel, r);
      if (r.lost || r.cancel) r.stop.abort();
      if (status === 200) r.heard();
    }
  }
}

process.on("SIGTERM", () => (draining = true)); // lease no more, finish what there is, end
void heartbeats();
while (!draining) {
  const free = slots - runs.size; // start: the runs begin at once, in the same write that leases them
  const body = { kinds: Object.keys(handlers), slots: free, wait: "5s", start: true, confirms: true };
  const { status, answer } = free > 0 ? await call("poll", body) : { status: 0, answer: {} };
  if ([400, 401, 403].includes(status)) {
    console.error(`the server refuses this worker: ${JSON.stringify(answer)}`);
    process.exit(1);
  }
  for (const run of ((answer.runs ?? []) as Grant[]).map((g) => new Run(g))) {
    runs.add(run);
    void execute(run);
  }
  if (status !== 200) await sleep(200);
}
while (runs.size > 0) await sleep(20);
process.exit(0);
