// The SDK of Perdure for TypeScript.

export { version } from "./version.js";
export { begin, type AgentFunction, type AgentOptions } from "./agent.js";
export type { CommitBody } from "./batch.js";
export { Context, type Question, type SpawnOptions, type Verdict, type WaitOptions } from "./context.js";
export { AllTasksFailed, Cancelled, Defect, Failure, Stalled, StepError, TaskFailed, TaskTimedOut, WaitTimeout, permanent, type FailureOptions } from "./errors.js";
export { Future } from "./future.js";
export type { Settled } from "./joins.js";
export { canonical, canonicalText, digest, type Json, type JsonObject } from "./json.js";
export type { ItemOptions, ManyOptions } from "./many.js";
export type { LimitClosure, LimitTake, StepLimit, StepTaken } from "./limits.js";
export type { Duration } from "./names.js";
export { type JsonSchema, type Schema, type StandardSchema } from "./schema.js";
export { Lost, Refused, type CommitAnswer, type Grant, type Session, type ThreadMessage } from "./session.js";
export { StepContext, type Retry, type StepOptions } from "./steps.js";
export type { Jsonified } from "./value.js";

export { type Executed, type Middleware } from "./handlers.js";
export { type KindOptions, type TaskFunction } from "./kinds.js";
export { Problem, isProblem, type ProblemCode } from "./problems.js";
export { Task, later, type Later } from "./task.js";
export { Worker, type WorkerOptions } from "./worker.js";
export { checking } from "./check.js";
export { Client, idempotencyKey, type Approval, type Artifact, type ChatAnswer, type Group, type RunFilter, type StartOptions, type StartResult } from "./client.js";
export { type CallOptions, type ClientOptions, type Rate, type ScheduleOptions, type Thing } from "./lists.js";
export { Run, RunFailed, RunNotEnded, type RunFields, type State } from "./run.js";
export { StreamedText, type Event, type StreamOptions } from "./stream.js";
export { NotSigned, verifyWebhook, type VerifyOptions } from "./webhooks.js";
