// Errors that agents, tasks and callers meet. Each has a stable code to act on.

/** Options of an error. */
export interface FailureOptions {
  /** No further attempt is made. */
  permanent?: boolean;
  cause?: unknown;
}

/** An error with a code. Thrown by a task or a step it decides what becomes of the run. */
export class Failure extends Error {
  readonly code: string;
  readonly permanent: boolean;
  constructor(code: string, message: string, options: FailureOptions = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = new.target.name;
    this.code = code;
    this.permanent = options.permanent ?? false;
  }
}

/** Makes an error permanent: the run is not tried again because of it. */
export function permanent(err: unknown): Failure {
  const { code, message } = describe(err);
  return new Failure(code, message, { permanent: true, cause: err });
}

/** The error of a step, as the journal has it. */
export class StepError extends Failure {
  constructor(
    code: string,
    message: string,
    /** The key of the step. */
    readonly key: string,
    options: FailureOptions = {},
  ) {
    super(code, message, options);
  }
}

/** The run was asked to stop. No step, child or wait is begun any more. */
export class Cancelled extends Failure {
  constructor(message = "the run was asked to stop") {
    super("cancelled", message, { permanent: true });
  }
}

/** Nothing came in time. */
export class WaitTimeout extends Failure {
  constructor(message = "nothing came in time") {
    super("wait_timeout", message, { permanent: true });
  }
}

/** A child has failed. */
export class TaskFailed extends Failure {
  constructor(
    readonly taskId: string,
    readonly kind: string,
    /** How it has ended: failed, timeout or cancelled. */
    readonly outcome: string,
    /** The child's own failure. */
    readonly failure: { code: string; message: string },
    code = "task_failed",
    message = `task ${taskId} (${kind}) is ${outcome}: ${failure.code}: ${failure.message}`,
  ) {
    super(code, message, { permanent: true });
  }
}

/** A child has run out of its time. */
export class TaskTimedOut extends TaskFailed {
  constructor(taskId: string, kind: string, failure: { code: string; message: string }) {
    super(taskId, kind, "timeout", failure, "task_timed_out", `task ${taskId} (${kind}) has timed out: ${failure.message}`);
  }
}

/** A child looks stuck. */
export class Stalled extends Failure {
  constructor(
    readonly taskId: string,
    readonly kind: string,
  ) {
    super("task_stalled", `task ${taskId} (${kind}) looks stuck`, { permanent: true });
  }
}

/** None of several has completed, or too few. */
export class AllTasksFailed extends Failure {
  constructor(readonly errors: Error[]) {
    super("all_tasks_failed", [`all ${errors.length} tasks failed: ${errors[0]?.message ?? ""}`, ...errors.slice(1).map((e) => e.message)].join("\n"), {
      permanent: true,
    });
  }
}

/** A defect of the code: the run is held until a release fits. Its code is nondeterminism, agent_misuse or panic. */
export class Defect extends Failure {}

/** Tells whether a text is a code that an error of a run may have. */
export function isCode(code: unknown): code is string {
  return typeof code === "string" && /^[a-z][a-z0-9_]{0,63}$/.test(code);
}

/** Returns the code and the text of anything that was thrown. */
export function describe(err: unknown): { code: string; message: string } {
  for (let e: unknown = err, n = 0; e instanceof Error && n < 16; e = e.cause, n++) {
    const code = (e as { code?: unknown }).code;
    if (isCode(code)) return { code, message: textOf(err) };
  }
  return { code: "failed", message: textOf(err) };
}

function textOf(err: unknown): string {
  const text = err instanceof Error ? err.message || err.name : String(err);
  return clean(text).slice(0, 4000);
}

/** Removes what a text of the server can't have: NUL and halves of surrogate pairs. */
export function clean(text: string): string {
  return text.replaceAll("\0", "\ufffd").replace(/[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]/g, (x) => (x.length === 2 ? x : "\ufffd"));
}

/** Finds an error of a class in a chain of causes. */
export function findCause<E extends Error>(err: unknown, type: abstract new (...args: never[]) => E): E | undefined {
  for (let e: unknown = err, n = 0; e instanceof Error && n < 16; e = e.cause, n++) if (e instanceof type) return e;
  return undefined;
}

/** Tells whether an error, or one that caused it, is permanent. */
export function isPermanent(err: unknown): boolean {
  for (let e: unknown = err, n = 0; e instanceof Error && n < 16; e = e.cause, n++) {
    if ((e as { permanent?: unknown }).permanent === true) return true;
  }
  return false;
}

/** Tells whether an error of the agent's own code is a defect of it. */
export function isBug(err: unknown): boolean {
  return err instanceof TypeError || err instanceof ReferenceError || err instanceof RangeError || err instanceof SyntaxError;
}

/** Says which bug it is, and where. */
export function bugText(err: unknown): string {
  const { name, message, stack } = err as Error;
  return `${name}: ${message} ${(stack ?? "").split("\n")[1]?.trim() ?? ""}`.trim();
}
