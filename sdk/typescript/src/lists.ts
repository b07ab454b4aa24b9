// The part of the client for what there are many of: threads, kinds, limits, schedules, and pages of lists.

import { randomUUID } from "node:crypto";
import type { Json } from "./json.js";
import type { Duration } from "./names.js";
import { query, wire } from "./options.js";
import { Run, type RunFields } from "./run.js";
import type { ThreadMessage } from "./session.js";
import { Transport, reach } from "./transport.js";
import type { StartOptions } from "./client.js";

/** Options of a client. */
export interface ClientOptions {
  /** The server's address, or several of them. PERDURE_URL unless given. */
  url?: string | readonly string[];
  /** A key of the API. PERDURE_KEY unless given. */
  key?: string;
  /** Certificates of authorities in PEM, for https. */
  ca?: string;
  /** Another tenant, with a key of the platform. */
  tenant?: string;
  /** Milliseconds for one call, beside the time for which it waits: 30 s unless given. */
  timeout?: number;
  /** Milliseconds for which a call is repeated: 30 s unless given. */
  patience?: number;
}

/** Options of a call that changes something. */
export interface CallOptions {
  /** The same key makes the call take effect once, within 24 hours. A new one unless given. */
  idempotencyKey?: string;
}

/** Another name of an object of the API. */
export type Thing = Record<string, Json>;

/** A rate: so many grants in any window of time. */
export interface Rate {
  count: number;
  per: Duration;
  burst?: number;
}

/** A plan, and the start of its runs. */
export interface ScheduleOptions extends Omit<StartOptions, "name"> {
  description?: string;
  /** A cron expression with five fields, such as "30 2 * * mon-fri", or "@daily". */
  cron?: string;
  timezone?: string;
  /** An interval of at least 10 s. */
  every?: Duration;
  jitter?: Duration;
  overlap?: "allow" | "skip" | "queue" | "cancel_old";
  missed?: "once" | "skip" | "all";
  startAt?: Date;
  endAt?: Date;
  paused?: boolean;
}

export class ClientLists {
  /** @internal */
  readonly transport: Transport;

  constructor(options: ClientOptions = {}) {
    this.transport = new Transport(reach(options));
  }

  /** Closes the connections. */
  close(): void {
    this.transport.close();
  }

  // ---- calls

  /** Makes a call that reads. The path is that of the API. */
  async read<T = Thing>(path: string, q: Record<string, string | number | boolean | string[] | undefined> = {}): Promise<T> {
    return (await this.transport.call("GET", path, { query: q })).json() as T;
  }

  /** Makes a call that changes something, again under its key while nobody answers. Without a key it is repeated as it is. */
  async send<T = Thing>(
    method: string,
    path: string,
    body: unknown,
    o: { idempotencyKey?: string | false; query?: Record<string, string | number | undefined>; wait?: number | Duration },
  ): Promise<T> {
    const key = o.idempotencyKey === false ? {} : { idempotencyKey: o.idempotencyKey ?? randomUUID() };
    const answer = await this.transport.call(method, path, {
      ...(body === undefined ? {} : { body }),
      ...key,
      again: true,
      wait: typeof o.wait === "number" ? o.wait : 0,
      ...(o.query ? { query: o.query } : {}),
    });
    return answer.json() as T;
  }

  /** Gives the entries of a list, page after page. */
  async *pages<T = Thing>(path: string, field: string, q: Record<string, string | number | boolean | string[]>): AsyncGenerator<T, void, void> {
    for (let cursor = ""; ; ) {
      const page = await this.read<Record<string, unknown>>(path, { ...q, cursor });
      yield* (page[field] ?? []) as T[];
      cursor = (page.next_cursor as string | undefined) ?? "";
      if (cursor === "") return;
    }
  }

  // ---- threads

  async createThread(options: { name?: string; copyOf?: string; metadata?: Record<string, Json> } & CallOptions = {}): Promise<Thing & { thread_id: string }> {
    const { idempotencyKey: _, ...o } = options;
    return await this.send("POST", "/api/v1/threads", wire(o), options);
  }

  thread(id: string): Promise<Thing> {
    return this.read(threadPath(id));
  }

  threadByName(name: string): Promise<Thing> {
    return this.read(`/api/v1/threads/by-name/${encodeURIComponent(name)}`);
  }

  nameThread(id: string, name: string): Promise<Thing> {
    return this.send("PUT", `${threadPath(id)}/names/${encodeURIComponent(name)}`, {}, {});
  }

  /** Merges metadata into those of a thread. null removes a key. */
  changeThread(id: string, metadata: Record<string, Json>): Promise<Thing> {
    return this.send("PATCH", threadPath(id), { metadata }, {});
  }

  async deleteThread(id: string): Promise<void> {
    await this.send("DELETE", threadPath(id), undefined, {});
  }

  threads(filter: { q?: string; limit?: number; metadata?: Record<string, string> } = {}): AsyncGenerator<Thing, void, void> {
    return this.pages("/api/v1/threads", "threads", query(filter));
  }

