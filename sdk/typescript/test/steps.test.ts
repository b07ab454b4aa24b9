// What steps tell.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Context } from "../src/context.js";
import { StorySession } from "./support.js";

const grant = { epoch: 7, journal: [], inbox: [] };

test("what a model thinks has lines of its own, in the order in which it was told", async () => {
  const session = new StorySession();
  await session.execute(
    (ctx: Context) =>
      ctx.step("ask", (s) => {
        s.reasoning("hm");
        s.delta("Yes");
      }),
    {},
    grant,
  );
  const told = session.sent.flatMap((c) => c.events ?? []).map((e) => e.data as { text: string; channel?: string });
  assert.deepEqual(
    told.map((d) => [d.channel, d.text]),
    [["reasoning", "hm"], [undefined, "Yes"]],
  );
});
