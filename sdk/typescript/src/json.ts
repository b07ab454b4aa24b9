// JSON of the journal: reading without rounding, writing, the canonical form and digests.
//
// JavaScript has one type of number. An integer beyond 2^53 is read as a bigint, and written with
// its digits, so that what passes through this library keeps them. Values of users may not have one.

import { createHash } from "node:crypto";

/** Something that JSON can write. A bigint is an integer beyond 2^53 of another language. */
export type Json = null | boolean | number | bigint | string | Json[] | { [name: string]: Json };
/** An object of JSON. */
export type JsonObject = { [name: string]: Json };

/** The deepest nesting that has a canonical form. */
const deepest = 64;

/** Tells whether a value is an object of JSON, and no array. */
export function isObject(v: unknown): v is Record<string, unknown> {
  return typeof v === "object" && v !== null && !Array.isArray(v);
}

/** Sets a member, also one that is called __proto__. */
export function setMember(o: object, name: string, value: unknown): void {
  if (name === "__proto__") {
    Object.defineProperty(o, name, { value, writable: true, enumerable: true, configurable: true });
  } else {
    (o as Record<string, unknown>)[name] = value;
  }
}

/** Reads a JSON text. Texts with long numbers are read by the slow parser, which rounds no integer. */
export function parse(text: string): Json {
  return /\d{16}/.test(text) ? new Parser(text, false).parse() : (JSON.parse(text) as Json);
}

/** Writes JSON without white space. */
export function print(v: unknown): string {
  try {
    return JSON.stringify(v);
  } catch (err) {
    if (!(err instanceof TypeError) || !hasBigint(v, 0)) throw err;
    return printSlowly(v as Json);
  }
}

function hasBigint(v: unknown, depth: number): boolean {
  if (typeof v === "bigint") return true;
  if (typeof v !== "object" || v === null || depth > 2 * deepest) return false;
  return Object.values(v).some((x) => hasBigint(x, depth + 1));
}

function printSlowly(v: Json): string {
  if (typeof v === "bigint") return v.toString();
  if (typeof v !== "object" || v === null) return JSON.stringify(v);
  if (Array.isArray(v)) return `[${v.map(printSlowly).join(",")}]`;
  const members = Object.entries(v).filter(([, x]) => x !== undefined);
  return `{${members.map(([name, x]) => `${JSON.stringify(name)}:${printSlowly(x)}`).join(",")}}`;
}

/** Returns the canonical JSON of a text. It throws a SyntaxError if there is none. */
export function canonicalText(text: string): string {
  return canonical(new Parser(text, true).parse());
}

/** A number that is beyond all doubles. It stays as it is written. */
class Huge {
  constructor(readonly text: string) {}
}

/** Returns the canonical JSON of a value. */
export function canonical(v: unknown, depth = 0): string {
  if (depth > deepest) throw new SyntaxError("the value is nested too deep");
  if (v === null || typeof v === "boolean") return String(v);
  if (typeof v === "bigint") return v.toString();
  if (typeof v === "number") return Object.is(v, -0) ? "0" : String(v);
  if (typeof v === "string") return canonicalString(v);
  if (v instanceof Huge) return v.text;
  if (Array.isArray(v)) return `[${v.map((x) => canonical(x, depth + 1)).join(",")}]`;
  if (typeof v === "object") {
    const o = v as Record<string, unknown>;
    const names = Object.keys(o).sort(compareUtf8);
    return `{${names.map((n) => `${canonicalString(n)}:${canonical(o[n], depth + 1)}`).join(",")}}`;
  }
  throw new SyntaxError(`a ${typeof v} is no JSON`);
}

function canonicalString(s: string): string {
  return JSON.stringify(wellFormed(s));
}

/** Replaces each half of a surrogate pair by U+FFFD. */
export function wellFormed(s: string): string {
  return s.replace(/[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]/g, (x) => (x.length === 2 ? x : "\ufffd"));
}

