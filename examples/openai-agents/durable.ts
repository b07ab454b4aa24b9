// Makes the calls of the OpenAI Agents SDK (https://openai.github.io/openai-agents-js) durable: each call of the model
// is a step, and the session is the thread of the run.

import { Usage, type AgentInputItem, type Model, type ModelRequest, type ModelResponse } from "@openai/agents";
import type { ResponseStreamEvent, Session } from "@openai/agents";
import { Failure, type Context, type Retry, type StepContext } from "perdure";

const retries: Retry = { attempts: 5, first: "1s" };

/** Makes one call after the other. The SDK calls the tools of an answer at the same time, and a context does not. */
export function inOrder() {
  let last: Promise<unknown> = Promise.resolve();
  return <T>(call: () => Promise<T>): Promise<T> => {
    const next = last.then(call, call);
    last = next.catch(() => undefined);
    return next;
  };
}

/** A model whose answers are recorded, and whose text is streamed to those who watch. */
export class DurableModel implements Model {
  private readonly ctx: Context;
  private readonly model: Model;

  constructor(ctx: Context, model: Model) {
    this.ctx = ctx;
    this.model = model;
  }

  async getResponse(request: ModelRequest): Promise<ModelResponse> {
    const { id, usage, output } = await this.ask(request);
    return { responseId: id, usage: new Usage(usage), output };
  }

  async *getStreamedResponse(request: ModelRequest): AsyncIterable<ResponseStreamEvent> {
    yield { type: "response_done", response: await this.ask(request) };
  }

  private async ask(request: ModelRequest) {
    const ask = async (s: StepContext) => {
      for await (const event of this.model.getStreamedResponse({ ...request, signal: s.signal })) {
        if (event.type === "output_text_delta") s.delta(event.delta);
        if (event.type === "response_done") return plain(event.response);
      }
      throw new Failure("model_error", "the model has ended its answer in the middle");
    };
    const about = plain({ system: request.systemInstructions, input: request.input });
    type Answer = Awaited<ReturnType<typeof ask>>;
    return (await this.ctx.step("model", ask, { for: about, retries })) as Answer;
  }
}

/** A session on the thread of the run. Messages that others have written there are part of it. */
export class ThreadSession implements Session {
  private readonly ctx: Context;

  constructor(ctx: Context) {
    this.ctx = ctx;
  }

  async getSessionId() {
    return this.ctx.threadId as string;
  }

  async getItems(limit?: number) {
    const items: AgentInputItem[] = [];
    for (const { role, content } of await this.ctx.history()) {
      if (typeof content !== "string") items.push(content as AgentInputItem);
      else if (role !== "assistant") items.push({ role: role === "system" ? role : "user", content });
      else items.push({ role, status: "completed", content: [{ type: "output_text", text: content }] });
    }
    return limit === undefined ? items : items.slice(Math.max(0, items.length - limit));
  }

  async addItems(items: AgentInputItem[]) {
    for (const item of items) {
      const role = "role" in item ? item.role : item.type === "function_call_result" ? "tool" : "assistant";
      this.ctx.message(plain(item), { role });
    }
  }

  async popItem(): Promise<never> {
    throw new Error("a thread keeps its messages");
  }

  async clearSession(): Promise<never> {
    throw new Error("a thread keeps its messages: begin another one");
  }
}

/** Returns a value as JSON has it: without fields that are undefined. */
function plain<T>(v: T): T {
  return JSON.parse(JSON.stringify(v)) as T;
}
