// The test kit is tried with agents that survive crashes, and with some that don't. For kit_test.go.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { devNull, hostname } from "node:os";
import { Failure, Worker, type Context, type StepContext, type WorkerOptions } from "../src/index.js";
import { Server, crash, type Trial } from "../src/kit.js";

/** What steps and agents have done, by the runs. */
const effects = new Map<string, string[]>();
const does = (run: string, what: string) => effects.set(run, [...(effects.get(run) ?? []), what]);
const done = (run: string) => [...new Set(effects.get(run))].sort();

function make(options: WorkerOptions): Worker {
  const worker = new Worker(options);
  worker.task("double", (n: number) => 2 * n);
  worker.agent("good", async (ctx: Context, n: number) => {
    const effect = <T>(v: T) => (s: StepContext) => {
      does(ctx.runId, s.key);
      return v;
    };
    ctx.message(`I begin with ${n}`);
    const price = await ctx.step("price", effect(n));
    const twice = await ctx.spawn<number>("double", price).join();
    const side = (c: Context) => c.step("side", effect(1));
    const sides = await ctx.all({ left: side, right: side });
    const verdict = await ctx.approve("pay", { title: "Pay?", action: { price: twice } }, { timeout: "10m" });
    const paid = await ctx.signal<number>("paid", { timeout: "10m" });
    ctx.message("done");
    return [twice, sides, verdict.approved, paid];
  });
  worker.agent("random", async (ctx: Context) => {
    await ctx.step("a", () => 1);
    const dice = Math.random();
    await ctx.step("b", () => 1);
    return dice;
  });
  let counted = 0;
  let calls = 0;
  worker.agent("changing", async (ctx: Context) => {
    await ctx.step("a", () => 1);
    await ctx.step(`b${++calls}`, () => 1);
    await ctx.signal("paid", { timeout: "10m" });
  });
  worker.agent("outside", async (ctx: Context) => {
    await ctx.step("a", () => 1);
    does(ctx.runId, `outside ${effects.get(ctx.runId)?.length ?? 0}`);
    await ctx.step("b", () => 1);
  });
  worker.agent("adds", async (ctx: Context) => {
    const found: number[] = [];
    await ctx.step("a", () => found.push(1));
    await ctx.step("b", () => 1);
    return found;
  });
  worker.agent("since", async (ctx: Context) => {
    const began = performance.now();
    await ctx.sleep("10ms");
    return performance.now() - began;
  });
  worker.agent("counter", async (ctx: Context) => {
    await ctx.step("a", () => 1);
    return ++counted;
  });
  worker.agent("machine", async (ctx: Context) => {
    const names = [process.env.PERDURE_NO_SUCH_THING, process.env.HOME, hostname()].map((name) => typeof name);
    writeFileSync(devNull, "paid");
    await ctx.step("a", () => writeFileSync("/dev/zero", process.env.PATH ?? ""));
    return names.length;
  });
  worker.agent("sleepy", async (ctx: Context) => {
    const began = ctx.now("began").getTime();
    await ctx.step("a", () => 1);
    await ctx.sleep("24h");
    const late = await ctx.signal("paid", { timeout: "1h" }).catch((err: Failure) => err.code);
    await ctx.step("b", () => 1);
    return [late, Math.floor((ctx.now("ended").getTime() - began) / 3_600_000)];
  });
  worker.agent("nothing", () => 1);
  worker.agent("misuse", (ctx: Context) => ctx.step("a", () => ctx.step("b", () => 1)));
  return worker;
}

const moved = await Server.start({ movesClock: true });
try {
  const during = async (trial: Trial) => {
    await trial.skip();
    await trial.skip("signal");
  };
  const sleepy = await crash(make, "sleepy", null, { server: moved, during, timeout: "30d" });
  assert.ok(sleepy.ok && sleepy.crashes >= 6, String(sleepy));
  assert.deepEqual(sleepy.end.result, ["wait_timeout", 25]);
} finally {
  await moved.close();
}

const server = await Server.start();
try {
  await assert.rejects(server.advance("1h"), /start it with movesClock/);
  const during = async (trial: Trial) => {
    await trial.signal("paid", 7);
    await trial.decide("approve");
  };
  const good = await crash(make, "good", 21, { server, during, observe: done, onThread: true, timeout: "30m" });
  assert.ok(good.ok && good.crashes >= 16, String(good));
  assert.deepEqual(good.end.result, [42, { left: 1, right: 1 }, true, 7]);
  const messages = ["I begin with 21", "done"].map((content) => ({ role: "assistant", content }));
  assert.deepEqual(good.end.messages, messages);
  assert.deepEqual(good.end.observed, ["left#1//side#1", "price#1", "right#1//side#1"]);
  // A crash before the commit of a step has it executed again.
  const again = [...effects.values()].some((list) => list.filter((key) => key === "price#1").length > 1);
  assert.ok(again, "no step was executed again");

  const random = await crash(make, "random", null, { server });
  assert.ok(!random.ok && /after commit 1 it ends with/.test(String(random)), String(random));
  const paid = (trial: Trial) => trial.signal("paid", 7);
  const changing = await crash(make, "changing", null, { server, during: paid });
  assert.match(String(changing), /"state":"held","held":"b\d+#1: .*the step b\d+#1/);
  const outside = await crash(make, "outside", null, { server, observe: (run) => effects.get(run) ?? [] });
  assert.match(String(outside), /outside 1/);
  for (const kind of ["adds", "since", "counter"]) {
    const report = await crash(make, kind, null, { server });
    assert.ok(!report.ok && report.differences.length > 0, `${kind}: ${report}`);
  }
  const machine = await crash(make, "machine", null, { server, allow: ["HOME"] });
  assert.ok(!machine.ok && machine.differences.length === 0, String(machine));
  assert.deepEqual(machine.outside, [
    "reads the environment variable PERDURE_NO_SUCH_THING",
    "reads the name of the machine",
    `writes the file ${devNull}`,
  ]);
  const nothing = await crash(make, "nothing", null, { server });
  assert.ok(nothing.ok && nothing.crashes === 2, String(nothing)); // its end is a commit, too
  const misuse = await crash(make, "misuse", null, { server });
  assert.match(String(misuse), /the run is held: .*inside of the step a#1/);

  const away = () => Promise.reject(new Failure("away", "the bank is away"));
  const broken = crash(make, "good", 21, { server, during: away });
  await assert.rejects(broken, /the bank is away/);
  await assert.rejects(Server.start({ program: "no-such-perdure" }), /name the command perdure with the variable/);
  await assert.rejects(Server.start({ flags: ["-no-such-flag"] }), /no-such-flag/);
} finally {
  await server.close();
}
console.log("every crash");
