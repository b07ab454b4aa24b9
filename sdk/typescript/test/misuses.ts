// Executes the misuses of docs/misuses.md, for misuses_test.go. Writes, by the name of the row, what has become of the
// agent that does it, and of one that ignores the error and goes on with a step.

import type { AgentFunction } from "../src/agent.js";
import type { Context } from "../src/context.js";
import { Cancelled, Failure } from "../src/errors.js";
import type { StepOptions } from "../src/steps.js";
import { Trial, word } from "./trial.js";

type Agent = (ctx: Context, w: World) => unknown;
/** The executions of a run, as a global variable counts them. */
interface World {
  executions: number;
}

const one = () => 1;
const minute = { timeout: "1m" };
const any = (v: unknown) => v as never;
const goOn = (ctx: Context) => ctx.signal("go on", { timeout: "1h" });
const step = (name: unknown, options: StepOptions = {}) => (ctx: Context) => ctx.step(any(name), one, any(options));
const gives = (v: unknown) => (ctx: Context) => ctx.step("s", () => any(v));
const throws = (err: unknown) => () => {
  throw err;
};
const inStep = (call: Agent) => (ctx: Context, w: World) => ctx.step("outer", async () => (await call(ctx, w), 1));
const child = (kind: unknown, input: unknown = 1, options = {}) => (ctx: Context) =>
  ctx.spawn(any(kind), any(input), options).join();
const deep = (n: number): unknown => JSON.parse("[".repeat(n) + "]".repeat(n));
const newest = async (ctx: Context) => {
  for await (const _ of ctx.newestMessages()) return;
};

/** Calls that have a place among the others. Those that are made at once can't meet another one. */
const calls: Record<string, { call: Agent; atOnce?: boolean }> = {
  "a step": { call: (c) => c.step("inner", one) },
  "`Sleep`": { call: (c) => c.sleep("1s") },
  "`SleepUntil`": { call: (c) => c.sleepUntil(new Date(2e12)) },
  "`Signal`": { call: (c) => c.signal("n", minute) },
  "`OnSignal`": { call: (c) => c.onSignal("n").join() },
  "`OnMessage`": { call: (c) => c.onMessage().join() },
  "`After`": { call: (c) => c.after("1s").join() },
  "`Approve`": { call: (c) => c.approve("a", { title: "?", action: 1 }) },
  "`OnApproval`": { call: (c) => c.onApproval("a", { title: "?", action: 1 }).join() },
  "`Callback`": { call: (c) => c.callback("door", minute).join() },
  "`Spawn`": { call: (c) => c.spawn("one", { In: "x" }).join() },
  "`Map`": { call: (c) => c.map("one", [{ In: "x" }]) },
  "`Parallel`": { call: (c) => c.parallel("p", [1], one) },
  "`Saga`": { call: (c) => c.saga("s", async () => undefined) },
  "`Go`": { call: (c) => c.all({ b: () => undefined }) },
  "`Version`": { call: (c) => c.version("v", 1), atOnce: true },
  "`Removed`": { call: (c) => c.removed("old"), atOnce: true },
  "`Now`": { call: (c) => c.now("n"), atOnce: true },
  "`UUID`": { call: (c) => c.uuid("u"), atOnce: true },
  "`Message`": { call: (c) => c.message(1), atOnce: true },
  "`History`": { call: (c) => c.history() },
  "`NewestMessages`": { call: newest },
  "`Continue`": { call: (c) => c.continueOn(1, []), atOnce: true },
};

