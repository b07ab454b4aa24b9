// A worker for the relay of sdk/relay and for kill_test.go: agents in words, of which Go and Python have the same. RELAY
// has them by kind. With KILL, such as "before 3", it kills itself before or after its commit of that number.

import { appendFileSync } from "node:fs";
import { Worker } from "../src/index.js";
import { children, script } from "./scripts.js";

const { LOG = "", RELAY = "{}", HOLD, KILL = "", CHILDREN } = process.env;
const worker = new Worker({ slots: 64, agentSlots: 100, build: "typescript" });
const note = (run: string, what: string) => {
  appendFileSync(LOG, `${run} ${what}\n`);
  return what === "hold" && HOLD ? new Promise<never>(() => undefined) : undefined;
};

const kinds = JSON.parse(RELAY) as Record<string, string>;
for (const [kind, words] of Object.entries(kinds)) worker.agent(kind, script(words, note));
for (const kind of CHILDREN === "none" ? [] : children)
  worker.task(kind, (input: { Of: string; In: string }) => {
    note(input.Of, kind + input.In);
    return kind + input.In;
  });

const [when = "", at = "0"] = KILL.split(" ");
const { transport } = worker;
const once = transport.once.bind(transport);
let commits = 0;
transport.once = async (...call) => {
  const n = call[1].endsWith("/commit") ? ++commits : 0;
  if (n > 0) appendFileSync(LOG, `commit ${n}\n`);
  if (n > 0 && n === Number(at) && when === "before") process.kill(process.pid, "SIGKILL");
  const answer = await once(...call);
  if (n > 0 && n === Number(at)) process.kill(process.pid, "SIGKILL");
  return answer;
};
await worker.run();
