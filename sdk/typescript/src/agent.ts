// An agent: a function with the types of its input, executed whenever its run is leased.

import { Context } from "./context.js";
import { Failure } from "./errors.js";
import { Execution, type End } from "./execution.js";
import type { Json } from "./json.js";
import { Misfit, fieldsLost, hasObjects, read, type Schema } from "./schema.js";
import type { Grant, Session } from "./session.js";
import { encode, findHuge } from "./value.js";

/** The function of an agent. */
export type AgentFunction<I = never, R = unknown> = (ctx: Context, input: I) => R | Promise<R>;

/** Options of an agent. */
export interface AgentOptions {
  /** The type of the input. A later release that lacks a field of it holds runs that have the field. */
  input?: Schema;
  /** Fields of the input that are gone on purpose. */
  ignores?: string[];
}

/** Begins an execution of an agent. */
export function begin(f: AgentFunction, options: AgentOptions, grant: Grant, session: Session): { execution: Execution; end: Promise<End> } {
  const x = new Execution(grant, session);
  const call = async () => {
    const input = await readInput(x, options);
    return await f(new Context(x, x.main), input as never);
  };
  const end = x.run(call, (v) => (v === undefined ? undefined : encode("the result of the run", v).json));
  return { execution: x, end };
}

/** Reads the input, and compares its fields with those that an earlier execution has read. */
async function readInput(x: Execution, o: AgentOptions): Promise<unknown> {
  const { input, journal } = x.grant;
  const json: Json = input ?? null;
  const first = journal.length === 0;
  let v: unknown;
  try {
    const huge = findHuge(json);
    if (huge !== undefined) throw new Misfit(`${huge} is an integer beyond 2^53, which JavaScript would round`);
    v = await read(o.input, structuredClone(json));
  } catch (err) {
    if (!(err instanceof Misfit)) throw err;
    if (first) throw new Failure("invalid_input", `the input does not fit the type of the agent: ${err.message}`, { permanent: true });
    throw x.hold("nondeterminism", `input: the run's input is none for which the agent asks now, and an earlier release could read it; keep a type that reads it: ${err.message}`);
  }
  const lost = fieldsLost(json, v);
  if (first && hasObjects(json)) x.setInputFields(lost);
  const known = x.facts.ignored;
  if (!first && known !== undefined && !known.includes("*")) {
    const gone = lost.find((field) => !known.some((k) => within(field, k)) && !(o.ignores ?? []).some((k) => within(field, k)));
    if (gone !== undefined)
      throw x.hold("nondeterminism", `input: the run's input has the field ${gone}, which an earlier release has read, and the agent's type does not have it now; if it is gone on purpose, name it in ignores`);
  }
  return v;
}

function within(field: string, outer: string): boolean {
  return field === outer || field.startsWith(`${outer}/`);
}
