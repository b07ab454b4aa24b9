// Time, as the calls of a server and the worker see it. Tests have a clock of their own.

import { setTimeout as delay } from "node:timers/promises";

/** A clock. */
export interface Clock {
  /** Milliseconds that only rise. They are the same in all threads of the process. */
  now(): number;
  /** Returns after so many milliseconds, or when the signal is aborted. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

/** The clock of the machine. */
export const clock: Clock = {
  now: () => Number(process.hrtime.bigint() / 1_000n) / 1000,
  sleep: (ms, signal) => delay(ms, undefined, signal ? { signal } : {}).then(noop, noop),
};

function noop(): void {}

/** Returns a pause around a length, so that many callers do not come at once. */
export function around(ms: number): number {
  return ms * (0.5 + Math.random());
}
