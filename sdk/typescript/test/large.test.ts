// Executions that do more than one commit takes.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { CommitBody } from "../src/batch.js";
import type { Context } from "../src/context.js";
import { StorySession } from "./support.js";

const grant = { epoch: 7, journal: [], inbox: [] };
const numbers = (n: number) => [...Array(n).keys()];

/** Counts as the server does. */
function entries(c: CommitBody): number {
  const lists = [c.journal, c.children, c.close, c.cancel, c.views, c.messages, c.events, c.ack];
  const waits = (c.waits ?? []).map((w) => Math.max(1, (w.keys as string[] | undefined)?.length ?? 0));
  return lists.reduce((n, list) => n + (list?.length ?? 0), 0) + waits.reduce((n, w) => n + w, 0);
}

function checkBounds(session: StorySession): void {
  for (const c of session.sent) {
    assert.ok(entries(c) <= 1000, `a commit has ${entries(c)} entries`);
    assert.ok(JSON.stringify(c).length < 8 << 20, "a commit has 8 MiB");
  }
}

test("1200 children are spawned in several commits, and joined by two waits", async () => {
  const session = new StorySession();
  const agent = (ctx: Context) => ctx.joinAll(numbers(1200).map((i) => ctx.spawn("one", i)));
  const { end } = await session.execute(agent, {}, grant);
  assert.equal(end, "suspended");
  checkBounds(session);
  assert.equal(session.sent.flatMap((c) => c.children ?? []).length, 1200);
  const waits = session.sent.flatMap((c) => c.waits ?? []);
  assert.deepEqual(waits.map((w) => (w.keys as string[]).length), [1000, 200]);
  assert.deepEqual(session.sent.at(-1)?.outcome, { type: "suspend", waits: waits.map((w) => w.id) });

  // Each commit that has children has what the journal needs to ask for them again.
  for (const c of session.sent.filter((c) => c.children)) {
    const frame = c.journal?.find((e) => e.key.startsWith("_frame:"))?.value as { spawned: Record<string, string> };
    assert.deepEqual(Object.keys(frame.spawned), c.children?.map((x) => x.key));
  }
  // An execution that has the first commit alone spawns the others.
  const again = new StorySession();
  await again.execute(agent, {}, { epoch: 8, journal: session.sent[0]?.journal ?? [], inbox: [] });
  const left = 1200 - (session.sent[0]?.children?.length ?? 0);
  assert.equal(again.sent.flatMap((c) => c.children ?? []).length, left);
  checkBounds(again);
});

test("a map has 1000 children at once", async () => {
  const session = new StorySession();
  const { end } = await session.execute((ctx: Context) => ctx.map("one", numbers(1000), { limit: 1000 }), {}, grant);
  assert.equal(end, "suspended");
  checkBounds(session);
  assert.equal(session.sent.flatMap((c) => c.children ?? []).length, 1000);
});

test("inputs of many MiB go in several commits", async () => {
  const session = new StorySession();
  const text = "x".repeat(500_000);
  await session.execute((ctx: Context) => ctx.joinAll(numbers(40).map(() => ctx.spawn("one", text))), {}, grant);
  checkBounds(session);
  assert.equal(session.sent.flatMap((c) => c.children ?? []).length, 40);
});

test("a refused child of a full commit is its own failure", async () => {
  const session = new StorySession();
  const { Refused } = await import("../src/session.js");
  let refused = false;
  session.refuse = (c) => {
    if (refused || !c.children) return undefined;
    refused = true;
    return new Refused("quota_exceeded", "too many", "commits[0].children[3]");
  };
  const agent = (ctx: Context) => ctx.joinAllSettled(numbers(1200).map((i) => ctx.spawn("one", i)));
  await session.execute(agent, {}, grant);
  checkBounds(session);
  const kept = session.sent.slice(1).flatMap((c) => c.children ?? []);
  assert.equal(kept.length, 1199);
});

test("a full inbox, and then an end", async () => {
  const session = new StorySession();
  const inbox = numbers(3000).map((i) => ({ seq: i + 1, type: "child", name: `other#${i}`, outcome: "completed", data: null }));
  const { end } = await session.execute(() => Promise.resolve(1), {}, { ...grant, inbox });
  assert.equal(end, "ended");
  checkBounds(session);
  assert.equal(session.sent.flatMap((c) => c.ack ?? []).length, 3000);
});
