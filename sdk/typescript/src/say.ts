// Reports: messages and lines that an agent writes outside of steps. Each is written once.

import { createHash } from "node:crypto";
import type { Branch } from "./branch.js";
import { Failure, clean } from "./errors.js";
import type { Execution } from "./execution.js";
import { canonical, type Json } from "./json.js";
import { encode } from "./value.js";

/** Returns the digest of a report: its parts, each with its length before it. */
export function reportDigest(...parts: string[]): string {
  const hash = createHash("sha256");
  for (const part of parts) {
    const bytes = Buffer.from(part);
    const size = Buffer.alloc(8);
    size.writeBigUInt64BE(BigInt(bytes.length));
    hash.update(size).update(bytes);
  }
  return hash.digest().subarray(0, 6).toString("base64url");
}

/** Tells whether a report is new, and notes that it is made. */
function isNew(x: Execution, b: Branch, digest: string, sort: "oldMessages" | "oldLines"): boolean {
  if (b.undoing()) return false;
  if (x.facts[sort] > 0 && b.expected.size > 0) {
    x.facts[sort]--;
    return false;
  }
  const before = x.facts.saidBefore.indexOf(digest);
  const said = x.facts.said.get(b.point);
  const at = said?.indexOf(digest) ?? -1;
  if (said && at >= 0) {
    said.splice(at, 1);
    return false;
  }
  if (before >= 0) {
    x.facts.saidBefore.splice(before, 1);
    return false;
  }
  const now = x.batch.said.get(b.point) ?? [];
  now.push(digest);
  x.batch.said.set(b.point, now);
  return true;
}

/** Appends a message to the thread. */
export function message(x: Execution, b: Branch, role: string, content: unknown, metadata?: Record<string, string>): void {
  x.guard(b, "a message");
  x.checkThread("a message");
  const json = encode("the message", content).json;
  if (!isNew(x, b, reportDigest("message", role, canonical(json)), "oldMessages")) return;
  x.batch.messages.push({ role, content: json, ...(metadata ? { metadata } : {}) });
  x.flushSoon();
}

/** Writes a line of the log. */
export function line(x: Execution, b: Branch, type: string, data: unknown): void {
  x.guard(b, `the line ${JSON.stringify(type)}`);
  const name = type.startsWith("x:") ? type : `x:${type}`;
  if (name.length > 200) throw new Failure("invalid", `the type of the line has ${name.length} characters; at most 200 are allowed`, { permanent: true });
  const json = data === undefined ? undefined : encode(`the line ${name}`, data).json;
  if (!isNew(x, b, reportDigest("line", name, json === undefined ? "" : canonical(json)), "oldLines")) return;
  x.batch.events.push({ type: name, ...(json === undefined ? {} : { data: json }) });
  x.flushSoon();
}

/** The most characters of a part of a text. */
const part = 4000;

/** Streams text. */
export function delta(x: Execution, b: Branch, text: string): void {
  x.guard(b, "a delta");
  const whole = reportDigest(clean(text));
  const points = Array.from(clean(text));
  let at = 0;
  for (let i = 0; i < points.length; i += part) {
    const piece = points.slice(i, i + part).join("");
    if (isNew(x, b, reportDigest("delta", whole, String(at)), "oldLines")) {
      x.batch.events.push({ type: "llm:delta", data: { text: piece } });
      x.flushSoon();
    }
    at += Buffer.byteLength(piece);
  }
}

/** Tells how far the run is. A replay does not tell it again. */
export function progress(x: Execution, b: Branch, v: unknown): void {
  x.guard(b, "the progress");
  if (b.expected.size > 0 || b.undoing()) return;
  x.batch.events.push({ type: "run:progress", data: encode("the progress", v).json });
  x.flushSoon();
}

/** Sets a view of the run. A replay does not publish again. */
export function publish(x: Execution, b: Branch, name: string, v: unknown): void {
  x.guard(b, `the view ${JSON.stringify(name)}`);
  x.checkName("the view", name, b);
  if (name.includes("/"))
    throw x.misuse(`the view ${JSON.stringify(name)} has a slash, which the name of a view can't have`);
  const { json, size } = encode(`the view ${name}`, v);
  if (size > 64 << 10) throw new Failure("too_large", `the view ${name} has ${size} bytes; at most 65536 are kept`, { permanent: true });
  if (b.expected.size > 0 || b.undoing()) return;
  x.batch.views.set(name, json as Json);
  x.flushSoon();
}