const rows: Record<string, Agent> = {
  "`Cancel` of a future inside of a step": (c) => {
    const f = c.spawn("never", 1);
    return c.step("outer", async () => (await f.cancel(), 1));
  },
  "a step inside of a `Parallel`'s function": (c) => c.parallel("p", [1, 2], () => c.step("inner", one)),
  "a wait inside of an `Undo`": (c) =>
    c.saga("s", async () => {
      await c.step("a", one, { undo: () => c.sleep("1s") });
      throw new Failure("oops", "oops", { permanent: true });
    }),
  "a step inside of a step, in a helper": inStep((c) => step("deep")(c)),
  "`Delta` and `Emit` with the agent's context inside of a step": inStep((c) => c.delta("x")),
  "a branch that uses the context of the agent": (c) => c.all({ side: () => c.step("deep", one) }),
  "a goroutine that computes something, and calls nothing of the package": async (c) => {
    void Promise.resolve(1 + 1);
    return await c.step("deep", one);
  },
  "a step in a deferred function, after a wait": async (c) => {
    try {
      return await goOn(c);
    } finally {
      await c.step("deep", one);
    }
  },
  "a `recover` around a wait": (c) => goOn(c).catch(() => c.step("rescue", one)),

  "the time in the name of a step": async (c) => {
    await c.step(`at ${process.hrtime.bigint()}`, one);
    return await goOn(c);
  },
  "dice in the name of a step": async (c) => {
    await c.step(`at ${Math.random()}`, one);
    return await goOn(c);
  },
  "dice in the input of a child": (c) => (c.spawn("never", Math.random()), goOn(c)),
  "items in another order in each execution": async (c, w) => {
    await c.parallel("p", w.executions > 1 ? ["b", "a"] : ["a", "b"], one);
    return await goOn(c);
  },
  "a global counter decides which step comes": async (c, w) => {
    await c.step(w.executions > 1 ? "b" : "a", one);
    return await goOn(c);
  },
  "a global cache leaves a step out": async (c, w) => {
    if (w.executions === 1) await c.step("a", one);
    return await goOn(c);
  },
  "a `sync.Once` around a step": async (c, w) => {
    if (w.executions === 1) await c.step("a", one);
    return await goOn(c);
  },
  "a wait that is there in some executions alone": (c, w) => (w.executions === 1 ? goOn(c) : c.step("a", one)),
  "`time.Sleep` instead of `agent.Sleep`": async (c) => {
    await new Promise((resolve) => setImmediate(resolve));
    return await c.step("a", one);
  },

  "a panic in the agent's code": throws(new TypeError("boom")),
  "a panic with an error": throws(new RangeError("oops")),
  "a write into a nil map": () => ((undefined as unknown as Record<string, number>).a = 1),
  "an index out of range": () => ([] as string[])[0]!.length,
  "a panic behind a wait": (c) => goOn(c).then(throws(new TypeError("boom"))),
  "a panic in the body of a saga": (c) => c.saga("s", () => Promise.reject(new TypeError("boom"))),
  "a panic in a branch": (c) => c.all({ side: throws(new TypeError("boom")) }),
  "a panic in the `MarshalJSON` of a result": gives({ toJSON: throws(new TypeError("boom")) }),

  "a step without a function": (c) => c.step("a", any(undefined)),
  "a `Parallel` without a function": (c) => c.parallel("p", [1], any(undefined)),
  "a saga without a function": (c) => c.saga("s", any(undefined)),
  "a branch without a function": (c) => c.all({ b: any(undefined) }),
  "an `Undo` without a function": (c) => c.saga("s", () => c.step("a", one, { undo: any(1) })),
  "a join of a nil future": (c) => c.joinAll([any(undefined)]),
  "a `Select` of nil": (c) => c.select(any(undefined)),
  "a nil option": step("a", any(undefined)),

  "a step without a name": step(""),
  "a name that begins with _": step("_own"),
  "a name of 171 bytes": step("x".repeat(171)),
  "a name with a line break": step("a\nb"),
  "a name that begins with a space": step(" a"),
  "a name with the key of a branch in it": step("left#1//a"),
  "a name with umlauts and a number": step("mit Umlauten: äöü #1"),
  "a saga without a name": (c) => c.saga("", async () => 1),
  "a branch without a name": (c) => c.all({ "": one }),
  "a `UUID` without a name": (c) => c.uuid(""),
  "a `Now` without a name": (c) => c.now(""),
  "a `Version` without a name": (c) => c.version("", 1),
  "a signal without a name": (c) => c.signal("", minute),
  "a child without a kind": child(""),
  "a kind with a quote": child('wea"ther'),
  "a kind that begins with _": child("_frame"),
  "a kind of 500 bytes": child("x".repeat(500)),
  "`FirstOK` of the first 3 of 2": (c) => c.firstOK(3, [c.onSignal("a"), c.onSignal("b")]),
  "`FirstOK` of the first 0": (c) => c.firstOK(0, [c.onSignal("a")]),
  "a `Select` of nothing": (c) => c.select(),
  "a `Race` of nothing": (c) => c.race("1s", []),
  "a `JoinAll` of nothing": (c) => c.joinAll([]),
  "one signal twice in a `Select`": (c) => {
    const f = c.onSignal("a");
    return c.select(f, f);
  },
  "the `Result` of a future that has not ended": (c) => c.onSignal("a").result(),
  "a `Peek` at a signal": (c) => c.onSignal("a").peek(),
  "a `Limit` of -1": (c) => c.parallel("p", [1], one, { limit: -1 }),
  "a `Limit` of 1001": (c) => c.parallel("p", [1], one, { limit: 1001 }),
  "a `Retry` of -1 attempts": step("a", { retries: -1 }),
  "a `Retry` with a negative pause": step("a", { retries: { attempts: 2, first: -1 } }),
  "`For` with a value that is no JSON": step("a", { for: () => 1 }),
  "`For` on a `Parallel`": (c) => c.parallel("p", [1], one, any({ for: 1 })),
  "an `Undo` outside of a saga": step("a", { undo: () => undefined }),
  "`range` over a map around steps": async (c) => {
    for (const name of Object.keys({ b: 1, a: 2 })) await c.step(name, one);
  },
  "the items of a `Parallel` come from the order of a map": (c) => c.parallel("p", Object.keys({ b: 1, a: 2 }), one),
  "the error of a step is dropped": (c) => c.step("a", throws(new Error("oops"))).catch(() => undefined),
  "a panic in a step": (c) => c.step("a", throws(new TypeError("boom"))),
  "a panic in an item of a `Parallel`": (c) => c.parallel("p", [1], throws(new TypeError("boom"))),
  "a nil error of its own type from a step": (c) => c.step("a", throws(undefined)),
  "a `Sleep` of a time that has passed": (c) => c.sleep(-3600_000),
  "a `Message` of a run without a thread": (c) => c.message(1),
  "a `History` of a run without a thread": (c) => c.history(),
  "an `OnMessage` of a run without a thread": (c) => c.onMessage().join(),
  "a `Continue` of a run without a thread": (c) => c.continueOn(1, []),
  "a `Continue` that waits for a signal": (c) => c.continueOn(1, [c.onSignal("a")]),
  "a `Publish` under a name that is none": (c) => c.publish("a/b c", 1),
  "an `Emit` of a type that is the server's": (c) => c.emit("run:completed", 1),
  "an agent that returns `ErrCancelled` and was not asked to stop": throws(new Cancelled()),
  "an agent that returns `context.Canceled`": throws(new DOMException("aborted", "AbortError")),

  "a channel as a result": gives(Symbol("x")),
  "a function as a result": gives(() => 1),
  "NaN as a result": gives(Number.NaN),
  "infinity as a result": gives(Infinity),
  "a value that has itself in it": (c) => {
    const v: { self?: unknown } = {};
    v.self = v;
    return gives(v)(c);
  },
  "a result with a NUL in a text": gives("a\0b"),
  "a result that is nested 60 deep": gives(deep(60)),
  "half of a surrogate pair": gives("\ud800"),
  "a `MarshalJSON` that fails": gives({ toJSON: throws(new Error("no writer")) }),
  "a map with keys that JSON can't write": gives(new Map([[{}, 1]])),
  "nil as a result": gives(null),
  "a result of a step of 1 MiB and more": gives("x".repeat(1 << 20)),
  "a result of 4 MiB": gives("x".repeat(4 << 20)),
  "an input of a child of 1 MiB and more": child("one", "x".repeat(1 << 20)),
  "an input of a child that is nested 2000 deep": child("one", deep(2000)),
  "a message of 1 MiB and more": (c) => c.message("x".repeat(1 << 20)),
  "a `Delta` with a NUL": (c) => c.delta("a\0b"),
  "a `Publish` of 100 KiB": (c) => c.publish("plan", "x".repeat(100 << 10)),
  "arbitrary bytes as `[]byte`": gives(new Uint8Array([0, 255, 128])),
  "an error of a step with a text of 2 MiB": (c) => c.step("s", throws(new Failure("failed", "x".repeat(2 << 20)))),
  "an error of a step with a NUL in its text": (c) => c.step("s", throws(new Failure("failed", "a\0b"))),
  "an input of a child with a NUL": child("one", "a\0b"),
  "a channel as the input of a child": child("one", Symbol("x")),
  "an item of a `Parallel` that is no JSON": (c) => c.parallel("p", [one], one),
  "an item of a `Map` that is no JSON": (c) => c.map("one", [one]),
  "a message with a NUL": (c) => c.message("a\0b"),
  "an `Emit` of a channel": (c) => c.emit("x:line", Symbol("x")),
  "a `Progress` with a NUL": (c) => c.progress("a\0b"),
};

