// Tasks: functions that are executed whole, and what they are given.

import { createHash } from "node:crypto";
import { Failure, clean } from "./errors.js";
import { Lost } from "./session.js";
import type { Lease } from "./lease.js";
import { closureOf } from "./limits.js";
import { micros, type Duration } from "./names.js";
import { encode } from "./value.js";
import type { Json } from "./json.js";
import type { CommitBody } from "./batch.js";

/** The most lines that wait for the server. */
const mostLines = 1000;
/** The most bytes of a line of streamed text. */
const mostText = 8 << 10;

/** Thrown by a task that could do nothing, for example because another system has answered 429. */
export class Later extends Error {
  constructor(
    /** The run is not executed again before. */
    readonly at: Date,
    override readonly cause?: unknown,
  ) {
    super(`not before ${at.toISOString()}`);
  }
}

/** Hands a run back: throw it. It costs no attempt. The time is at most 24 hours ahead, and the run's deadline counts. */
export function later(at: Date | Duration, cause?: unknown): Later {
  return new Later(at instanceof Date ? at : new Date(Date.now() + micros(at) / 1000), cause);
}

/** Is given to the function of a task. */
export class Task {
  private lines: NonNullable<CommitBody["events"]> = [];
  private sending: Promise<void> | undefined;
  private broken: unknown;

  /** @internal */
  constructor(private readonly lease: Lease) {}

  get runId(): string {
    return this.lease.run;
  }
  get kind(): string {
    return this.lease.kind;
  }
  /** The number of the attempt, from 1. */
  get attempt(): number {
    return this.lease.grant.attempt;
  }
  get tenant(): string | undefined {
    return this.lease.grant.tenant;
  }
  get deadline(): Date {
    return new Date(this.lease.grant.deadline_at);
  }
  /** A key for other systems. It is the same in every attempt and retry. */
  get idempotencyKey(): string {
    return this.lease.grant.origin_run_id;
  }
  /** It ends when the run is asked to stop, or is another worker's by now. */
  get signal(): AbortSignal {
    return this.lease.stop.signal;
  }

  /** Tells with the next heartbeat what the task does, and how far it is. */
  heartbeat(activity: string, progress?: unknown): void {
    this.lease.note({ activity: clean(activity).slice(0, 4000), ...(progress === undefined ? {} : { progress: encode("the progress", progress).json }) });
  }

  /** Streams text to those who watch. Await it if there is much: it returns when there is room for more. */
  delta(text: string): Promise<void> {
    const piece = clean(text);
    const last = this.lines.at(-1);
    const before = last?.type === "llm:delta" ? (last.data as { text: string }).text : undefined;
    if (last && before !== undefined && before.length + piece.length <= mostText) {
      last.data = { text: before + piece };
      return this.flushed();
    }
    return this.line("llm:delta", { text: piece });
  }

  /** Writes a line of the run's log, whose type begins with "x:". */
  emit(type: string, data?: unknown): Promise<void> {
    const name = type.startsWith("x:") ? type : `x:${type}`;
    return this.line(name, data === undefined ? undefined : encode(`the line ${name}`, data).json);
  }

  /** Closes a limit, or a key of it, for a time, as StepContext.closeLimit does. */
  async closeLimit(name: string, span: Duration, options: { key?: string; reason?: string } = {}): Promise<void> {
    await this.lease.commit({ limits: [closureOf(name, span, options)] });
  }

  private line(type: string, data: Json | undefined): Promise<void> {
    if (this.lines.length >= mostLines) throw new Failure("over_bound", `${mostLines} lines of run ${this.runId} wait for the server; await what delta and emit return`);
    this.lines.push(data === undefined ? { type } : { type, data });
    return this.flushed();
  }

  /** Sends what was written within 50 ms. It waits only if much is waiting already. */
  private flushed(): Promise<void> {
    this.sending ??= this.sendSoon();
    return this.lines.length < mostLines / 2 ? Promise.resolve() : this.sending;
  }

  private async sendSoon(): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, 50));
    await this.send();
    this.sending = undefined;
  }

  private async send(): Promise<void> {
    while (this.lines.length > 0) {
      const events = this.lines.splice(0, 200);
      try {
        await this.lease.commit({ events });
      } catch (err) {
        if (err instanceof Lost) return;
        this.broken ??= err;
      }
    }
  }

  /** @internal Sends what is left. It throws the refusal of a line. */
  async end(): Promise<void> {
    await this.send();
    if (this.broken !== undefined) throw this.broken;
  }

  /** Leaves a file beside the result. The same name with other bytes replaces it. */
  async artifact(name: string, bytes: Uint8Array | string, contentType = "application/octet-stream"): Promise<{ name: string; size: number; sha256: string }> {
    const raw = typeof bytes === "string" ? Buffer.from(bytes) : bytes;
    const sha256 = createHash("sha256").update(raw).digest("hex");
    return (await this.lease.put(`artifacts/${encodeURIComponent(name)}`, raw, contentType, { sha256 })) as { name: string; size: number; sha256: string };
  }
}
