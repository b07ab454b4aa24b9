// The SDK of Perdure for TypeScript.

export { begin, type AgentFunction, type AgentOptions } from "./agent.js";
export type { CommitBody } from "./batch.js";
export { Context, type Question, type SpawnOptions, type Verdict, type WaitOptions } from "./context.js";
export { AllTasksFailed, Cancelled, Defect, Failure, Stalled, StepError, TaskFailed, TaskTimedOut, WaitTimeout, permanent, type FailureOptions } from "./errors.js";
export { Future } from "./future.js";
export type { Settled } from "./joins.js";
export { canonical, canonicalText, digest, type Json, type JsonObject } from "./json.js";
export type { ManyOptions } from "./many.js";
export type { Duration } from "./names.js";
export { type JsonSchema, type Schema, type StandardSchema } from "./schema.js";
export { Lost, Refused, type CommitAnswer, type Grant, type Session, type ThreadMessage } from "./session.js";
export { StepContext, type Retry, type StepOptions } from "./steps.js";
export type { Jsonified } from "./value.js";
