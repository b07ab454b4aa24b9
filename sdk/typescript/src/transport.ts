// Calls of a server: its addresses, connections that are kept, retries, and answers.

import http from "node:http";
import https from "node:https";
import { around, clock, type Clock } from "./clock.js";
import { parse, print, type Json } from "./json.js";
import { Problem, problemOf } from "./problems.js";

/** The largest body of a call. */
const largestCall = 16 << 20;

/** With these codes nothing was changed, or the call has a key: it may be sent again. */
const again = new Set(["unavailable", "unknown_outcome", "shutting_down", "too_many_requests", "storage_full", "query_timeout"]);

/** How a server is reached. */
export interface Reach {
  addresses: string[];
  key: string;
  tenant?: string;
  /** Certificates of authorities in PEM, for https. Without them those of the machine count. */
  ca?: string;
  /** Milliseconds for one call, beside the time for which it waits. */
  timeout: number;
  /** Milliseconds for which a call is repeated. */
  patience: number;
}

/** A call. */
export interface Call {
  query?: Record<string, string | number | boolean | string[] | undefined>;
  body?: unknown;
  raw?: Uint8Array;
  contentType?: string;
  accept?: string;
  headers?: Record<string, string>;
  idempotencyKey?: string;
  /** Milliseconds for which the server may wait before it answers. */
  wait?: number;
  /** Whether the call may be sent twice. GET may, and so may calls with a key. */
  again?: boolean;
  signal?: AbortSignal | undefined;
}

/** An answer that has come whole. */
export class Answer {
  constructor(
    readonly status: number,
    readonly headers: http.IncomingHttpHeaders,
    readonly bytes: Buffer,
  ) {}
  get text(): string {
    return this.bytes.toString("utf8");
  }
  json(): Json {
    return this.bytes.length === 0 ? null : parse(this.text);
  }
}

/** Thrown by once if nobody has answered. */
export class NoAnswer extends Error {
  constructor(
    address: string,
    override readonly cause: Error,
    /** Nothing was sent. */
    readonly unsent: boolean,
  ) {
    super(`${address} does not answer: ${cause.message}`);
  }
}

/** Reads the addresses and the key from options and from PERDURE_URL and PERDURE_KEY. */
export function reach(o: { url?: string | readonly string[]; key?: string; tenant?: string; ca?: string; timeout?: number; patience?: number }): Reach {
  const given = o.url ?? process.env.PERDURE_URL ?? "http://127.0.0.1:7373";
  const addresses = (typeof given === "string" ? given.split(",") : [...given]).map((a) => a.trim().replace(/\/+$/, ""));
  for (const a of addresses) if (!/^https?:\/\/./.test(a)) throw new TypeError(`${JSON.stringify(a)} is no address: it begins with http:// or https://`);
  if (addresses.length === 0) throw new TypeError("there is no address of a server");
  return {
    addresses,
    key: o.key ?? process.env.PERDURE_KEY ?? "",
    ...(o.tenant ? { tenant: o.tenant } : {}),
    ...(o.ca ? { ca: o.ca } : {}),
    timeout: o.timeout ?? 30_000,
    patience: o.patience ?? 30_000,
  };
}

/** Sends calls to the addresses of a server. The one that answers is kept. */
export class Transport {
  private at = 0;
  private readonly plain = new http.Agent({ keepAlive: true });
  private readonly secure: https.Agent;

  constructor(
    readonly reach: Reach,
    private readonly time: Clock = clock,
  ) {
    this.secure = new https.Agent({ keepAlive: true, ...(reach.ca ? { ca: reach.ca } : {}) });
  }

  get address(): string {
    return this.reach.addresses[this.at % this.reach.addresses.length] as string;
  }

  /** Goes on with the next address. */
  next(): void {
    this.at++;
  }

  close(): void {
    this.plain.destroy();
    this.secure.destroy();
  }

  /** Makes a call once. It throws NoAnswer if nobody answers, and returns refusals. */
  async once(method: string, path: string, c: Call = {}): Promise<Answer> {
    const body = bodyOf(c);
    if (body && body.length > largestCall) throw new Problem("too_large", `the call has ${body.length} bytes; at most 16 MiB are taken`);
    const safe = method === "GET" || c.idempotencyKey !== undefined;
    try {
      return await this.send(method, path, c, body);
    } catch (err) {
      if (!(err instanceof Stale) || !safe) throw err instanceof Stale ? new NoAnswer(this.address, err.cause, false) : err;
      return await this.send(method, path, c, body); // the kept connection had been closed meanwhile
    }
  }

