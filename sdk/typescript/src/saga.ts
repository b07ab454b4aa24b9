// Sagas: steps that are undone together if one of them fails.

import type { Branch, SagaScope } from "./branch.js";
import { Cancelled, Failure, StepError, bugText, describe, isBug } from "./errors.js";
import { follows, scopes, type Execution } from "./execution.js";
import type { RecordedError } from "./journal.js";
import type { Json } from "./json.js";

/** Executes the body of a saga. If it fails, its steps are undone, the last one first. */
export async function saga<T>(x: Execution, b: Branch, name: string, body: () => Promise<T>): Promise<T> {
  const what = `the saga ${JSON.stringify(name)}`;
  x.guard(b, what);
  x.checkName("the saga", name, b);
  x.goOn(b);
  x.checkFunction(what, body);
  const key = b.key("saga", name);
  const entry = x.facts.entries.get(`_saga:${key}`) as { ok?: boolean; error?: RecordedError } | undefined;
  const scope: SagaScope = { name, undoing: entry?.error !== undefined, done: [] };
  const outer = b.outermost();
  b.sagas.push(scope);
  const steps = outer?.done ?? scope.done;
  const begun = steps.length;
  try {
    const v = await scopes.run({ execution: x, saga: scope }, body);
    if (x.defect) throw x.defect;
    if (b.busy !== undefined) throw x.misuse(`${what} has returned while ${b.busy} is not awaited; await it`);
    if (!scope.undoing) return await succeed(x, b, key, scope, v, outer !== undefined);
  } catch (err) {
    if (x.defect) throw x.defect;
    if (isBug(err)) throw x.hold("panic", bugText(err)); // it undoes nothing: a later release goes on
    if (!scope.undoing) await fail(x, b, key, err, entry?.ok === true);
  }
  b.sagas.pop();
  b.point = `saga ${key}!`;
  b.busy = what;
  const undone = steps.slice(begun).sort((p, q) => order(x, q.key) - order(x, p.key));
  steps.splice(begun);
  if (undone.some((s) => !x.facts.entries.has(`_undone:${s.key}`))) await x.beyond(b);
  await undo(x, undone);
  b.busy = undefined;
  throw outcome(x, key, undone.at(-1)?.key);
}

/** The errors with which sagas of this process have failed, by the key of their entry. */
function outcome(x: Execution, key: string, first: string | undefined): Error {
  const entry = x.facts.entries.get(`_saga:${key}`) as unknown as { error: RecordedError };
  const { code, message } = entry.error;
  const err = code === "cancelled" && x.cancelled ? new Cancelled(message) : new Failure(code, message, { permanent: true });
  return follows(err, () => first ?? (entry as { cause?: string }).cause ?? `_saga:${key}`);
}

function order(x: Execution, key: string): number {
  return x.facts.index.get(key) ?? x.made.get(key) ?? Number.MAX_SAFE_INTEGER;
}

async function succeed<T>(x: Execution, b: Branch, key: string, scope: SagaScope, v: T, nested: boolean): Promise<T> {
  b.sagas.pop();
  const id = `_saga:${key}`;
  if (!x.facts.entries.has(id)) {
    x.checkOrder(b, `${id}: the journal does not have the success of this saga`);
    if (!nested) {
      for (const s of scope.done) if (!x.facts.entries.has(`_undone:${s.key}`)) x.batch.entries.push({ key: `_undone:${s.key}`, value: { kept: true } });
    }
    x.batch.entries.push({ key: id, value: { ok: true } });
  } else if (!nested && scope.done.some((s) => !x.facts.entries.has(`_undone:${s.key}`))) {
    throw x.hold("nondeterminism", `${id}: the journal has the success of this saga, and it has one more step now; announce the change with version`);
  }
  x.ask(b, "saga", id);
  b.point = `saga ${key}`;
  return v;
}

/** Records that a saga has failed. From then on there is no way but back. */
async function fail(x: Execution, b: Branch, key: string, err: unknown, succeeded: boolean): Promise<void> {
  if (succeeded) throw x.hold("nondeterminism", `_saga:${key}: the journal has the success of this saga, and it fails now; announce the change with version`);
  if (!x.cancelled) x.checkOrder(b, `_saga:${key}: the journal does not have the failure of this saga`);
  const { code, message } = describe(err);
  b.pending = [];
  const value = { error: { code, message } };
  x.batch.entries.push({ key: `_saga:${key}`, value: value as Json });
  x.facts.entries.set(`_saga:${key}`, { ...value, ...(err instanceof StepError ? { cause: err.key } : {}) } as Json);
  await x.flush();
}

async function undo(x: Execution, steps: SagaScope["done"]): Promise<void> {
  for (const s of steps) {
    if (x.facts.entries.has(`_undone:${s.key}`)) continue;
    await x.flush();
    for (let n = 1; ; n++) {
      try {
        await s.undo();
        break;
      } catch (err) {
        if (x.defect) throw x.defect;
        if (n >= 3) throw new Failure("not_undone", `step ${s.key} could not be undone: ${describe(err).message}`, { cause: undefined });
        await x.session.sleep(100 * 2 ** n);
      }
    }
    x.batch.entries.push({ key: `_undone:${s.key}`, value: { ok: true } });
    x.facts.entries.set(`_undone:${s.key}`, { ok: true });
    await x.flush();
  }
}
