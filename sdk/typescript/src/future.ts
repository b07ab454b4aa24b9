// A future, as an agent has it.

import type { Branch } from "./branch.js";
import type { Context, Verdict } from "./context.js";
import { Failure } from "./errors.js";
import type { Execution } from "./execution.js";
import { ChildSource, QuestionSource, withdrawal, type Source } from "./futures.js";
import { joinOne, resultOf } from "./joins.js";
import { isObject, type Json } from "./json.js";
import { read } from "./schema.js";

/** The results of several futures. */
export type Results<F extends readonly Future<unknown>[]> = { -readonly [I in keyof F]: F[I] extends Future<infer T> ? T : never };

/** Something that an agent can wait for. */
export class Future<T> {
  /** @internal */
  constructor(
    private readonly x: Execution,
    private readonly b: Branch,
    /** @internal */
    readonly source: Source,
    _context: Context,
  ) {}

  /** The key of a child, or the id of the wait. */
  get key(): string {
    return this.source.childKey() || this.source.waitId();
  }

  /** The run of a child, once it is known. */
  get id(): string | undefined {
    const key = this.source.childKey();
    return this.x.children.get(key) ?? this.x.facts.items.find((i) => i.type === "child" && i.name === key)?.run;
  }

  /** Waits for it. */
  join(): Promise<T> {
    return this.x.call(this.b, `the wait for ${this.source.text()}`, async () => this.verdict(await joinOne(this.x, this.b, this.source)));
  }

  /** Tells whether it has ended. */
  hasEnded(): boolean {
    return this.source.ended("join:") !== undefined;
  }

  /** Returns the result of a future that has ended. It never waits. */
  async result(): Promise<T> {
    this.x.guard(this.b, `the result of ${this.source.text()}`);
    return await this.value();
  }

  /** @internal */
  async value(): Promise<T> {
    const ending = this.source.ended("join:");
    if (!ending) throw this.x.misuse(`the result of ${this.source.text()}, which has not ended; wait for it`);
    return this.verdict(await resultOf(this.x, this.source, ending));
  }

  private verdict(v: unknown): T {
    if (!(this.source instanceof QuestionSource) || this.source.sort !== "approval") return v as T;
    const data = (isObject(v) ? v : {}) as { decision?: string; comment?: string; answer?: Json; by?: string; at?: string; approval_id?: string };
    const timedOut = this.source.fact()?.type === "timeout";
    const out: Verdict = { approved: data.decision === "approve", timedOut };
    if (data.comment !== undefined) out.comment = data.comment;
    if (data.answer !== undefined) out.answer = data.answer;
    if (data.by !== undefined) out.by = data.by;
    if (data.at !== undefined) out.at = new Date(data.at);
    if (data.approval_id !== undefined) out.approvalId = data.approval_id;
    return out as T;
  }

  /** Asks a child to stop, or withdraws a question. */
  async cancel(): Promise<void> {
    if (!(this.source instanceof ChildSource)) return void (await this.withdraw());
    const { x, b } = this;
    x.guard(b, `the cancel of ${this.source.text()}`);
    const { key } = this.source;
    if (key === "" || x.facts.cancelled.has(key) || b.undoing() || x.facts.items.some((i) => i.type === "child" && i.name === key)) return;
    x.facts.cancelled.add(key);
    x.batch.frame.cancelled.push(key);
    x.batch.cancel.push(key);
  }

  /** Withdraws a question. Returns whether it was in time: otherwise the answer counts. */
  async withdraw(): Promise<boolean> {
    const { x, b, source } = this;
    return await x.call(b, `the withdrawal of ${source.text()}`, async () => {
      if (!(source instanceof QuestionSource)) throw x.misuse(`the withdrawal of ${source.text()}, which is no question`);
      const key = withdrawal(source.id);
      const recorded = x.facts.entries.get(key);
      if (recorded !== undefined) return recorded === true;
      if (x.cancelled || b.undoing()) return false;
      let inTime = source.fact() === undefined;
      if (inTime) {
        await x.flush();
        x.batch.close.push(source.id);
        await x.flush();
        x.receive(await x.session.inbox(x.seen()));
        inTime = source.fact() === undefined;
      }
      x.facts.entries.set(key, inTime);
      x.batch.entries.push({ key, value: inTime });
      return inTime;
    });
  }

  /** What a child is doing: its state, activity and progress. Call it in a step if the agent decides by it. */
  async peek(): Promise<Json> {
    if (!(this.source instanceof ChildSource)) throw this.x.misuse(`peek at ${this.source.text()}, which is no child`);
    if (!this.x.children.has(this.source.key)) await this.x.flush();
    return await this.x.session.activity(this.id ?? this.source.key);
  }

  /** The late result of a child that has run out of its time, if somebody has adopted it. */
  async late(): Promise<{ result: T } | undefined> {
    const { x, b, source } = this;
    x.guard(b, `the late result of ${source.text()}`);
    x.goOn(b);
    const key = `_late:${b.key("late", source.childKey())}`;
    const recorded = x.facts.entries.get(key) as { seq?: number; data?: Json } | undefined;
    const item = x.loose.find((i) => i.type === "late_result" && i.name === source.childKey());
    if (recorded === undefined) {
      if (item) {
        x.loose.splice(x.loose.indexOf(item), 1);
        x.batch.ack.push(item.seq);
      }
      const value: Json = item ? { seq: item.seq, data: item.data ?? null } : {};
      x.batch.entries.push({ key, value });
      return item ? { result: (await read(source.schema, item.data ?? null)) as T } : undefined;
    }
    return recorded.seq === undefined ? undefined : { result: (await read(source.schema, recorded.data ?? null)) as T };
  }

  /** The token of a callback, with which somebody answers it. */
  async token(): Promise<string> {
    const { x, b, source } = this;
    return await x.call(b, `the token of ${source.text()}`, async () => {
      if (!(source instanceof QuestionSource) || source.sort !== "callback") throw x.misuse(`the token of ${source.text()}, which is no callback`);
      const first = x.grant.first_epoch;
      const key = `_token:${first === undefined ? "" : `${first}:`}${source.id}`;
      const recorded = x.facts.entries.get(key);
      if (typeof recorded === "string") return recorded;
      const before = x.facts.entries.get(`_token:${source.id}`);
      if (source.fact() && typeof before === "string") return before;
      if (!x.facts.isRetry || x.cancelled) x.begin(b, `${key}: the journal does not have the token of this callback`);
      await x.flush();
      const token = x.tokens.get(source.id);
      if (token === undefined) throw new Failure("invalid", `${source.text()} has no token: it has been answered`, { permanent: true });
      x.facts.entries.set(key, token);
      x.batch.entries.push({ key, value: token });
      return token;
    });
  }
}
