// Agents in words, as internal/testkit/agentcases/script.go describes them. Go and Python execute the same words.

import type { Context } from "../src/context.js";
import { Failure, WaitTimeout } from "../src/errors.js";
import type { Future } from "../src/future.js";
import type { Json } from "../src/json.js";
import type { JsonSchema } from "../src/schema.js";
import type { StepContext, StepOptions } from "../src/steps.js";

/** Is called with what a step does. */
export type Note = (run: string, what: string) => unknown;

const text = { type: "string" };
const int = { type: "integer" };
const object = (fields: Record<string, unknown>): JsonSchema => ({ type: "object", properties: fields });
const priced = object({ Amount: int, Tax: int });
const pair = { Amount: 7, Tax: 1 };
const anything: JsonSchema = {};

/** The types of inputs and of what comes from outside, by their names in the words. */
export const types: Record<string, JsonSchema> = {
  "": anything,
  order: object({ City: text, Street: text }),
  moved: object({ Town: text, Street: text }),
  "moved ignores": object({ Town: text, Street: text }),
  longer: object({ City: text, Street: text, Note: text }),
  retyped: object({ City: int, Street: int }),
  text,
  map: { type: "object", additionalProperties: text },
  int,
  string: text,
  lost: object({ Amount: int }),
  priced,
};

/** What the step "measure" gives, and the type of it. */
const measures: Record<string, [JsonSchema, unknown]> = {
  priced: [priced, pair],
  renamed: [object({ Sum: int, Tax: int }), { Sum: 7, Tax: 1 }],
  lost: [object({ Amount: int }), { Amount: 7 }],
  pointer: [{ ...priced, type: ["object", "null"] }, pair],
  gained: [object({ Amount: int, Tax: int, Currency: text }), { ...pair, Currency: "" }],
  string: [text, "abcd"],
  int: [int, 7],
  float: [{ type: "number" }, 7.0],
  bytes: [{ type: "string", contentEncoding: "base64" }, new Uint8Array([104, 105])],
  ints: [{ type: "array", items: int }, [7, 8, 9]],
  array: [{ type: "array", items: int, minItems: 2, maxItems: 2 }, [7, 8]],
  map: [{ type: "object", additionalProperties: int }, pair],
  any: [anything, pair],
  raw: [anything, pair],
  null: [{ ...priced, type: ["object", "null"] }, null],
};

const ends = new Set([")", "]", ";", "/"]);

/** Returns an agent that executes words. If it tells, its result begins with its input. */
export function script(words: string, note: Note, tells = false) {
  return async (ctx: Context, input: Json): Promise<string> => {
    const s = new Script(ctx, words.split(" "), note);
    if (tells) s.out.push(JSON.stringify(input));
    await s.play();
    return s.out.join(" ");
  };
}

/** The tasks that are children, and what each returns. */
export const children = ["one", "two", "three"];

class Script {
  readonly out: string[] = [];
  private given: Future<string>[] = [];
  private readonly names = new Map<unknown, string>();
  private readonly uses = new Map<string, number>();

  constructor(
    private ctx: Context,
    private readonly rest: string[],
    private readonly note: Note,
  ) {}

  async play(): Promise<void> {
    for (let word = this.rest.shift(); word !== undefined; word = this.rest.shift()) {
      if (ends.has(word)) return;
      await this.word(word);
    }
  }

  /** Leaves out the words of a block. */
  private leaveOut(): void {
    let depth = 0;
    for (let word = this.rest.shift(); word !== undefined; word = this.rest.shift()) {
      if ("([?".includes(word[0] as string)) depth++;
      else if (word !== "/" && ends.has(word) && --depth < 0) return;
      else if (word === "/" && depth === 0) return;
    }
  }

  private say(v: unknown): void {
    this.out.push(typeof v === "object" ? JSON.stringify(v) : String(v));
  }

  private did<T>(what: string, result: T): () => Promise<T> {
    const run = this.ctx.runId;
    return async () => {
      await this.note(run, what);
      return result;
    };
  }

