// A worker for live_test.go. Each call of a step's function is a line of the file LOG.

import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";
import { Failure, Worker, later, type Context, type StepContext, type Task } from "../src/index.js";

const { LOG = "", GRACE = "5000" } = process.env;
const note = (text: string) => appendFileSync(LOG, `${text}\n`);
const worker = new Worker({ grace: Number(GRACE), slots: Number(process.env.SLOTS ?? 20) });

/** Returns the function of a step, which waits for the file that HOLD_name names. */
const step = (name: string) => async (s: StepContext) => {
  note(`${name} ${s.idempotencyKey.slice(s.idempotencyKey.indexOf("/") + 1)}`);
  const until = process.env[`HOLD_${name}`];
  while (until && !existsSync(until)) await delay(20);
  return name;
};

worker.task("look", (place: string) => `found in ${place}`, { timeout: "1m", input: { type: "string" } });

worker.task("count", async (to: number, task: Task) => {
  for (let n = 0; n < to; n++) {
    task.heartbeat(`at ${n}`, n / to);
    await delay(50, undefined, { signal: task.signal });
  }
  return to;
});

worker.task("once", (name: string, task: Task) => {
  note(`once ${name} ${task.attempt}`);
  return name;
});

/** Blocks the whole thread until a file is there. */
worker.task("blocked", () => {
  note("blocked");
  while (!existsSync(process.env.HOLD_blocked ?? "")) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20);
  return "free";
});

worker.task("slow", async (_: null, task: Task) => {
  note("slow");
  task.heartbeat("slow");
  task.signal.addEventListener("abort", () => note("slow_lost"));
  while (!existsSync(process.env.HOLD_slow ?? "")) await delay(20);
  return process.env.HOLD_slow ?? null;
});

worker.task("again", (_: null, task: Task) => {
  if (!existsSync(process.env.HOLD_again ?? "")) throw later(100);
  return task.attempt;
});

worker.task("talk", async (_: null, task: Task) => {
  for (let n = 0; n < 3; n++) await task.delta(`word ${n} `);
  await task.emit("x:said", { n: 3 });
  await task.artifact("report.txt", "all of it", "text/plain");
  throw new Failure("out_of_stock", "there are none left", { permanent: true });
});

worker.agent(
  "order",
  async (ctx: Context, item: string) => {
    await ctx.step("price", step("price"));
    const found = await ctx.spawn<string>("look", item).join();
    await ctx.step(process.env.BOOK ?? "book", step("book"), { timeout: "10m" });
    if (process.env.EXTRA) await ctx.step("extra", step("extra"));
    const paid = await ctx.signal<number>(process.env.PAID ?? "paid", { timeout: "1m" });
    const both = await ctx.all({ a: (c) => c.step("x", step("left")), b: (c) => c.step("x", step("right")) });
    const many = await ctx.map<string>("look", ["a", "b"]);
    return { found, paid, both, many: many.results };
  },
  { input: { type: "string" }, signals: { paid: { type: "number" } } },
);

worker.agent("limited", (ctx: Context) => ctx.step("call", step("call"), { limit: { name: "model" } }));

/** Has more children than one commit takes, and waits for as many as one wait takes. */
worker.agent("wide", async (ctx: Context) => {
  const some = (n: number) => [...Array(n).keys()];
  const spawned = some(1100).map((i) => ctx.spawn("nobody", i));
  await ctx.map("nobody", some(1000), { limit: 1000 });
  await ctx.joinAll(spawned);
});

/** Talks until the user has said something else. */
worker.agent("talks", async (ctx: Context) => {
  const seq = (await ctx.history()).at(-1)?.seq ?? 0;
  return await ctx.step("talk", async (s) => {
    const before = await s.unread(seq);
    note("talks");
    while (!(await s.unread(seq))) await delay(20);
    return before;
  });
});

/** Books a room, and gives it back if the run is asked to stop. */
worker.agent("trip", async (ctx: Context) => {
  return await ctx.saga("trip", async () => {
    await ctx.step("room", step("room"), { undo: () => note("given_back room") });
    await ctx.signal("confirm", { timeout: "1h" });
    await ctx.step("ticket", step("ticket"));
    return "booked";
  });
});

await worker.run();
