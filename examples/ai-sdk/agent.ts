// An agent of the AI SDK that survives kill -9. An answer of the model that was paid for is never asked for again, and a
// tool is not called twice for one answer.
//
//   perdure mock-model &
//   cd examples/ai-sdk && npm ci && MODEL_URL=http://127.0.0.1:7374/v1 PERDURE_URL=… PERDURE_KEY=… node agent.ts
//   perdure run assistant --input '"How much disk space has alpha?"'

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { isStepCount, jsonSchema, streamText, tool, wrapLanguageModel } from "ai";
import { appendFileSync } from "node:fs";
import { Worker, type Context } from "perdure";
import { durable, inOrder } from "./durable.ts";

const { MODEL_URL = "http://127.0.0.1:7374/v1", MODEL = "mock", MODEL_KEY = "none", TOOL_LOG } = process.env;
const provider = createOpenAICompatible({ name: "model", baseURL: MODEL_URL, apiKey: MODEL_KEY });

/** The tool. It has an effect here: a line of the file TOOL_LOG. */
function diskSpace(host: string): string {
  if (TOOL_LOG) appendFileSync(TOOL_LOG, `${host}\n`);
  return `${host} has 7 GB left`;
}

const worker = new Worker();

worker.agent(
  "assistant",
  async (ctx: Context, question: string) => {
    const next = inOrder();
    let failure: unknown;
    const answer = streamText({
      model: wrapLanguageModel({ model: provider(MODEL), middleware: durable(ctx) }),
      prompt: question,
      maxRetries: 0, // the step tries again
      stopWhen: isStepCount(20),
      tools: {
        disk_space: tool({
          description: "Says how much disk space a host has.",
          inputSchema: jsonSchema<{ host: string }>({
            type: "object",
            properties: { host: { type: "string" } },
            required: ["host"],
          }),
          execute: (input) => next(() => ctx.step("tool", () => diskSpace(input.host), { for: input })),
        }),
      },
      onError: ({ error }) => {
        failure ??= error;
      },
    });
    try {
      return await answer.text;
    } catch (err) {
      throw failure ?? err;
    }
  },
  { timeout: "1h", input: { type: "string" } },
);

await worker.run();
