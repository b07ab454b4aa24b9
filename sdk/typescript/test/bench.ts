// Measures how long a journal of 10 000 steps takes to replay: node dist/test/bench.js, in sdk/typescript.

import type { Context } from "../src/index.js";
import type { Entry } from "../src/journal.js";
import { StorySession } from "./support.js";

const steps = 10_000;

async function agent(ctx: Context): Promise<unknown> {
  for (let n = 0; n < steps; n++) await ctx.step("work", () => 1);
  return await ctx.signal("go");
}

const journal = Array.from({ length: steps }, (_, n) => ({ key: `work#${n + 1}`, value: { ok: { n, text: `result ${n}` } } }));
const took: number[] = [];
for (let round = 0; round < 7; round++) {
  const session = new StorySession();
  const began = process.cpuUsage();
  const { end } = await session.execute(agent as never, {}, { epoch: 2, journal: journal as unknown as Entry[], inbox: [] });
  const { user, system } = process.cpuUsage(began);
  took.push((user + system) / 1000);
  const type = session.sent.at(-1)?.outcome?.type;
  if (type !== "suspend") throw new Error(`the execution is ${end}, and its last commit has the outcome ${type}`);
}
const median = took.sort((a, b) => a - b)[3] as number;
console.log(`a journal of ${steps} steps is replayed in ${median.toFixed(0)} ms of a processor (median of ${took.length})`);
