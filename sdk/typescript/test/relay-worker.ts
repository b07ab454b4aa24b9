// A worker for the relay of sdk/relay: agents in words, of which Go and Python have the same. RELAY has them by kind.

import { appendFileSync } from "node:fs";
import { Worker } from "../src/index.js";
import { children, script } from "./scripts.js";

const { LOG = "", RELAY = "{}", HOLD } = process.env;
const worker = new Worker({ slots: 64, agentSlots: 100, build: "typescript" });
const note = (run: string, what: string) => {
  appendFileSync(LOG, `${run} ${what}\n`);
  return what === "hold" && HOLD ? new Promise<never>(() => undefined) : undefined;
};

const kinds = JSON.parse(RELAY) as Record<string, string>;
for (const [kind, words] of Object.entries(kinds)) worker.agent(kind, script(words, note));
for (const kind of children)
  worker.task(kind, (input: { Of: string; In: string }) => {
    note(input.Of, kind + input.In);
    return kind + input.In;
  });
await worker.run();
