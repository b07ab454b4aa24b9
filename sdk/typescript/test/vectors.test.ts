// The vectors of testdata/journal that are no stories.

import assert from "node:assert/strict";
import { test } from "node:test";
import { begin } from "../src/agent.js";
import { canonicalText, sha } from "../src/json.js";
import type { Context } from "../src/context.js";
import { load, StorySession } from "./support.js";

test("canonical.json", () => {
  for (const row of load<{ text: string; canonical?: string; digest?: string; refused?: string }[]>("canonical.json")) {
    if (row.canonical === undefined) {
      assert.throws(() => canonicalText(row.text), SyntaxError, `text ${row.text}`);
      continue;
    }
    assert.equal(canonicalText(row.text), row.canonical, `text ${row.text}`);
    assert.equal(sha(row.canonical), row.digest, `text ${row.text}`);
  }
});

interface KeyRow {
  calls: [string, string, string?][];
  branches?: string[];
  refused?: string;
}

/** Makes one call, and returns the key or the id that it has. */
async function call(c: Context, sort: string, name: string, keys: string[]): Promise<void> {
  switch (sort) {
    case "step":
      await c.step(name, (s) => (keys.push(s.key), null));
      return;
    case "child": {
      const child = c.spawn(name);
      if (child.key === "") throw (await child.result().catch((e: unknown) => e)) as Error;
      keys.push(child.key);
      return;
    }
    case "map":
      await c.map(name, [1]);
      return;
    case "parallel":
      await c.parallel(name, [1], (_, s) => (keys.push(s.key), null));
      return;
    case "saga":
      return await c.saga(name, async () => undefined);
    case "signal":
      return void keys.push(c.onSignal(name).key);
    case "approval":
      return void keys.push(c.onApproval(name, { title: "?", action: 1 }).key);
    case "callback":
      return void keys.push(c.callback(name).key);
    case "time":
      return void c.now(name);
    case "uuid":
      return void c.uuid(name);
    default:
      throw new Error(`sort ${sort}`);
  }
}

test("keys.json", async () => {
  for (const [n, row] of load<KeyRow[]>("keys.json").entries()) {
    const session = new StorySession();
    session.completeChildren = true;
    const seen = new Set<string>();
    const agent = async (ctx: Context) => {
      const calls = async (c: Context) => {
        for (const [sort, name] of row.calls) {
          const keys: string[] = [];
          await call(c, sort, name, keys);
          for (const k of keys) seen.add(`${sort} ${k}`);
        }
        await c.step("end", () => null);
      };
      const within = async (c: Context, names: string[]): Promise<void> => {
        const [first, ...rest] = names;
        if (first === undefined) return await calls(c);
        await c.all({ [first]: (inner) => within(inner, rest) });
      };
      await within(ctx, row.branches ?? []);
    };
    const { execution } = await session.execute(agent, {}, { epoch: 10, journal: [], inbox: [] });
    for (const body of session.sent) {
      for (const e of body.journal ?? []) {
        if (e.key.startsWith("_saga:")) seen.add(`saga ${e.key}`);
        const frame = e.value as { mapped?: object; now?: object; uuid?: object };
        for (const k of Object.keys(frame.mapped ?? {})) seen.add(`map ${k}`);
        for (const k of Object.keys(frame.now ?? {})) seen.add(`time ${k}`);
        for (const k of Object.keys(frame.uuid ?? {})) seen.add(`uuid ${k}`);
      }
    }
    const wanted = row.calls.filter((c) => c[2] !== undefined).map(([sort, , key]) => `${sort} ${key}`);
    for (const w of wanted) assert.ok(seen.has(w), `row ${n}: ${w} is missing among ${[...seen].join(", ")}`);
    const { code, defect } = session.failure();
    if (row.refused === undefined) assert.equal(code, undefined, `row ${n}: ${execution.defect?.message ?? ""}`);
    else if (row.refused === "error") assert.deepEqual({ code, defect }, { code: "invalid", defect: false }, `row ${n}`);
    else assert.deepEqual({ code, defect }, { code: row.refused, defect: true }, `row ${n}`);
  }
});

test("a journal of a later version holds the run", async () => {
  const session = new StorySession();
  const journal = [{ key: "_frame:1.1", value: { v: 2 } }];
  assert.throws(() => begin(async () => 1, {}, session.grant({ epoch: 2, journal, inbox: [] }), session), /version 2/);
});
