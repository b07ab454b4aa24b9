// The agents of the stories of testdata/journal, written once more from their descriptions.

import type { AgentFunction, AgentOptions } from "../src/agent.js";
import type { Context } from "../src/context.js";
import { Failure } from "../src/errors.js";
import type { Future } from "../src/future.js";
import type { Json } from "../src/json.js";
import { turns, type StorySession } from "./support.js";

/** An agent of a story. Builds are numbered from 1; the second value has its options. */
export type Story = (w: { session: StorySession; build: number; execution: number }) => AgentFunction | [AgentFunction, AgentOptions];

const stock = () => {
  throw new Failure("out_of_stock", "there are none left", { permanent: true });
};
const waitFor = async (ctx: Context) => await ctx.signal("go", { timeout: "never" });
const late = async (ctx: Context) => {
  await ctx.step("plan", () => 1);
  return await ctx.signal("go", { timeout: "1h" });
};
const searches = (ctx: Context, n: number) => Array.from({ length: n }, (_, i) => ctx.spawn<number>("search", i + 1));
const text = { type: "string" };
const by = { type: "object", properties: { name: text } };
const object = (properties: Record<string, unknown>, ignores: string[] = []): AgentOptions => ({ input: { type: "object", properties }, ignores });
const callback = async (ctx: Context) => {
  const paid = ctx.callback("paid", { timeout: "1h" });
  const token = await paid.token();
  await ctx.step("order", () => token);
  return await paid.join();
};
const limited = async (ctx: Context) => {
  await ctx.step("plan", () => 1);
  const limit = [{ name: "openai", units: 3 }, { name: "customer", key: "acme" }];
  return await ctx.step("call", () => "text", { limit });
};
const trip = (ctx: Context, rest: () => Promise<unknown>) =>
  ctx.saga("trip", async () => {
    await ctx.step("flight", () => "LX1", { undo: () => null });
    await ctx.step("hotel", () => "H7", { undo: () => null });
    await rest();
  });