  /** Gives the messages of a thread. */
  async *messages(thread: string, options: { after?: number } = {}): AsyncGenerator<ThreadMessage, void, void> {
    for (let after = options.after ?? 0; ; ) {
      const page = await this.read<{ messages: ThreadMessage[]; next_after?: number }>(`${threadPath(thread)}/messages`, { after });
      yield* page.messages;
      if (page.messages.length === 0 || !page.next_after || page.next_after <= after) return;
      after = page.next_after;
    }
  }

  async appendMessage(thread: string, role: string, content: unknown, options: { metadata?: Record<string, string> } & CallOptions = {}): Promise<{ thread_id: string; seq: number }> {
    const { idempotencyKey: _, ...o } = options;
    return await this.send("POST", `${threadPath(thread)}/messages`, wire({ role, content, ...o }), options);
  }

  // ---- kinds

  kinds(): AsyncGenerator<Thing, void, void> {
    return this.pages("/api/v1/kinds", "kinds", {});
  }

  kind(kind: string): Promise<Thing> {
    return this.read(`/api/v1/kinds/${encodeURIComponent(kind)}`);
  }

  // ---- limits

  limits(): AsyncGenerator<Thing, void, void> {
    return this.pages("/api/v1/limits", "limits", {});
  }

  limit(name: string): Promise<Thing> {
    return this.read(limitPath(name));
  }

  /** Makes a limit, or changes it. It has a concurrency, a rate, or both. */
  putLimit(name: string, options: { concurrency?: number; rate?: Rate; perKey?: boolean; description?: string } & CallOptions): Promise<Thing> {
    const { idempotencyKey: _, ...o } = options;
    return this.send("PUT", limitPath(name), wire(o), options);
  }

  async deleteLimit(name: string): Promise<void> {
    await this.send("DELETE", limitPath(name), undefined, {});
  }

  /** Closes a limit or a key of it: nothing is granted under it until an instant, or for a time. */
  closeLimit(name: string, options: { key?: string; until?: Date; for?: Duration; reason?: string } & CallOptions): Promise<Thing> {
    const { idempotencyKey: _, ...o } = options;
    return this.send("POST", `${limitPath(name)}/close`, wire(o), options);
  }

  openLimit(name: string, options: { key?: string } & CallOptions = {}): Promise<Thing> {
    return this.send("POST", `${limitPath(name)}/open`, options.key === undefined ? {} : { key: options.key }, options);
  }

  limitKeys(name: string): AsyncGenerator<Thing, void, void> {
    return this.pages(`${limitPath(name)}/keys`, "keys", {});
  }

  /** Gives a key of a limit values of its own. */
  putLimitKey(name: string, key: string, options: { concurrency?: number; rate?: Rate } & CallOptions): Promise<Thing> {
    const { idempotencyKey: _, ...o } = options;
    return this.send("PUT", `${limitPath(name)}/keys/${encodeURIComponent(key)}`, wire(o), options);
  }

  /** Gives a key of a limit the values of its limit again. */
  deleteLimitKey(name: string, key: string): Promise<Thing> {
    return this.send("DELETE", `${limitPath(name)}/keys/${encodeURIComponent(key)}`, undefined, {});
  }

  // ---- schedules

  /** Makes a schedule, or changes it. */
  putSchedule(name: string, kind: string, input: unknown, options: ScheduleOptions): Promise<Thing> {
    const { idempotencyKey: _, ...o } = options;
    return this.send("PUT", schedulePath(name), wire({ kind, ...(input === undefined ? {} : { input }), ...o }), options);
  }

  schedule(name: string): Promise<Thing> {
    return this.read(schedulePath(name));
  }

  schedules(): AsyncGenerator<Thing, void, void> {
    return this.pages("/api/v1/schedules", "schedules", {});
  }

  async deleteSchedule(name: string): Promise<void> {
    await this.send("DELETE", schedulePath(name), undefined, {});
  }

  pauseSchedule(name: string): Promise<Thing> {
    return this.send("POST", `${schedulePath(name)}/pause`, {}, {});
  }

  resumeSchedule(name: string): Promise<Thing> {
    return this.send("POST", `${schedulePath(name)}/resume`, {}, {});
  }

  /** Starts a run of a schedule now. */
  async triggerSchedule(name: string, options: CallOptions = {}): Promise<Run> {
    return new Run(await this.send<RunFields>("POST", `${schedulePath(name)}/trigger`, {}, options));
  }

  /** The next instants of a schedule. */
  async upcoming(name: string, n = 10): Promise<{ at: string; fires_at: string; local: string }[]> {
    return (await this.read<{ instants: { at: string; fires_at: string; local: string }[] }>(`${schedulePath(name)}/next`, { n })).instants;
  }
}

function threadPath(id: string): string {
  return `/api/v1/threads/${encodeURIComponent(id)}`;
}

function limitPath(name: string): string {
  return `/api/v1/limits/${encodeURIComponent(name)}`;
}

function schedulePath(name: string): string {
  return `/api/v1/schedules/${encodeURIComponent(name)}`;
}