  private async word(word: string): Promise<void> {
    const { ctx } = this;
    const [sort = "", name = "", x = "", as = ""] = word.split(":");
    const kid = (item: string) => ({ Of: ctx.runId, In: item });
    const timeout = "1h";
    switch (sort) {
      case "wait":
        return void (await ctx.signal("go on", { timeout }));
      case "begin":
        return void (await ctx.signal("begin", { timeout }));
      case "signal": {
        const v = await ctx.signal(name, { timeout, schema: types[x] as JsonSchema });
        return this.say(`${name}=${typeof v === "object" ? JSON.stringify(v) : String(v)}`);
      }
      case "sleep":
        return await ctx.sleep(name);
      case "approve": {
        const { approved } = await ctx.approve("approve", { title: "?", action: name }, { timeout: -1 });
        return this.say(`${name}=${approved}`);
      }
      case "callback":
        try {
          return void (await ctx.callback(name, { timeout: -1, schema: int }).join());
        } catch (err) {
          if (err instanceof WaitTimeout) return this.say(`${name} is late`);
          throw err;
        }
      case "child": {
        const options = as === "timeout" ? { timeout, schema: text } : { schema: types[as || "string"] as JsonSchema };
        return this.say(await ctx.spawn(name, kid(x), options).join());
      }
      case "spawn":
        return void this.given.push(ctx.spawn<string>(name, kid(x), { schema: text }));
      case "all":
        return this.say((await ctx.joinAll(this.given)).join(" "));
      case "settled":
        return this.say((await ctx.joinAllSettled(this.given)).results.join(" "));
      case "select":
        return this.say(await (this.given[await ctx.select(...this.given)] as Future<string>).result());
      case "selectok":
        return this.say((await ctx.selectOK(this.given)).result);
      case "race":
        return this.say(await (this.given[(await ctx.race(timeout, this.given)).index] as Future<string>).result());
      case "first":
        return this.say(`the first ${(await ctx.firstOK(Number(name), this.given)).results.length}`);
      case "map":
        return this.say((await ctx.map(name, x.split(",").map(kid), { child: { schema: text } })).results.join(" "));
      case "par": {
        const one = async (item: string) => await this.did(`${name} ${item}`, item)();
        return this.say((await ctx.parallel(name, x.split(","), one, { limit: 1 })).results.join(" "));
      }
      case "uuid":
        return this.named(name, ctx.uuid(name));
      case "now":
        return this.named(name, `${name}${ctx.now(name).getTime()}`);
      case "history":
        return this.say(`${(await ctx.history()).length} messages`);
      case "newest": {
        let n = 0;
        for await (const _ of ctx.newestMessages()) n++;
        return this.say(`${n} newest`);
      }
      case "say":
        ctx.message(name);
        ctx.emit("x:line", name);
        return ctx.delta(`${name} `);
      case "emit":
        return ctx.emit("x:line", name);
      case "delta":
        return ctx.delta(`${name} `);
      case "removed":
        return ctx.removed(name.replace("#", ":"));
      case "fail":
        throw new Error("a bug");
      case "measure": {
        const [schema, v] = measures[name] as [JsonSchema, unknown];
        const got: unknown = await ctx.step("measure", this.did("measure", v), { schema });
        return this.out.push(JSON.stringify(got instanceof Uint8Array ? [...got] : got)), undefined;
      }
    }
    if ("([?".includes(word[0] as string)) return await this.block(word[0] as string, word.slice(1));
    await this.step(word, sort, name);
  }

  /** Executes the words that have others in them. */
  private async block(sort: string, name: string): Promise<void> {
    const { ctx } = this;
    if (sort === "(") return await ctx.saga(name, () => this.play());
    if (sort === "[") {
      const inner = async (c: Context) => {
        this.ctx = c;
        await this.play();
      };
      await ctx.all({ [name]: inner }).finally(() => (this.ctx = ctx));
      return;
    }
    if (ctx.version(name, 1) < 1) {
      this.leaveOut();
      return await this.play();
    }
    await this.play();
    this.leaveOut();
  }

  private async step(word: string, sort: string, about: string): Promise<void> {
    const { ctx } = this;
    if (sort === "try") {
      const failing = async () => {
        await this.note(ctx.runId, about);
        throw new Failure("failed", `no ${about}`, { permanent: true });
      };
      return await ctx.step(about, failing).catch((err: unknown) => {
        if (!(err instanceof Failure)) throw err;
        this.say(err.message);
      });
    }
    let name = word;
    let options: StepOptions<string> = {};
    if (sort === "about") [name, options] = ["paragraph", { for: about }];
    else if (sort === "paragraph") name = sort;
    else if (word.endsWith("+")) {
      const undo = (of: string, _: StepContext) => this.note(ctx.runId, `undo ${of}`);
      [name, options] = [word.slice(0, -1), { undo }];
    } else if (word.endsWith("~")) [name, options] = [word.slice(0, -1), { timeout: "1m", retries: 4 }];
    else if (word.endsWith("%")) [name, options] = [word.slice(0, -1), { limit: { name: "narrow" } }];
    const did = `${name} ${about}`.trim();
    const got = await ctx.step(name, this.did(did, did), { ...options, schema: text });
    this.say(about ? `${about}=${got}` : got);
  }

  /** Says a time or an id by the name under which it came first, with a number. */
  private named(name: string, value: unknown): void {
    if (!this.names.has(value)) {
      this.uses.set(name, (this.uses.get(name) ?? 0) + 1);
      this.names.set(value, `${name}${this.uses.get(name)}`);
    }
    this.say(`${name}=${this.names.get(value)}`);
  }
}
