// Following the log of a run, as it is written.

import { clock } from "./clock.js";
import { parse, type Json } from "./json.js";
import { Problem } from "./problems.js";
import { NoAnswer, type Transport } from "./transport.js";

/** A line of a run's log. */
export interface Event {
  seq: number;
  type: string;
  at?: string;
  attempt?: number;
  data?: Json;
  [field: string]: Json | undefined;
}

/** Options of a stream. */
export interface StreamOptions {
  /** The number of the last line that is known. */
  after?: number;
  /** A connection that is silent for so many milliseconds is given up: 20 s unless given. */
  silence?: number;
  signal?: AbortSignal;
}

/**
 * Gives the log of a run as it is written, each line once and in order, through restarts of the server
 * and all its addresses. It ends with the run. Lines that are no longer kept are told as one event of
 * the type "stream:gap", with from and to.
 */
export async function* stream(transport: Transport, path: string, o: StreamOptions): AsyncGenerator<Event, void, void> {
  let after = o.after ?? 0;
  for (let failures = 0; ; failures++) {
    let wait = 0;
    try {
      const call = { accept: "text/event-stream", headers: { "Last-Event-ID": String(after) }, signal: o.signal };
      let attached = false;
      for await (const event of events(transport.lines(path, call, o.silence ?? 20_000))) {
        attached = true;
        failures = 0;
        if (event.type === "stream:end") return;
        if (event.type === "stream:attached" || (event.seq !== undefined && event.seq <= after && !event.type.startsWith("stream:"))) continue;
        if (event.seq !== undefined) after = event.seq;
        else if (typeof event.to === "number") after = Math.max(after, event.to);
        yield event as Event;
      }
      if (!attached) return; // 204: there is nothing more
    } catch (err) {
      o.signal?.throwIfAborted();
      if (err instanceof Problem) {
        if (err.status !== 429 && err.status !== 503) throw err;
        wait = err.retryAfter;
      } else if (!(err instanceof NoAnswer)) throw err;
    }
    transport.next();
    await clock.sleep(Math.max(wait, Math.min(2000, 50 * 2 ** Math.min(failures, 6))), o.signal);
    o.signal?.throwIfAborted();
  }
}

type Told = { type: string; seq?: number; to?: Json } & Record<string, Json | undefined>;

/** Reads server-sent events. */
async function* events(lines: AsyncIterable<string>): AsyncGenerator<Told, void, void> {
  let type = "";
  let data: string[] = [];
  for await (const line of lines) {
    if (line === "") {
      if (data.length > 0) yield { type, ...(parse(data.join("\n")) as object) } as Told;
      type = "";
      data = [];
    } else if (line.startsWith("event:")) type = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
  }
}

/** Collects the text that a model has streamed, without parts that were told again. */
export class StreamedText {
  private parts: { step: string; try: number; text: string }[] = [];

  /** Takes an event. It tells whether a text was begun again. */
  add(e: Event): boolean {
    if (e.type !== "llm:delta") return false;
    const d = (typeof e.data === "string" ? { text: e.data } : (e.data ?? {})) as { text?: string; step?: string; try?: number; channel?: string };
    if (d.channel === "reasoning") return false;
    const step = d.step ?? "";
    const number = d.try ?? 0;
    const told = this.parts.find((p) => step !== "" && p.step === step && p.try !== 0);
    if (told && number < told.try) return false;
    const again = told !== undefined && number > told.try;
    if (again) this.parts = this.parts.filter((p) => p.step !== step);
    this.parts.push({ step, try: number, text: d.text ?? "" });
    return again;
  }

  toString(): string {
    return this.parts.map((p) => p.text).join("");
  }
}
