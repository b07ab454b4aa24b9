// An agent of the OpenAI Agents SDK that survives kill -9, and whose session is a thread of the server. An answer of
// the model that was paid for is never asked for again, and a tool is not called twice for one answer.
//
//   perdure mock-model &
//   cd examples/openai-agents && npm ci && PERDURE_URL=… PERDURE_KEY=… node agent.ts
//   perdure chat --kind assistant "How much disk space has alpha?"

import { Agent, OpenAIChatCompletionsModel, Runner, tool } from "@openai/agents";
import { appendFileSync } from "node:fs";
import OpenAI from "openai";
import { Worker, type Context } from "perdure";
import { z } from "zod";
import { DurableModel, ThreadSession, inOrder } from "./durable.ts";

const { MODEL_URL = "http://127.0.0.1:7374/v1", MODEL = "mock", MODEL_KEY = "none", TOOL_LOG } = process.env;
const openai = new OpenAI({ baseURL: MODEL_URL, apiKey: MODEL_KEY, maxRetries: 0 }); // the step tries again
const runner = new Runner({ tracingDisabled: true });

/** The tool. It has an effect here: a line of the file TOOL_LOG. */
function diskSpace(host: string): string {
  if (TOOL_LOG) appendFileSync(TOOL_LOG, `${host}\n`);
  return `${host} has 7 GB left`;
}

const worker = new Worker();

worker.agent(
  "assistant",
  async (ctx: Context) => {
    const next = inOrder();
    const agent = new Agent({
      name: "assistant",
      instructions: "Answer questions about hosts.",
      model: new DurableModel(ctx, new OpenAIChatCompletionsModel(openai, MODEL)),
      tools: [
        tool({
          name: "disk_space",
          description: "Says how much disk space a host has.",
          parameters: z.object({ host: z.string() }),
          errorFunction: null, // what the step throws is for the worker, and not for the model
          execute: (input) => next(() => ctx.step("tool", () => diskSpace(input.host), { for: input })),
        }),
      ],
    });
    const { finalOutput } = await runner.run(agent, [], { session: new ThreadSession(ctx), maxTurns: 20 });
    return finalOutput;
  },
  { timeout: "1h" },
);

await worker.run();
