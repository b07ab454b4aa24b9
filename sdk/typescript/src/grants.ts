// Reads the answer of a poll, and checks the signatures of its grants.

import { createHash, createPublicKey, verify, type KeyObject } from "node:crypto";
import { parse } from "./json.js";
import type { LeasedGrant } from "./lease.js";

/** Returns the place behind the value that begins at a place. */
function behind(text: string, at: number): number {
  const c = text[at];
  if (c === '"') return behindString(text, at);
  if (c !== "{" && c !== "[") {
    while (at < text.length && !',]} \t\r\n'.includes(text[at] as string)) at++;
    return at;
  }
  for (let depth = 0; at < text.length; ) {
    const d = text[at];
    if (d === '"') {
      at = behindString(text, at);
      continue;
    }
    if (d === "{" || d === "[") depth++;
    else if (d === "}" || d === "]") depth--;
    at++;
    if (depth === 0) break;
  }
  return at;
}

function behindString(text: string, at: number): number {
  for (at++; text[at] !== '"'; at++) if (text[at] === "\\") at++;
  return at + 1;
}

function skip(text: string, at: number, also = ""): number {
  while (at < text.length && (" \t\r\n" + also).includes(text[at] as string)) at++;
  return at;
}

/** Gives the members of the object that begins at a place: name, and begin and end of the value. */
function* members(text: string, at: number): Generator<[string, number, number]> {
  for (at = skip(text, at + 1); at < text.length && text[at] !== "}"; at = skip(text, at, ",")) {
    const end = behindString(text, at);
    const begin = skip(text, end, ":");
    const close = behind(text, begin);
    yield [parse(text.slice(at, end)) as string, begin, close];
    at = close;
  }
}

/** Returns the grants of an answer, each with the text of its input as it stands there, without white space. */
export function grantsOf(answer: string): { grant: LeasedGrant; input: string }[] {
  const out: { grant: LeasedGrant; input: string }[] = [];
  for (const [name, begin] of members(answer, skip(answer, 0))) {
    if (name !== "runs" || answer[begin] !== "[") continue;
    for (let at = skip(answer, begin + 1); at < answer.length && answer[at] !== "]"; at = skip(answer, at, ",")) {
      const end = behind(answer, at);
      let input = "";
      for (const [field, first, last] of members(answer, at))
        if (field === "input") input = answer.slice(first, last).replace(/"[^"\\]*(?:\\.[^"\\]*)*"|[ \t\r\n]+/g, (m) => (m.startsWith('"') ? m : ""));
      out.push({ grant: parse(answer.slice(at, end)) as unknown as LeasedGrant, input });
      at = end;
    }
  }
  return out;
}

/** Returns the bytes that the signature of a grant is over. */
export function signedBytes(g: LeasedGrant, input: string): Buffer {
  const digest = createHash("sha256").update(input).digest("hex");
  const fields = ["perdure-run-v1", g.signature?.key_id ?? "", g.tenant ?? "", g.run_id, g.kind, g.queue, digest, g.deadline_at];
  if (g.origin_run_id && g.origin_run_id !== g.run_id) fields.push(g.origin_run_id);
  return Buffer.from(fields.map((f) => `${Buffer.byteLength(f)}:${f},`).join(""));
}

/** Public keys by which grants are checked. Without keys nothing is checked. */
export class Trust {
  private readonly keys: KeyObject[];

  constructor(
    pem: string,
    private readonly required: boolean,
  ) {
    this.keys = [...pem.matchAll(/-----BEGIN PUBLIC KEY-----[^-]*-----END PUBLIC KEY-----/g)].map((m) => createPublicKey(m[0]));
    for (const k of this.keys) if (k.asymmetricKeyType !== "ed25519") throw new TypeError(`trust has a key of the type ${k.asymmetricKeyType}; runs are signed with Ed25519`);
    if (pem !== "" && this.keys.length === 0) throw new TypeError("trust has no public key in PEM");
    if (required && this.keys.length === 0) throw new TypeError("signatures are required, and there is no key to check them by");
  }

  /** Whether anything is checked. */
  get checks(): boolean {
    return this.keys.length > 0;
  }

  accepts(g: LeasedGrant, input: string): boolean {
    if (this.keys.length === 0) return true;
    if (!g.signature) return !this.required;
    const value = Buffer.from(String(g.signature.value), "base64");
    if (value.length !== 64) return false;
    const bytes = signedBytes(g, input);
    return this.keys.some((k) => verify(null, bytes, k, value));
  }
}
