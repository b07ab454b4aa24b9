// Kinds: what a worker executes, and how it is announced.

import type { AgentFunction, AgentOptions } from "./agent.js";
import { isObject, print, type Json } from "./json.js";
import { durationText, micros, nameFault, type Duration } from "./names.js";
import type { JsonSchema, Schema } from "./schema.js";
import type { Task } from "./task.js";

/** Options of a task or an agent. Runs and children take from them what they do not say. */
export interface KindOptions {
  description?: string;
  /** The time that a run has, from its start to its end. */
  timeout?: Duration;
  /** How many attempts in a row may be lost. */
  maxAttempts?: number;
  /** The pause before the second attempt; each further one is twice as long, up to maxBackoff. */
  backoff?: Duration;
  maxBackoff?: Duration;
  /** Codes of failures that end the run at once. */
  notRetried?: string[];
  /** How long a run is held because of a defect of its code. */
  holdTimeout?: Duration;
  /** A defect costs an attempt, instead of holding the run. */
  spendAttempts?: boolean;
  /** Limits that all runs of the kind are under, and where in the input their key is, as a JSON Pointer. */
  limits?: string[];
  limitKeyFrom?: string;
  /** How many runs of the kind may be leased at once. */
  concurrency?: number;
  /** The type of the input. It is checked, and announced. */
  input?: Schema;
  /** The type of the result. It is announced, and a task's result is checked. */
  output?: Schema;
  /** The signals that runs take, by name. The server refuses one that does not fit. */
  signals?: Record<string, Schema>;
}

/** The function of a task. */
export type TaskFunction<I = never, R = unknown> = (input: I, task: Task) => R | Promise<R>;

/** Something that a worker executes. */
export interface Kind {
  name: string;
  class: "task" | "agent";
  task?: TaskFunction;
  agent?: AgentFunction;
  options: KindOptions & AgentOptions;
}

/** The largest schema that is announced. */
const largestSchema = 24 << 10;

/** Returns a schema as JSON Schema, if it is one or can be turned into one. */
export function jsonSchema(s: Schema | undefined): JsonSchema | undefined {
  if (s === undefined) return undefined;
  if (!("~standard" in s)) return s;
  const make = (s["~standard"] as { jsonSchema?: { input?: (o: { target: string }) => JsonSchema } }).jsonSchema?.input;
  try {
    return make?.({ target: "draft-2020-12" });
  } catch {
    return undefined;
  }
}

function announced(s: Schema | undefined): Json | undefined {
  const out = jsonSchema(s);
  return out !== undefined && isObject(out) && Buffer.byteLength(print(out)) <= largestSchema ? (out as Json) : undefined;
}

function text(d: Duration | undefined): string | undefined {
  return d === undefined ? undefined : durationText(micros(d));
}

/** Returns what is wrong with the options of a kind; it throws. */
export function checkKind(name: string, o: KindOptions): void {
  const fault = nameFault(name, 200);
  if (fault !== undefined) throw new TypeError(`the kind ${JSON.stringify(name)}: ${fault}`);
  for (const field of ["timeout", "backoff", "maxBackoff", "holdTimeout"] as const) {
    const d = o[field];
    if (d !== undefined && micros(d) <= 0) throw new TypeError(`the kind ${name}: ${field} is ${d}; leave it out for the default`);
  }
}

/** Returns the announcement of a kind. */
export function announcement(k: Kind, build: string): Record<string, Json> {
  const o = k.options;
  const retry = { max_attempts: o.maxAttempts, backoff: text(o.backoff), max_backoff: text(o.maxBackoff), not_retried: o.notRetried };
  const out: Record<string, unknown> = {
    class: k.class,
    description: o.description,
    timeout: text(o.timeout),
    retry: Object.values(retry).some((v) => v !== undefined) ? retry : undefined,
    hold_timeout: text(o.holdTimeout),
    hold_defects: o.spendAttempts ? false : undefined,
    limits: o.limits,
    limit_key_from: o.limitKeyFrom,
    concurrency: o.concurrency,
    input_schema: announced(o.input),
    output_schema: announced(o.output),
    signals: o.signals && Object.fromEntries(Object.entries(o.signals).map(([name, s]) => [name, announced(s) ?? {}])),
    build,
  };
  return Object.fromEntries(Object.entries(out).filter(([, v]) => v !== undefined)) as Record<string, Json>;
}
