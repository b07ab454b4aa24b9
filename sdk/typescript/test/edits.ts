// Executes the edits of docs/agents.md, for edits_test.go. Reads them as JSON, and writes what has become of each.
//
// A run waits for "go on" under the words before the edit, and goes on under those after it. Its server is in memory:
// children end in the order in which they were begun, timers fire, and nobody answers questions.

import { readFileSync } from "node:fs";
import type { AgentFunction, AgentOptions } from "../src/agent.js";
import type { Json } from "../src/json.js";
import type { JsonSchema } from "../src/schema.js";
import { script, types } from "./scripts.js";
import { Trial, word } from "./trial.js";

/** A case of internal/testkit/agentcases. */
interface Case {
  Before: string;
  After: string;
  Input: string;
  Reads: string;
  ReadsAfter: string;
  Signals: Record<string, string> | null;
}

/** Begins a run, for which signals are there already. */
function begin(c: Case, words: string, reads: string): Trial {
  const trial = new Trial(c.Input === "" ? undefined : (JSON.parse(c.Input) as Json));
  const names = [...`${c.Before} ${c.After}`.matchAll(/(?:^| )signal:([a-z]+)/g)].map((m) => m[1] as string);
  const dataOf = (name: string) => JSON.parse(c.Signals?.[name] ?? "1") as Json;
  for (const name of new Set(names)) trial.send("signal", { name, data: dataOf(name) });
  use(trial, words, reads);
  return trial;
}

/** Goes on with another build. */
function use(trial: Trial, words: string, reads: string): void {
  const options: AgentOptions = reads === "" ? {} : { input: types[reads] as JsonSchema };
  if (reads === "moved ignores") options.ignores = ["City"];
  trial.use(script(words, (_, what) => trial.effects.push(what), reads !== "") as AgentFunction, options);
}

async function judge(c: Case): Promise<object> {
  const trial = begin(c, c.Before, c.Reads);
  const first = word(await trial.go());
  const [effects, entries] = [trial.effects.length, trial.journal.length];
  use(trial, c.After, c.ReadsAfter);
  trial.goOn();
  const past = await trial.go();
  const did = [...trial.effects];
  const fresh = begin(c, c.After, c.ReadsAfter);
  fresh.goOn();
  const out = { First: first, Past: word(past), Fresh: word(await fresh.go()), Effects: did, Said: saidBy(trial) };
  if (past.defect !== true) return out;
  // The release before continues it as if nothing had been.
  const written = trial.journal.slice(entries).map((e) => e.key).filter((k) => !k.startsWith("_frame:"));
  use(trial, c.Before, c.Reads);
  const old = begin(c, c.Before, c.Reads);
  old.goOn();
  const back = [word(await trial.go()), word(await old.go()), trial.effects, old.effects];
  return { ...out, Back: [written, did.slice(effects), ...back] };
}

function saidBy({ said }: Trial): string[] {
  return [said.message.join(" "), said.line.join(" "), said.delta.trim()].filter((s) => s !== "");
}

const results: object[] = [];
for (const c of JSON.parse(readFileSync(0, "utf8")) as Case[])
  results.push(await judge(c).catch((err: unknown) => ({ Error: String((err as Error).stack ?? err) })));
process.stdout.write(JSON.stringify(results));