export const stories: Record<string, Story> = {
  anew: () => [
    async (ctx, input: { orders: number }) => {
      const order = await ctx.signal<string>("order", { timeout: "1h" });
      await ctx.step("ship", () => order);
      return input.orders === 0 ? ctx.continueWith("one of many", { orders: 1 }) : order;
    },
    object({ orders: { type: "integer" } }),
  ],
  "another-input-is-held": ({ build }) => async (ctx) => await ctx.spawn("search", { q: build === 1 ? "a" : "b" }).join(),
  approval: () => async (ctx) => {
    const v = await ctx.approve("push", { title: "Push?", action: { branch: "main" } });
    if (v.approved) await ctx.step("push", () => true);
    return v.approved;
  },
  branches: () => async (ctx) => {
    const begun = { left: false };
    const side = (name: string) => async (c: Context) => {
      if (name === "right") await turns();
      await c.step("search", () => name.slice(0, 1));
      if (name === "right") await turns();
      const go = await c.signal("go", { timeout: "never" });
      begun.left = true;
      await c.step("search", () => go);
    };
    await ctx.all({ left: side("left"), right: side("right") });
    return await ctx.step("search", () => "both");
  },
  callback: () => callback,
  "callback-error": () => callback,
  "cancel-at-a-wait": () => async (ctx) => {
    await ctx.step("plan", () => 1);
    ctx.now("asked");
    return await ctx.signal("go", { timeout: "1h" });
  },
  "cancel-in-a-step": ({ session }) => async (ctx) => {
    const child = ctx.spawn("search", 1);
    await ctx.step("long", () => {
      session.execution?.requestCancel(false);
      return 1;
    });
    await ctx.step("next", () => 1).catch(() => undefined);
    return await child.join();
  },
  "cancel-while-suspended": () => late,
  "child-late": () => async (ctx) => {
    const child = ctx.spawn("search", 1);
    await child.join().catch(() => ctx.step("instead", () => 2));
    const first = await child.late();
    await waitFor(ctx);
    const second = await child.late();
    return [first?.result ?? null, second?.result ?? null];
  },
  "child-refused": () => async (ctx) => {
    const both = [ctx.spawn("search", 1), ctx.spawn("talk", 1, { threadId: "other" })];
    await ctx.step("plan", () => 1);
    const s = await ctx.joinAllSettled(both);
    return [s.completed, s.failed];
  },
  "child-refused-at-the-wait": () => async (ctx) => {
    try {
      return await ctx.spawn("talk", 1, { threadId: "other" }).join();
    } catch {
      return await ctx.step("instead", () => 2);
    }
  },
  "child-stalls": () => async (ctx) => {
    const child = ctx.spawn("search", 1, { onStall: true });
    try {
      return await child.join();
    } catch {
      await child.cancel();
      return await ctx.step("instead", () => 2);
    }
  },
  children: () => async (ctx) => {
    const all = [ctx.spawn("search", { q: "a" }), ctx.spawn("search", { q: "b" }), ctx.spawn("tick", undefined, { timeout: "1m" })];
    await ctx.step("plan", () => 1);
    return await ctx.joinAll(all);
  },
  continue: () => (ctx) => ctx.continueOn("I am at it", [ctx.spawn("report", 1), ctx.spawn("report", 2)]),
  "error-that-is-no-fact": ({ execution }) => async (ctx) => {
    await ctx.step("plan", () => 1);
    return await ctx.step("page", () => {
      if (execution === 0) throw new Error("the page is not there yet");
      return "text";
    });
  },
  "errors-that-become-facts": () => async (ctx) => {
    await ctx.step("stock", stock).catch(() => undefined);
    await ctx.step("page", () => Promise.reject(new Error("the page is not there yet"))).catch(() => undefined);
    await ctx.step("mail", () => true);
    return "done";
  },
  "first-two-of-four": () => async (ctx) => (await ctx.firstOK(2, searches(ctx, 4))).indexes,
  history: () => async (ctx) => {
    const { length } = await ctx.history();
    await ctx.step("answer", () => length);
    ctx.message("done");
    await waitFor(ctx);
    for await (const m of ctx.newestMessages()) return m.content;
    return null;
  },
  "input-field-lost-is-held": ({ build }) => [
    async (ctx, input: { city?: string }) => {
      await waitFor(ctx);
      return await ctx.step("plan", () => input.city ?? "");
    },
    build === 1 ? object({ city: text, by }) : object({ days: { type: "integer" }, by }, build === 3 ? ["city"] : []),
  ],
  "input-fields": ({ build }) => [
    async (ctx, input: { city: string; by: { name: string } }) => {
      await ctx.step("plan", () => input.city);
      await waitFor(ctx);
      return await ctx.step("mail", () => input.by.name);
    },
    object({ city: text, by, ...(build === 2 ? { days: { type: "integer" } } : {}) }),
  ],
  "input-of-another-type-is-held": ({ build }) => [
    async (ctx, input: { city: string }) => {
      await ctx.step("plan", () => input.city);
      await waitFor(ctx);
      return input.city;
    },
    object({ city: build === 2 ? { type: "number" } : text }),
  ],
  "join-all-fails": () => async (ctx) => await ctx.joinAll(searches(ctx, 3)),
  "join-all-settled": () => async (ctx) => {
    const s = await ctx.joinAllSettled(searches(ctx, 3));
    return [s.completed, s.failed, s.timedOut, s.cancelled];
  },
  "large-data": () => async (ctx) => {
    for (const name of ["wide", "deep", "deeper"]) await ctx.signal(name, { timeout: "never" });
    return "done";
  },
  "map-fails": () => async (ctx) => await ctx.map("square", [1, 2, 3, 4, 5], { limit: 3 }),
  "map-of-50": () => async (ctx) => (await ctx.map("square", Array.from({ length: 50 }, (_, i) => i + 1), { limit: 20 })).completed,
  message: () => async (ctx) => {
    ctx.message("hello");
    return await ctx.onMessage().join();
  },
  "none-completes": () => async (ctx) => await ctx.selectOK(searches(ctx, 2)),
  "now-and-uuid": () => async (ctx) => {
    ctx.now("began");
    const id = ctx.uuid("order");
    ctx.uuid("order");
    ctx.now("began");
    return await ctx.step("pay", () => id);
  },
  parallel: () => async (ctx) => {
    const rank = ["a", "b", "c"];
    await ctx.parallel("fetch", ["c", "a", "b"], async (item) => {
      await turns(40 * rank.indexOf(item));
      return item + item;
    });
    return await ctx.step("sum", () => 3);
  },
  "parallel-settled": () => async (ctx) => {
    const f = (n: number) => (n === 2 ? stock() : n === 3 ? Promise.reject(new Error("page 3 is not there yet")) : 1);
    await ctx.parallel("fetch", [1, 2, 3], f, { limit: 1, settle: true });
    return await ctx.step("sum", () => 1);
  },
  race: () => async (ctx) => {
    const both = searches(ctx, 2);
    try {
      return (await ctx.race("1m", both)).index;
    } catch {
      return (await ctx.race("2m", both)).index;
    }
  },
  removed: ({ build }) => async (ctx) => {
    if (build === 1) await ctx.step("look up", () => 1);
    else ctx.removed("look up");
    const plan = await ctx.step("plan", () => 2);
    await waitFor(ctx);
    return plan;
  },
  "renamed-step-is-held": ({ build }) => async (ctx) => {
    await ctx.step("plan", () => 1);
    await ctx.step(build === 1 ? "buy" : "order", () => 2);
    await waitFor(ctx);
    return await ctx.step("mail", () => 3);
  },
  "report-said-anew": ({ execution }) => async (ctx) => {
    ctx.message("I begin");
    ctx.emit("x:begun", { b: 1, a: 2.0 });
    let answer: string;
    try {
      answer = await ctx.step("answer", () => {
        if (execution === 0) throw new Error("the model is not there yet");
        return "42";
      });
    } catch (err) {
      ctx.message("busy, I will try again");
      throw err;
    }
    ctx.message("42");
    ctx.delta("bye");
    return answer;
  },
  "result-that-cant-be-recorded": () => async (ctx) => {
    await ctx.step("read", () => "a\0b").catch(() => undefined);
    return await ctx.step("other", () => 1);
  },
  "retry-from-the-journal": ({ execution }) => async (ctx) => {
    await ctx.step("plan", () => 1);
    const [first, second] = [ctx.spawn("search", 1), ctx.spawn("search", 2)];
    const paid = ctx.callback("paid", { timeout: "1h" });
    const token = await paid.token();
    await ctx.step("order", () => token);
    await first.join();
    await ctx.step("buy", execution === 1 ? stock : () => 2);
    await second.join();
    return await paid.join();
  },
  "saga-cancelled": () => async (ctx) => await trip(ctx, () => ctx.signal("go", { timeout: "1h" })),
  "saga-kept": () => async (ctx) => {
    await trip(ctx, () => Promise.resolve());
    return await ctx.step("mail", () => true);
  },
  "saga-undone": () => async (ctx) => await trip(ctx, () => ctx.step("pay", stock)),
  select: () => async (ctx) => {
    const child = ctx.spawn("search", 1);
    const go = ctx.onSignal("go");
    const timer = ctx.after("1h");
    const first = await ctx.select(child, go, timer);
    return [first, await ctx.select(child, timer)];
  },
  "select-gives-back": () => async (ctx) => {
    await ctx.select(ctx.spawn("search", 1), ctx.onSignal("go"));
    return await waitFor(ctx);
  },
  "select-ok": () => async (ctx) => {
    const got = await ctx.selectOK(searches(ctx, 3));
    for (const f of got.remaining) await f.cancel();
    return [got.index, got.result];
  },
  "signal-early": () => late,
  "signal-late": () => late,
  "signal-timeout": () => late,
  steps: () => async (ctx) => {
    await ctx.step("plan", () => ({ days: 2, city: "Bern" }));
    await ctx.step("search", () => "one");
    const two = await ctx.step("search", () => "two");
    await ctx.step("nothing", () => null);
    return two;
  },
  "steps-about-values": () => async (ctx) => {
    let n = 0;
    for (const about of ["a", { b: 1.0, a: "\u2028" }, 9007199254740993n]) {
      const number = ++n;
      await ctx.step("look", () => number, { for: about });
    }
    await ctx.step("bytes", () => ({ raw: new Uint8Array([1, 2, 3]), text: "abcd" }));
    return "done";
  },
  "item-and-branch-wait-for-limits": () => async (ctx) => {
    await ctx.all({
      left: (c) => c.parallel("get", ["a", "b"], (item: string) => item, { limit: 1, limits: { name: "site" } }),
    });
    return await ctx.step("sum", () => 2);
  },
  "step-under-limits": () => limited,
  "step-waits-for-limits": () => limited,
  timers: () => async (ctx) => {
    await ctx.sleep("90s");
    await ctx.sleepUntil(new Date("2000-01-01T01:00:00Z"));
    const timer = ctx.after("1h");
    await ctx.select(timer, ctx.onSignal("go"));
    return await ctx.select(timer, ctx.onSignal("go"));
  },
  version: ({ build }) => async (ctx) => {
    if (build === 2 && ctx.version("two prompts", 1) === 1) await ctx.step("before", () => 0);
    await ctx.step("plan", () => 1);
    await waitFor(ctx);
    if (build === 2 && ctx.version("new prompt", 3) === 3) return await ctx.step("new", () => 3);
    return await ctx.step("old", () => 2);
  },
  withdraw: () => async (ctx) => {
    const paid: Future<Json> = ctx.callback("paid", { timeout: "1h" });
    await ctx.select(paid, ctx.onSignal("stop"));
    return await paid.withdraw();
  },
};
