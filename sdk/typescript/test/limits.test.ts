// Limits of steps beside the stories: items, branches, further tries, closures, and wrong values.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Context } from "../src/context.js";
import { Failure } from "../src/errors.js";
import { StorySession, turns } from "./support.js";

const grant = { epoch: 7, journal: [], inbox: [] };
const limit = { name: "model" };

test("items of a parallel that all wait suspend the run on all their waits", async () => {
  const session = new StorySession();
  session.room = (step) => ({ taken: step === "fetch#1/0" });
  const fetch = (ctx: Context) => ctx.parallel("fetch", ["a", "b", "c"], (page) => page, { limit: 2, limits: limit });
  const { end } = await session.execute(fetch, {}, grant);
  assert.equal(end, "suspended");
  const last = session.sent.at(-1);
  const id = (n: number) => `limit:fetch#1/${n}:7`;
  assert.deepEqual(last?.outcome, { type: "suspend", waits: [id(1), id(2)] });
  const wait = (n: number) => ({ id: id(n), type: "limit", name: `fetch#1/${n}`, limits: [limit], timeout: "never" });
  assert.deepEqual(last?.waits, [wait(1), wait(2)]);
  assert.deepEqual(session.sent.flatMap((c) => c.journal ?? []).map((e) => e.key), ["fetch#1/0"]);
});

test("a branch that waits asks once a second while another works", async () => {
  const session = new StorySession();
  let ended = false;
  session.room = () => ({ taken: ended, retry_ms: 60_000 });
  session.later = (ms, f) => void turns(1).then(() => ms === 1000 && f());
  const work = async () => {
    await turns(20);
    ended = true;
    await turns(20);
    return 1;
  };
  const both = (ctx: Context) =>
    ctx.all({ left: (c) => c.step("call", () => 2, { limit }), right: (c) => c.step("work", work) });
  const { end } = await session.execute(both, {}, grant);
  assert.equal(end, "ended");
  assert.deepEqual(session.sent.at(-1)?.outcome, { type: "complete", result: { left: 2, right: 1 } });
  assert.equal(session.sent.some((c) => c.waits), false);
});

test("branches that all wait suspend the run", async () => {
  const session = new StorySession();
  session.room = () => ({ taken: false });
  const call = (c: Context) => c.step("call", () => 1, { limit: { ...limit, key: "k", units: 2 } });
  await session.execute((ctx: Context) => ctx.all({ left: call, right: call }), {}, grant);
  const waits = ["left#1//limit:call#1:7", "right#1//limit:call#1:7"];
  assert.deepEqual(session.sent.at(-1)?.outcome, { type: "suspend", waits });
  const limits = [{ name: "model", key: "k", units: 2 }];
  const wait = { id: waits[0], type: "limit", name: "left#1//call#1", limits, timeout: "never" };
  assert.deepEqual(session.sent.at(-1)?.waits?.[0], wait);
});

test("a short wait is waited out in place, and a further try takes units again", async () => {
  const session = new StorySession();
  let asked = 0;
  session.room = () => ({ taken: ++asked % 3 === 0, retry_ms: 900 });
  let calls = 0;
  const call = () => {
    if (++calls < 3) throw new Error("busy");
    return calls;
  };
  await session.execute((ctx: Context) => ctx.step("call", call, { limit, retries: 3 }), {}, grant);
  const questions = session.asked.filter((q) => q.taken).map((q) => q.try ?? 0);
  assert.deepEqual([questions, asked, session.sent.at(-1)?.outcome?.result], [[0, 1, 2], 9, 3]);
});

test("a step closes limits with the next commit, and the last closure of a limit counts", async () => {
  const session = new StorySession();
  await session.execute(
    (ctx: Context) =>
      ctx.step("call", (s) => {
        s.closeLimit("model", "30s");
        s.closeLimit("model", "1m", { key: "acme" });
        s.closeLimit("model", "90s", { reason: "429" });
        return 1;
      }),
    {},
    grant,
  );
  const limits = session.sent.flatMap((c) => c.limits ?? []);
  const last = { name: "model", closed_for: "1m30s", reason: "429" };
  assert.deepEqual(limits, [last, { name: "model", key: "acme", closed_for: "1m0s" }]);
  for (const [name, span, options] of [["a b!", "1m", {}], ["model", 0, {}], ["model", "1m", { key: "\n" }]] as const) {
    const other = new StorySession();
    await other.execute((ctx: Context) => ctx.step("call", (s) => s.closeLimit(name, span, options)), {}, grant);
    assert.equal(other.failure().code, "invalid", `${name} ${span}`);
  }
});

test("a refusal is the error of the step", async () => {
  const session = new StorySession();
  session.room = () => {
    throw new Failure("unknown_limit", "there is no limit mdoel");
  };
  let called = false;
  await session.execute((ctx: Context) => ctx.step("call", () => (called = true), { limit }), {}, grant);
  assert.deepEqual([session.failure(), called], [{ code: "unknown_limit", defect: false }, false]);
});

test("a request to stop ends the wait, and the step is not recorded", async () => {
  const session = new StorySession();
  session.room = () => {
    session.execution?.requestCancel(false);
    return { taken: false, retry_ms: 1000 };
  };
  await session.execute((ctx: Context) => ctx.step("call", () => 1, { limit }), {}, grant);
  assert.deepEqual(session.sent, [{ outcome: { type: "cancelled" } }]);
});

test("wrong values hold the run before anything is sent, and a wrong key is an error", async () => {
  const name = "model";
  const wrong: [unknown, RegExp][] = [
    [[], /0 are given/],
    [["a", "b", "c", "d", "e"].map((n) => ({ name: n })), /5 are given/],
    ["model", /it is a string/],
    [{ name: "" }, /empty/],
    [{ name: "kind:a" }, /begins with kind:/],
    [{ name: 7 }, /it has to be a text/],
    [{ name, unit: 3 }, /no option unit/],
    [{ name, units: 0 }, /0 units of model/],
    [{ name, units: 1.5 }, /1.5 units/],
    [{ name, units: 2e6 }, /whole number from 1 to 1000000/],
    [[{ name }, { name, key: "a" }], /model is named twice/],
  ];
  for (const [value, text] of wrong) {
    const session = new StorySession();
    await session.execute((ctx: Context) => ctx.step("call", () => 1, { limit: value as never }), {}, grant);
    const o = session.sent[0]?.outcome as unknown as { error: { code: string; message: string } };
    assert.deepEqual([session.sent.length, session.asked.length, o.error.code], [1, 0, "agent_misuse"]);
    assert.match(o.error.message, text);
    assert.match(o.error.message, /call#1/);
  }
  for (const key of ["\x01", "x".repeat(201), 7]) {
    const session = new StorySession();
    const call = (ctx: Context) => ctx.step("call", () => 1, { limit: { name, key: key as string } });
    await session.execute(call, {}, grant);
    assert.deepEqual([session.failure(), session.asked.length], [{ code: "invalid", defect: false }, 0]);
  }
});
