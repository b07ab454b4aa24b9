// Calls that can't be made where they are made: the run is held before anything is done, with both names.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Context } from "../src/context.js";
import { StorySession } from "./support.js";

async function held(f: (ctx: Context) => Promise<unknown>): Promise<{ code: string | undefined; message: string; steps: string[] }> {
  const session = new StorySession();
  await session.execute(f, {}, { epoch: 1, journal: [], inbox: [] });
  const o = session.sent.at(-1)?.outcome as { error?: { code: string; message: string }; defect?: boolean } | undefined;
  assert.equal(o?.defect, true, `the run is not held: ${JSON.stringify(o)}`);
  const steps = session.sent.flatMap((c) => (c.journal ?? []).map((e) => e.key)).filter((k) => !k.startsWith("_"));
  return { code: o?.error?.code, message: o?.error?.message ?? "", steps };
}

test("two steps at once on one context", async () => {
  const got = await held((ctx) => Promise.allSettled([ctx.step("a", () => 1), ctx.step("b", () => 2)]));
  assert.equal(got.code, "agent_misuse");
  assert.match(got.message, /"b".*"a"/);
});

test("a call inside of a step, also if the step catches its error", async () => {
  for (const call of [
    (ctx: Context) => ctx.step("inner", () => 1),
    (ctx: Context) => ctx.sleep("1h"),
    (ctx: Context) => ctx.signal("go"),
    async (ctx: Context) => ctx.spawn("child"),
    async (ctx: Context) => ctx.now("began"),
    async (ctx: Context) => ctx.message("hello"),
  ]) {
    const got = await held((ctx) => ctx.step("outer", async () => (await call(ctx).catch(() => null), 1)));
    assert.equal(got.code, "agent_misuse");
    assert.match(got.message, /outer/);
    assert.deepEqual(got.steps, []);
  }
});

test("a call on the parent's context while branches run", async () => {
  const got = await held((ctx) => ctx.all({ left: () => ctx.step("a", () => 1), right: (c) => c.step("b", () => 2) }));
  assert.equal(got.code, "agent_misuse");
  assert.match(got.message, /"a".*left, right/);
});

test("a step that is not awaited when the agent returns", async () => {
  const got = await held(async (ctx) => void ctx.step("a", () => new Promise((resolve) => setImmediate(() => resolve(1)))));
  assert.equal(got.code, "agent_misuse");
});

test("a TypeError outside of a step holds the run, another error fails the attempt", async () => {
  const got = await held(() => Promise.reject(new TypeError("x is not a function")));
  assert.equal(got.code, "panic");
  const session = new StorySession();
  await session.execute(() => Promise.reject(Object.assign(new Error("the bank is away"), { code: "bank_away" })), {}, { epoch: 1, journal: [], inbox: [] });
  assert.deepEqual(session.failure(), { code: "bank_away", defect: false });
});

test("undefined, a rounded integer and a Map are errors that name the step", async () => {
  for (const v of [undefined, 2 ** 60, Number.NaN, new Map([[1, 2]]), { at: { deep: undefined } }]) {
    const session = new StorySession();
    await session.execute(async (ctx) => await ctx.step("read", () => v as never), {}, { epoch: 1, journal: [], inbox: [] });
    const o = session.sent.at(-1)?.outcome as unknown as { error: { message: string }; retryable: boolean };
    assert.match(o.error.message, /read#1/, String(v));
    assert.equal(o.retryable, false);
  }
});

test("an integer of another language that JavaScript would round holds the run", async () => {
  const session = new StorySession();
  const journal = [{ key: "read#1", value: { ok: 9007199254740993n } }];
  await session.execute(async (ctx) => await ctx.step("read", () => 1), {}, { epoch: 2, journal, inbox: [] });
  assert.deepEqual(session.failure(), { code: "nondeterminism", defect: true });
});
