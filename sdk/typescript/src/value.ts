// Values of users: what the journal can keep, and how bytes and texts are marked in it.

import { isObject, print, setMember, type Json } from "./json.js";
import { Failure, describe } from "./errors.js";

/**
 * The type of a value that went through the journal. A Date comes back as a string, and bytes as a
 * Uint8Array. A type that JSON can't keep, such as undefined or a function, becomes never.
 */
export type Jsonified<T> = [T] extends [never] ? never : [T] extends [bigint] ? never : [T] extends [Json] ? T : JsonifiedOther<T>;

type JsonifiedOther<T> = T extends Uint8Array
  ? Uint8Array
  : T extends { toJSON(): infer J }
    ? Jsonified<J>
    : T extends string | number | boolean | null
      ? T
      : T extends undefined | void | bigint | symbol | ((...args: never[]) => unknown)
        ? never
        : T extends readonly unknown[]
          ? { -readonly [I in keyof T]: Jsonified<T[I]> }
          : T extends object
            ? { [K in keyof T]: Jsonified<T[K]> }
            : unknown extends T
              ? unknown
              : never;

/** A value as an entry has it. */
export interface Encoded {
  json: Json;
  /** The marks of bytes, and of texts that could be taken for bytes. */
  as: string[];
  size: number;
}

/** The most bytes of a value, with room for the rest of its entry. */
export const largest = (1 << 20) - 8192;
const deepest = 50;
const mostMarks = 64;

/** Turns a value into JSON. It throws a permanent error that names the subject if it can't be kept. */
export function encode(subject: string, v: unknown): Encoded {
  const marks = new Map<string, "b" | "t" | "s">();
  const json = new Encoder(subject, marks).value(v, "", 0, []);
  const as = [...marks].filter(([, m]) => m !== "s").map(([path, m]) => `${m}:${path}`);
  const size = Buffer.byteLength(print(json));
  if (size > largest) throw new Failure("too_large", `${subject} has ${size} bytes of JSON; at most ${largest} are kept`, { permanent: true });
  return { json, as: as.slice(0, mostMarks), size };
}

class Encoder {
  constructor(
    private readonly subject: string,
    private readonly marks: Map<string, "b" | "t" | "s">,
  ) {}

  private fail(path: string, why: string, code = "invalid_result"): never {
    throw new Failure(code, `${this.subject}${path && ` at ${path}`} ${why}`, { permanent: true });
  }

  value(v: unknown, path: string, depth: number, above: object[]): Json {
    if (depth > deepest) this.fail("", `is nested more than ${deepest} levels deep`);
    if (v === null || typeof v === "boolean") return v;
    if (typeof v === "string") return this.text(v, path);
    if (typeof v === "number") return this.number(v, path);
    if (typeof v !== "object") {
      const advice = v === undefined ? "return null instead" : "return what JSON can write";
      this.fail(path, `is ${v === undefined ? "undefined" : `a ${typeof v}`}, which JSON does not have; ${advice}`);
    }
    if (v instanceof Uint8Array) {
      this.mark(path, "b");
      return Buffer.from(v.buffer, v.byteOffset, v.byteLength).toString("base64");
    }
    const toJson = (v as { toJSON?: unknown }).toJSON;
    if (typeof toJson === "function") return this.value(this.written(toJson, v, path), path, depth, above);
    if (above.includes(v)) this.fail(path, "contains itself");
    if (Array.isArray(v)) {
      const items: Json[] = [];
      for (let i = 0; i < v.length; i++) items.push(this.value(v[i], `${path}/*`, depth + 1, [...above, v]));
      return items;
    }
    if (v instanceof Map || v instanceof Set || v instanceof Promise || ArrayBuffer.isView(v) || v instanceof Error)
      this.fail(path, `is a ${v.constructor.name}, of which JSON would keep nothing; return a plain object or an array`);
    const out: { [name: string]: Json } = {};
    for (const name of Object.keys(v).sort()) {
      this.checkText(name, path);
      setMember(out, name, this.value((v as Record<string, unknown>)[name], `${path}/${name}`, depth + 1, [...above, v]));
    }
    return out;
  }

  private written(toJson: Function, v: object, path: string): unknown {
    try {
      return toJson.call(v, "") as unknown;
    } catch (err) {
      this.fail(path, `can't be written as JSON: ${describe(err).message}`);
    }
  }

  private checkText(s: string, path: string): void {
    if (s.includes("\0") || /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/.test(s))
      this.fail(path, "has a NUL or half of a surrogate pair in a text; return bytes (a Uint8Array) for what may have those", "invalid");
  }

  private text(s: string, path: string): Json {
    this.checkText(s, path);
    this.mark(path, isBase64(s) ? "t" : "s");
    return s;
  }

  private mark(path: string, m: "b" | "t" | "s"): void {
    const old = this.marks.get(path);
    if (old !== undefined && (old === "b") !== (m === "b"))
      this.fail(path, "has bytes and texts in one array, which could not be told apart; return objects with two fields");
    if (old !== "t") this.marks.set(path, m);
  }

  private number(n: number, path: string): Json {
    if (!Number.isFinite(n)) this.fail(path, `is ${n}, which JSON does not have`);
    if (Number.isInteger(n) && !Number.isSafeInteger(n) && Math.abs(n) < 1e21)
      this.fail(path, `is ${n}, an integer beyond 2^53 that may have been rounded; return it as a text`, "invalid");
    return Object.is(n, -0) ? 0 : n;
  }
}

function isBase64(s: string): boolean {
  return s !== "" && s.length % 4 === 0 && /^[A-Za-z0-9+/]+={0,2}$/.test(s);
}

/** Reads a recorded value: bytes that are marked become a Uint8Array. It copies what it changes. */
export function decode(json: Json, as: readonly string[]): unknown {
  let out: unknown = json;
  for (const mark of as) if (mark.startsWith("b:")) out = readBytes(out, mark.slice(2).split("/").slice(1));
  return out;
}

function readBytes(v: unknown, path: string[]): unknown {
  const [name, ...rest] = path;
  if (name === undefined) return typeof v === "string" ? new Uint8Array(Buffer.from(v, "base64")) : v;
  if (name === "*" && Array.isArray(v)) return v.map((x) => readBytes(x, rest));
  if (!isObject(v)) return v;
  const out: Record<string, unknown> = {};
  for (const [n, x] of Object.entries(v)) setMember(out, n, n === name || name === "*" ? readBytes(x, rest) : x);
  return out;
}

/** Finds an integer that JavaScript would round, and returns where it is. */
export function findHuge(v: unknown, path = ""): string | undefined {
  if (typeof v === "bigint") return path || "the value";
  if (typeof v !== "object" || v === null || v instanceof Uint8Array) return undefined;
  for (const [name, x] of Object.entries(v)) {
    const found = findHuge(x, `${path}/${name}`);
    if (found !== undefined) return found;
  }
  return undefined;
}

/** Returns the nesting of a value: 0 for one that is no array or object. */
export function depthOf(v: unknown): number {
  if (typeof v !== "object" || v === null) return 0;
  return 1 + Math.max(0, ...Object.values(v).map(depthOf));
}
