// The main thread's side of heartbeats: it starts their thread, and passes on what that hears.

import { Worker as Thread } from "node:worker_threads";
import type { FromBeats, ToBeats } from "./beats.js";
import type { Clock } from "./clock.js";
import type { Lease } from "./lease.js";
import type { Reach } from "./transport.js";

/** Keeps the leases of a worker alive. */
export class Heart {
  private thread: Thread | undefined;
  private readonly leases = new Map<string, Lease>();
  private ending = false;

  constructor(
    private readonly reach: Reach,
    private readonly id: string,
    private readonly clock: Clock,
    private readonly warn: (text: string) => void,
  ) {}

  /** Returns when the thread is there: leases need it at once. */
  async ready(): Promise<void> {
    const thread = this.thread ?? this.begin();
    thread.ref();
    await new Promise((resolve) => thread.once("online", resolve).once("exit", resolve));
    thread.unref();
  }

  /** Begins to keep a lease. */
  add(lease: Lease): void {
    this.leases.set(`${lease.run} ${lease.epoch}`, lease);
    // A run that is not heard from for 5 s is granted again.
    const first = lease.confirms ? 0 : Math.max(0, Math.min(1500, lease.every) - (this.clock.now() - lease.polled));
    this.tell({ do: "add", run: lease.run, epoch: lease.epoch, every: lease.every, in: first, cancelled: lease.cancelled });
  }

  drop(lease: Lease): void {
    if (this.leases.delete(`${lease.run} ${lease.epoch}`)) this.tell({ do: "drop", run: lease.run, epoch: lease.epoch });
  }

  changed(lease: Lease, what: "told" | "note"): void {
    const { run, epoch } = lease;
    if (what === "told") return this.tell({ do: "told", run, epoch });
    this.tell({ do: "note", run, epoch, activity: lease.activity, ...(lease.progress === undefined ? {} : { progress: lease.progress }) });
    lease.progress = undefined;
  }

  /** Ends the thread. */
  async end(): Promise<void> {
    this.ending = true;
    const thread = this.thread;
    if (!thread) return;
    thread.postMessage({ do: "end" } satisfies ToBeats);
    await thread.terminate();
  }

  private tell(m: ToBeats): void {
    if (!this.ending) (this.thread ?? this.begin()).postMessage(m);
  }

  private begin(): Thread {
    const thread = new Thread(new URL("./beats.js", import.meta.url), { workerData: { reach: this.reach, id: this.id }, name: "perdure-heartbeats" });
    thread.on("message", (m: FromBeats) => this.hear(m));
    thread.on("error", (err) => this.warn(`the thread of heartbeats has failed: ${String(err)}`));
    thread.on("exit", () => this.again(thread));
    thread.unref();
    this.thread = thread;
    return thread;
  }

  private again(thread: Thread): void {
    if (this.ending || this.thread !== thread) return;
    this.thread = undefined;
    for (const lease of this.leases.values()) this.add(lease);
  }

  private hear(m: FromBeats): void {
    if (m.tell === "warn") return this.warn(m.text);
    const key = `${m.run} ${m.epoch}`;
    const lease = this.leases.get(key);
    if (m.tell === "lost") {
      this.leases.delete(key);
      lease?.lose();
    } else if (m.tell === "cancel") lease?.askToStop();
    else lease?.heard();
  }
}