for (const [what, { call, atOnce }] of Object.entries(calls)) {
  rows[`${what} inside of a step`] = inStep(call);
  // A bare goroutine of Go is a call that is not awaited here.
  if (!atOnce)
    rows[`${what} in a bare goroutine`] = async (c, w) => {
      const other = Promise.resolve(call(c, w));
      other.catch(() => undefined);
      await c.step("meanwhile", one);
      return await other;
    };
}

const codeOf = (err: unknown) => (err instanceof Failure ? err.code : "failed");

/** Executes an agent. Returns how it ends, the code of the error that it ignores, and whether it has gone on. */
async function execute(f: Agent, ignores: boolean, onThread: boolean, wakes: boolean) {
  const trial = new Trial(undefined, onThread);
  const world: World = { executions: 0 };
  let error = "";
  const agent: AgentFunction = async (ctx) => {
    world.executions++;
    if (!ignores) return (await f(ctx, world), "done");
    try {
      await f(ctx, world);
    } catch (err) {
      error = codeOf(err);
    }
    await ctx.step("next", () => trial.effects.push("next"));
    return "ignored";
  };
  trial.use(agent);
  let outcome = await trial.go();
  if (wakes && outcome.type === "suspend") {
    trial.goOn();
    outcome = await trial.go();
  }
  const { code, message } = (outcome.error ?? {}) as { code?: string; message?: string };
  const told = outcome.defect === true ? "held" : word(outcome);
  return { told, code: code ?? "", message: message ?? "", error, goes: trial.effects.includes("next") };
}

const results: Record<string, object> = {};
const asked = JSON.parse(process.argv[2] ?? "[]") as { Name: string; OnThread: boolean; Wakes: boolean }[];
for (const { Name, OnThread, Wakes } of asked) {
  const f = rows[Name];
  if (!f) continue;
  results[Name] = { Run: await execute(f, false, OnThread, Wakes), Ignores: await execute(f, true, OnThread, Wakes) };
}
process.stdout.write(JSON.stringify({ Results: results, Names: Object.keys(rows) }));
