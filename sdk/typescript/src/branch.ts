// A branch of an agent: the agent itself, or a function that ctx.all has begun.

import type { Entry, Expected } from "./journal.js";

/** A wait of a branch that is not over. */
export interface Parked {
  /** Looks whether the wait is over now, and ends it then. */
  look(): boolean;
  /** Ends the wait with an error. */
  fail(err: Error): void;
  /** Opens the waits at the server, and returns their ids. */
  open(): string[];
}

/** A saga whose body is executed. */
export interface SagaScope {
  name: string;
  /** Nothing new begins: the steps are looked for that have to be undone. */
  undoing: boolean;
  done: { key: string; undo: () => Promise<unknown> }[];
}

/** The state of a branch. */
export class Branch {
  /** How often each name of each sort was used. */
  private readonly uses = new Map<string, number>();
  /** The call that has not returned. */
  busy: string | undefined;
  state: "running" | "parked" | "joining" | "done" = "running";
  parked: Parked | undefined;
  readonly branches: Branch[] = [];
  readonly sagas: SagaScope[] = [];
  /** Errors of steps that become facts when the code goes on. */
  pending: { entry: Entry; became: () => void }[] = [];
  /** The place at which reports are made. */
  point: string;
  /** The newest entry that a call has asked for. */
  lastAsked = -1;

  constructor(
    /** The keys of a branch begin with it. It is empty for the agent itself. */
    readonly prefix: string,
    readonly parent: Branch | undefined,
    /** What is recorded and was not asked for. */
    readonly expected: Map<string, Expected>,
    /** The saga of the branch that has begun this one. */
    readonly outer: SagaScope | undefined,
  ) {
    this.point = prefix === "" ? "start" : `start ${prefix}`;
  }

  /** Returns the key of the next use of a name. */
  key(sort: string, name: string): string {
    const n = (this.uses.get(`${sort} ${name}`) ?? 0) + 1;
    this.uses.set(`${sort} ${name}`, n);
    return `${this.prefix}${name}#${n}`;
  }

  /** The innermost saga, also one around the branch. */
  saga(): SagaScope | undefined {
    return this.sagas.at(-1) ?? this.outer;
  }

  /** The outermost saga, which keeps or undoes all steps. */
  outermost(): SagaScope | undefined {
    return this.outer ?? this.sagas[0];
  }

  /** Tells whether a saga around this place is being undone. */
  undoing(): boolean {
    return this.sagas.some((s) => s.undoing) || this.outer?.undoing === true;
  }

  /** Calls f for this branch and those within, in the order in which they were begun. */
  each(f: (b: Branch) => void): void {
    f(this);
    for (const b of this.branches) b.each(f);
  }
}
