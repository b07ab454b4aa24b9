// The thread of a worker's heartbeats. A handler that computes without a pause holds up the main
// thread, and keeps its leases nevertheless.

import { parentPort, workerData } from "node:worker_threads";
import { clock } from "./clock.js";
import type { Json } from "./json.js";
import { isObject } from "./json.js";
import { Problem, problemOf } from "./problems.js";
import { NoAnswer, Transport, type Reach } from "./transport.js";

/** What the thread is told. */
export type ToBeats =
  | { do: "add"; run: string; epoch: number; every: number; in: number; cancelled: boolean }
  | { do: "note"; run: string; epoch: number; activity?: string; progress?: Json }
  | { do: "told" | "drop"; run: string; epoch: number }
  | { do: "end" };

/** What the thread tells. */
export type FromBeats = { tell: "heard" | "lost" | "cancel"; run: string; epoch: number } | { tell: "warn"; text: string };

interface Held {
  run: string;
  epoch: number;
  every: number;
  /** When the next heartbeat is due. */
  at: number;
  heard: boolean;
  /** The run is asked to stop, and the main thread has heard of it. */
  asked: boolean;
  told: boolean;
  acknowledged: boolean;
  activity?: string;
  progress?: Json;
}

const { reach, id } = workerData as { reach: Reach; id: string };
const port = parentPort as NonNullable<typeof parentPort>;
const transport = new Transport(reach);
const held = new Map<string, Held>();
const without = new Set<string>();
const over = new AbortController();
let timer: NodeJS.Timeout | undefined;
let listening = false;

function path(verb: string): string {
  return `/api/v1/workers/${encodeURIComponent(id)}/${verb}`;
}

function tell(m: FromBeats): void {
  if (!over.signal.aborted) port.postMessage(m);
}

function schedule(): void {
  clearTimeout(timer);
  const due = Math.min(...[...held.values()].map((h) => h.at));
  if (due !== Infinity && !over.signal.aborted) timer = setTimeout(beatAll, Math.max(0, due - clock.now()));
}

function beatAll(): void {
  const now = clock.now();
  const due = [...held.values()].filter((h) => h.at <= now + 1);
  for (const h of due) h.at = now + h.every;
  for (let n = 0; n < due.length; n += 1000) void beat(due.slice(n, n + 1000));
  schedule();
}

async function beat(due: Held[]): Promise<void> {
  const runs = due.map((h) => {
    const { run, epoch, activity, progress } = h;
    return { run_id: run, epoch, ...(activity ? { activity } : {}), ...(progress === undefined ? {} : { progress }), ...(h.told ? { cancel_ack: true } : {}) };
  });
  const sent: Sent[] = due.map((h) => ({ h, told: h.told, progress: h.progress }));
  try {
    const answer = await transport.once("POST", path("heartbeat"), { body: { runs }, wait: -20_000 });
    if (answer.status >= 400) throw problemOf(answer.status, answer.headers, answer.text);
    take(answer.json(), sent);
  } catch (err) {
    const wait = err instanceof Problem ? Math.max(1000, err.retryAfter) : 500;
    if (err instanceof NoAnswer) transport.next();
    else tell({ tell: "warn", text: `heartbeats are refused: ${String(err)}` });
    if (err instanceof Problem && err.status < 500 && err.status !== 429) for (const s of sent) forget(s);
    for (const h of due) h.at = Math.min(h.at, clock.now() + wait);
    schedule();
  }
}

/** What a heartbeat has said of a lease. */
interface Sent {
  h: Held;
  told: boolean;
  progress: Json | undefined;
}

/** Drops what the server may have refused: the leases are renewed anyway. */
function forget({ h, progress }: Sent): void {
  delete h.activity;
  if (h.progress === progress) delete h.progress;
}

function take(answer: Json, sent: Sent[]): void {
  const listOf = (name: string) => {
    const list = isObject(answer) ? ((answer[name] ?? []) as { run_id: string; epoch: number; error?: { code: string } }[]) : [];
    return new Set(list.map((x) => `${x.run_id} ${x.epoch}`));
  };
  const lost = listOf("lost");
  const cancel = listOf("cancel");
  const later = listOf("later");
  for (const { h, told, progress } of sent) {
    const key = `${h.run} ${h.epoch}`;
    if (later.has(key)) {
      // The row is locked: the lease is neither lost nor extended, and nothing of it was heard.
      h.at = Math.min(h.at, clock.now() + Math.min(h.every, 1000));
      continue;
    }
    if (told) h.acknowledged = true;
    if (h.progress === progress) delete h.progress;
    if (lost.has(key)) {
      held.delete(key);
      tell({ tell: "lost", run: h.run, epoch: h.epoch });
      continue;
    }
    if (!h.heard) tell({ tell: "heard", run: h.run, epoch: h.epoch });
    h.heard = true;
    if (cancel.has(key) && !h.asked) {
      h.asked = true;
      tell({ tell: "cancel", run: h.run, epoch: h.epoch });
    }
  }
  schedule();
}

/** Hears of cancels before the next heartbeat. */
async function listen(): Promise<void> {
  if (listening) return;
  listening = true;
  while (!over.signal.aborted && held.size > 0) {
    const holding = [...held.values()].filter((h) => !h.asked).slice(0, 1000).map((h) => ({ run_id: h.run, epoch: h.epoch }));
    const body: Record<string, Json> = { news: true, slots: 0, wait: "10s", holding };
    for (const name of without) delete body[name];
    try {
      const answer = await transport.once("POST", path("poll"), { body, signal: over.signal, wait: 0 });
      if (answer.status >= 400) throw problemOf(answer.status, answer.headers, answer.text);
      const got = answer.json();
      if (isObject(got) && got.news === true) {
        for (const h of held.values()) h.at = clock.now();
        schedule();
        await clock.sleep(300, over.signal);
      }
    } catch (err) {
      if (err instanceof Problem && err.code === "invalid") {
        if (err.field !== "holding") break; // a server that has no news
        without.add("holding");
      }
      await clock.sleep(1000, over.signal);
    }
  }
  listening = false;
}

port.on("message", (m: ToBeats) => {
  if (m.do === "end") {
    over.abort();
    clearTimeout(timer);
    transport.close();
    port.close();
    return;
  }
  const key = `${m.run} ${m.epoch}`;
  if (m.do === "add") {
    const { run, epoch, every, cancelled } = m;
    held.set(key, { run, epoch, every, at: clock.now() + m.in, heard: false, asked: cancelled, told: cancelled, acknowledged: false });
    void listen();
    return schedule();
  }
  const h = held.get(key);
  if (!h) return;
  if (m.do === "drop") held.delete(key);
  if (m.do === "told") {
    h.asked = h.told = true;
    if (!h.acknowledged) h.at = clock.now();
  }
  if (m.do === "note") {
    if (m.activity !== undefined) h.activity = m.activity;
    if (m.progress !== undefined) h.progress = m.progress;
  }
  schedule();
});
