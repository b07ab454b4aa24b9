// Integers beyond 2^53, which JavaScript can't have: an error that names the step, and never a rounded number.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Context } from "../src/context.js";
import type { Entry, InboxItem } from "../src/journal.js";
import { StorySession, list, load } from "./support.js";

interface Told {
  executions: { grant: { epoch: number; journal: number; inbox: InboxItem[] }; commits: { journal?: Entry[] }[] }[];
}

/** The agent of the story. A step that is called notes it. */
const agent = (count: number, called: string[]) => async (ctx: Context) => {
  const made = (name: string, n: number) => ctx.step(name, () => (called.push(name), n));
  const first = await made("count", count);
  const next = await ctx.spawn<number>("next", first).join();
  const data = await ctx.signal<number>("go", { timeout: "never" });
  return [first, next, data, await made("low", -1)];
};

function outcome(session: StorySession) {
  return session.sent.at(-1)?.outcome as { type: string; defect?: boolean; error?: { code: string; message: string } };
}

test("a run that another language has begun with integers beyond 2^53 is held", async () => {
  const files = list("integers");
  assert.equal(files.length, 1);
  const told = load<Told>(files[0] as string);
  const journal = told.executions.flatMap((x) => x.commits.flatMap((c) => c.journal ?? []));
  const held = told.executions.filter((x) => x.grant.journal > 0);
  assert.ok(held.length > 1);
  for (const { grant } of held) {
    const session = new StorySession();
    const called: string[] = [];
    await session.execute(agent(1, called), {}, { ...grant, journal: structuredClone(journal.slice(0, grant.journal)) });
    const { type, defect, error } = outcome(session);
    assert.deepEqual([type, defect, error?.code, called], ["fail", true, "nondeterminism", []], JSON.stringify(error));
    assert.match(error?.message ?? "", /step count#1: .* is an integer beyond 2\^53/);
  }
});

test("a step that gives an integer beyond 2^53 fails and is named", async () => {
  const session = new StorySession();
  await session.execute(agent(2 ** 53 + 2, []), {}, { epoch: 10, journal: [], inbox: [] });
  const { type, error } = outcome(session);
  assert.deepEqual([type, error?.code], ["fail", "invalid"], JSON.stringify(error));
  assert.match(error?.message ?? "", /count#1.*9007199254740994/);
});
