// Makes the calls of the AI SDK (https://ai-sdk.dev) durable: each call of the model is a step, and so is each tool.

import type { LanguageModelV4Middleware, LanguageModelV4StreamPart } from "@ai-sdk/provider";
import type { Context, Retry, StepContext } from "perdure";

const retries: Retry = { attempts: 5, first: "1s" };

/** Makes one call after the other. The AI SDK calls the tools of an answer at the same time, and a context does not. */
export function inOrder() {
  let last: Promise<unknown> = Promise.resolve();
  return <T>(call: () => Promise<T>): Promise<T> => {
    const next = last.then(call, call);
    last = next.catch(() => undefined);
    return next;
  };
}

/** A middleware for a model: what the model has answered is recorded, and its text is streamed to those who watch. */
export function durable(ctx: Context): LanguageModelV4Middleware {
  return {
    specificationVersion: "v4",
    async wrapGenerate({ doGenerate, params }) {
      const ask = async () => {
        const { content, finishReason, usage } = await doGenerate();
        return plain({ content, finishReason, usage, warnings: [] });
      };
      return (await ctx.step("model", ask, { for: plain(params.prompt), retries })) as never;
    },
    async wrapStream({ doStream, params }) {
      const ask = async (s: StepContext) => {
        const parts: LanguageModelV4StreamPart[] = [];
        for await (const part of (await doStream()).stream) {
          if (part.type === "error") throw part.error;
          if (part.type === "text-delta") s.delta(part.delta);
          if (part.type !== "response-metadata" && part.type !== "raw") parts.push(part);
        }
        return plain(parts);
      };
      const parts = (await ctx.step("model", ask, { for: plain(params.prompt), retries })) as LanguageModelV4StreamPart[];
      const stream = new ReadableStream<LanguageModelV4StreamPart>({
        start(to) {
          for (const part of parts) to.enqueue(part);
          to.close();
        },
      });
      return { stream };
    },
  };
}

/** Returns a value as JSON has it: without fields that are undefined. */
function plain<T>(v: T): T {
  return JSON.parse(JSON.stringify(v)) as T;
}