  /** Makes a call, again while it may be repeated and the patience lasts. A refusal is thrown. */
  async call(method: string, path: string, c: Call = {}): Promise<Answer> {
    const repeat = c.again ?? (method === "GET" || c.idempotencyKey !== undefined);
    const until = this.time.now() + this.reach.patience;
    for (let pause = 100; ; pause = Math.min(2000, pause * 2)) {
      let problem: Problem;
      try {
        const answer = await this.once(method, path, c);
        if (answer.status < 400) return answer;
        problem = problemOf(answer.status, answer.headers, answer.text);
        if (!(again.has(problem.code) && repeat) && problem.code !== "unavailable") throw problem;
        if (problem.code === "shutting_down") this.next();
      } catch (err) {
        if (!(err instanceof NoAnswer)) throw err;
        c.signal?.throwIfAborted();
        problem = new Problem("unavailable", err.message, { status: 0, cause: err.cause });
        this.next();
        if (!repeat && !err.unsent) throw problem;
      }
      const wait = Math.max(problem.retryAfter, around(pause));
      if (this.time.now() + wait >= until) throw problem;
      await this.time.sleep(wait, c.signal);
      c.signal?.throwIfAborted();
    }
  }

  /** Gives the lines of an answer as they come. It ends silently if there is nothing more, and throws if it is cut. */
  async *lines(path: string, c: Call, silence: number): AsyncGenerator<string, void, void> {
    const { request, response } = await this.open("GET", path, c, undefined, silence);
    try {
      if (response.statusCode === 204) return;
      if ((response.statusCode ?? 0) >= 400) throw problemOf(response.statusCode as number, response.headers, (await whole(response)).toString());
      response.setEncoding("utf8");
      request.setTimeout(silence, () => request.destroy(new Error(`nothing was heard for ${silence} ms`)));
      let rest = "";
      for await (const chunk of response as AsyncIterable<string>) {
        const lines = (rest + chunk).split("\n");
        rest = lines.pop() as string;
        for (const line of lines) yield line.endsWith("\r") ? line.slice(0, -1) : line;
      }
      throw new NoAnswer(this.address, new Error("the stream was cut"), false);
    } catch (err) {
      throw err instanceof Problem || err instanceof NoAnswer ? err : new NoAnswer(this.address, err as Error, false);
    } finally {
      request.destroy();
    }
  }

  private async send(method: string, path: string, c: Call, body: Buffer | undefined): Promise<Answer> {
    const { response, done } = await this.open(method, path, c, body, this.reach.timeout + (c.wait ?? 0));
    try {
      return new Answer(response.statusCode ?? 0, response.headers, await whole(response));
    } catch (err) {
      throw new NoAnswer(this.address, err as Error, false);
    } finally {
      done();
    }
  }

  private open(method: string, path: string, c: Call, body: Buffer | undefined, timeout: number) {
    const address = this.address;
    const secure = address.startsWith("https:");
    return new Promise<{ request: http.ClientRequest; response: http.IncomingMessage; done: () => void }>((resolve, reject) => {
      const request = (secure ? https : http).request(address + this.path(path, c.query), {
        method,
        agent: secure ? this.secure : this.plain,
        headers: this.headers(c, body),
      });
      const timer = setTimeout(() => request.destroy(new Error(`no answer within ${timeout} ms`)), timeout);
      const abort = () => request.destroy(new Error("the call was given up"));
      const done = () => {
        clearTimeout(timer);
        c.signal?.removeEventListener("abort", abort);
      };
      if (c.signal?.aborted) abort();
      else c.signal?.addEventListener("abort", abort, { once: true });
      request.on("error", (err: NodeJS.ErrnoException) => {
        done();
        const closed = request.reusedSocket && (err.code === "ECONNRESET" || err.code === "EPIPE");
        reject(closed ? new Stale(err) : new NoAnswer(address, err, err.code === "ECONNREFUSED"));
      });
      request.on("response", (response) => {
        if (c.accept !== undefined) done();
        resolve({ request, response, done });
      });
      request.end(body);
    });
  }

  private headers(c: Call, body: Buffer | undefined): Record<string, string> {
    const out: Record<string, string> = { Authorization: `Bearer ${this.reach.key}`, Accept: c.accept ?? "application/json", ...c.headers };
    if (body) {
      out["Content-Type"] = c.contentType ?? "application/json";
      out["Content-Length"] = String(body.length);
    }
    if (c.idempotencyKey !== undefined) out["Idempotency-Key"] = c.idempotencyKey;
    return out;
  }

  private path(path: string, query: Call["query"]): string {
    const out = new URLSearchParams();
    if (this.reach.tenant && !path.startsWith("/api/v1/workers/")) out.append("tenant", this.reach.tenant);
    for (const [name, v] of Object.entries(query ?? {})) {
      for (const one of Array.isArray(v) ? v : [v]) if (one !== undefined && one !== "") out.append(name, String(one));
    }
    const text = out.toString();
    return text === "" ? path : `${path}?${text}`;
  }
}

/** A kept connection had been closed before the call was sent. */
class Stale extends Error {
  constructor(override readonly cause: Error) {
    super(cause.message);
  }
}

function bodyOf(c: Call): Buffer | undefined {
  if (c.raw) return Buffer.from(c.raw.buffer, c.raw.byteOffset, c.raw.byteLength);
  return c.body === undefined ? undefined : Buffer.from(print(c.body));
}

async function whole(response: http.IncomingMessage): Promise<Buffer> {
  const parts: Buffer[] = [];
  for await (const part of response as AsyncIterable<Buffer>) parts.push(part);
  return parts.length === 1 ? (parts[0] as Buffer) : Buffer.concat(parts);
}