/** Compares texts by the bytes of UTF-8, which is the order of code points and not that of UTF-16. */
export function compareUtf8(a: string, b: string): number {
  const n = Math.min(a.length, b.length);
  for (let i = 0; i < n; i++) {
    const x = a.charCodeAt(i);
    const y = b.charCodeAt(i);
    if (x === y) continue;
    // Surrogates stand for code points above all others of UTF-16.
    const high = (c: number) => (c >= 0xd800 && c <= 0xdfff ? c + 0x10000 : c);
    return high(x) - high(y);
  }
  return a.length - b.length;
}

/** Returns the first bytes of SHA-256, in hexadecimal. */
export function sha(data: string | Uint8Array, size = 12): string {
  return createHash("sha256").update(data).digest().subarray(0, size).toString("hex");
}

/** Returns the digest of a value: 12 bytes of SHA-256 over its canonical JSON. */
export function digest(v: unknown): string {
  return sha(canonical(v));
}

const spaces = new Set([" ", "\t", "\n", "\r"]);

/** A strict reader of JSON, which refuses a name that is there twice if it is told to. */
class Parser {
  private at = 0;
  constructor(
    private readonly text: string,
    private readonly strict: boolean,
  ) {}

  parse(): Json {
    const v = this.value(0);
    this.space();
    if (this.at < this.text.length) this.fail();
    return v as Json;
  }

  private fail(): never {
    throw new SyntaxError(`the text is no JSON at character ${this.at}`);
  }

  private space(): void {
    while (spaces.has(this.text[this.at] ?? "")) this.at++;
  }

  private value(depth: number): unknown {
    if (this.strict && depth > deepest) throw new SyntaxError("the value is nested too deep");
    this.space();
    switch (this.text[this.at]) {
      case "{":
        return this.object(depth);
      case "[":
        return this.array(depth);
      case '"':
        return this.string();
      case "t":
        return this.word("true", true);
      case "f":
        return this.word("false", false);
      case "n":
        return this.word("null", null);
      default:
        return this.number();
    }
  }

  private word<T>(text: string, v: T): T {
    if (!this.text.startsWith(text, this.at)) this.fail();
    this.at += text.length;
    return v;
  }

  private object(depth: number): object {
    const out = {};
    this.at++;
    this.space();
    if (this.text[this.at] === "}") {
      this.at++;
      return out;
    }
    for (;;) {
      this.space();
      let name = this.string();
      if (this.strict) name = wellFormed(name);
      if (this.strict && Object.hasOwn(out, name)) throw new SyntaxError(`the name ${name} is there twice`);
      this.space();
      if (this.text[this.at++] !== ":") this.fail();
      setMember(out, name, this.value(depth + 1));
      this.space();
      const c = this.text[this.at++];
      if (c === "}") return out;
      if (c !== ",") this.fail();
    }
  }

  private array(depth: number): unknown[] {
    const out: unknown[] = [];
    this.at++;
    this.space();
    if (this.text[this.at] === "]") {
      this.at++;
      return out;
    }
    for (;;) {
      out.push(this.value(depth + 1));
      this.space();
      const c = this.text[this.at++];
      if (c === "]") return out;
      if (c !== ",") this.fail();
    }
  }

  private string(): string {
    if (this.text[this.at] !== '"') this.fail();
    const begin = this.at++;
    for (; this.at < this.text.length; this.at++) {
      const c = this.text[this.at];
      if (c === "\\") this.at++;
      else if (c === '"') return JSON.parse(this.text.slice(begin, ++this.at)) as string;
    }
    return this.fail();
  }

  private number(): number | bigint | Huge {
    const form = /-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?/y;
    form.lastIndex = this.at;
    const found = form.exec(this.text);
    if (!found) this.fail();
    this.at += found[0].length;
    const n = Number(found[0]);
    if (found[2] === undefined && found[3] === undefined) return Number.isSafeInteger(n) ? n : BigInt(found[0]);
    return Number.isFinite(n) || !this.strict ? n : new Huge(found[0]);
  }
}
