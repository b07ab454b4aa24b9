// Options of calls, in the language's own names, as the API has them.

import { isObject, type Json } from "./json.js";
import { durationText, micros, type Duration } from "./names.js";
import { encode } from "./value.js";

/** Fields of calls that are durations. */
const durations = new Set(["timeout", "delay", "wait", "every", "jitter", "for", "max", "per", "backoff", "maxBackoff", "holdTimeout", "suspendTimeout"]);
/** Fields whose content is the user's: its names stay as they are. */
const contents = new Set(["input", "data", "metadata", "content", "message", "answer", "result", "value"]);

/** Writes a name as the API has it: maxAttempts is max_attempts. */
export function wireName(name: string): string {
  return name.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`);
}

/** Writes a duration as the API reads it. Less than nothing is nothing. */
export function wireDuration(d: Duration): string {
  return durationText(micros(d));
}

/** Writes options as the API reads them: names, durations and times. What is undefined is left out. */
export function wire(options: object): Record<string, Json> {
  const out: Record<string, Json> = {};
  for (const [name, v] of Object.entries(options)) if (v !== undefined) out[wireName(name)] = field(name, v);
  return out;
}

function field(name: string, v: unknown): Json {
  if (contents.has(name)) return encode(`the field ${name}`, v).json;
  if (v instanceof Date) return v.toISOString();
  if (durations.has(name) && (typeof v === "number" || typeof v === "string")) return wireDuration(v);
  if (Array.isArray(v)) return v.map((x) => (isObject(x) ? wire(x) : (x as Json)));
  return isObject(v) ? wire(v) : (v as Json);
}

/** Writes filters of a list as a query. Of metadata there is one parameter for each entry. */
export function query(filter: object): Record<string, string | number | boolean | string[]> {
  const out: Record<string, string | number | boolean | string[]> = {};
  for (const [name, v] of Object.entries(filter)) {
    if (v === undefined) continue;
    if (name === "metadata") for (const [k, x] of Object.entries(v as object)) out[`metadata.${k}`] = String(x);
    else if (v instanceof Date) out[wireName(name)] = v.toISOString();
    else if (Array.isArray(v)) out[wireName(name)] = v.join(",");
    else out[wireName(name)] = v as string | number | boolean;
  }
  return out;
}
