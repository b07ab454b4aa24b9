// Refusals of the server. The table of codes is made from Go's api.Codes by
// "go test ./sdk/typescript -run Codes -update".

import type { IncomingHttpHeaders } from "node:http";
import { clean } from "./errors.js";
import { isObject, parse } from "./json.js";

// begin of codes
/** The codes of refusals, with their status and what they say. */
export const codes = {
  invalid: { status: 400, title: "The request is malformed" },
  too_large: { status: 413, title: "Something is over its limit" },
  unprocessable: { status: 422, title: "What it says can't be done" },
  over_bound: { status: 422, title: "It is more than one call or one run takes" },
  not_found: { status: 404, title: "There is no such thing" },
  stale_epoch: { status: 409, title: "The lease was taken away" },
  wrong_state: { status: 409, title: "The state does not allow this" },
  cancel_requested: { status: 409, title: "The run is asked to stop" },
  nothing_to_wait_for: { status: 422, title: "There is nothing to wait for" },
  outcome_invalid: { status: 422, title: "The run can't have this outcome" },
  key_reused: { status: 422, title: "The key was used with another body" },
  restored: { status: 409, title: "The store was restored; the process waits for its new epoch" },
  not_continuable: { status: 409, title: "The run can't be continued" },
  no_runner: { status: 409, title: "Nobody could execute the new run" },
  would_repeat: { status: 409, title: "The journal has the failure; the retry would repeat it" },
  from_invalid: { status: 422, title: "The retry can't begin there" },
  nondeterminism: { status: 409, title: "The journal says otherwise" },
  thread_busy: { status: 409, title: "The thread is busy" },
  in_use: { status: 409, title: "Somebody still refers to it" },
  run_ended: { status: 409, title: "The run has ended" },
  wait_closed: { status: 410, title: "The wait is over" },
  already_decided: { status: 409, title: "The approval was decided otherwise" },
  action_changed: { status: 409, title: "The decision is about another action" },
  no_open_approval: { status: 409, title: "There is nothing to decide about" },
  answer_invalid: { status: 422, title: "The answer does not fit the form" },
  signal_invalid: { status: 422, title: "The signal does not fit the schema of its kind" },
  never_fires: { status: 422, title: "The schedule has no instant" },
  unknown_format: { status: 422, title: "There is no such format" },
  unknown_limit: { status: 422, title: "There is no such limit" },
  name_taken: { status: 409, title: "The name is taken" },
  not_unique: { status: 409, title: "Another run has the unique key" },
  older_node: { status: 409, title: "A node of an older release does not know this; nothing was changed" },
  platform_decides: { status: 403, title: "The platform decides about this" },
  quota_exceeded: { status: 429, title: "The quota is used up" },
  signature_invalid: { status: 409, title: "The run is not what was accepted" },
  signing_unavailable: { status: 503, title: "The server has no key to sign with; nothing was changed" },
  url_refused: { status: 422, title: "The server does not send to this address" },
  storage_full: { status: 507, title: "The disk is full; nothing was changed" },
  query_timeout: { status: 503, title: "The query took longer than one may; ask for less" },
  unavailable: { status: 503, title: "Nothing was changed; try again" },
  unknown_outcome: { status: 503, title: "It may or may not have been stored; try again with the same key" },
  internal: { status: 500, title: "The server has a defect" },
  unauthorized: { status: 401, title: "A valid key is needed" },
  forbidden: { status: 403, title: "The key does not allow this" },
  method_not_allowed: { status: 405, title: "The path does not take this method" },
  unsupported_media_type: { status: 415, title: "The body has to be application/json" },
  host_not_allowed: { status: 421, title: "The server does not answer for this host" },
  callback_answered: { status: 409, title: "The callback was answered otherwise" },
  range_not_satisfiable: { status: 416, title: "There are no such bytes" },
  too_many_requests: { status: 429, title: "Too many requests" },
  shutting_down: { status: 503, title: "The server is shutting down" },
  origin_not_allowed: { status: 403, title: "Pages of this origin are not let in" },
  cross_site: { status: 403, title: "The call does not come from a page of the dashboard" },
  upgrade_required: { status: 426, title: "This path is a WebSocket" },
  too_many_streams: { status: 503, title: "The node has as many streams as it may, or the tenant its share" },
} as const;
// end of codes

/** A code that this release knows. A later server may have more. */
export type ProblemCode = keyof typeof codes;

/** Options of a problem. */
export interface ProblemOptions {
  status?: number;
  field?: string;
  /** Milliseconds. */
  retryAfter?: number;
  cause?: unknown;
}

/** A refusal of the server. Act on its code. Nothing was changed. */
export class Problem extends Error {
  readonly code: ProblemCode | (string & {});
  /** What is wrong, for people. */
  readonly detail: string;
  /** The status of HTTP; 0 if no server has answered. */
  readonly status: number;
  /** The part of the call that is to blame, such as commits[0].journal[2].key. */
  readonly field: string;
  /** How long to wait before another try, in milliseconds. */
  readonly retryAfter: number;

  constructor(code: string, detail = "", o: ProblemOptions = {}) {
    const title = (codes as Record<string, { title: string }>)[code]?.title ?? "";
    super(`${code}: ${detail || title}${o.field ? ` (${o.field})` : ""}`, o.cause === undefined ? undefined : { cause: o.cause });
    this.name = "Problem";
    this.code = code;
    this.detail = detail;
    this.status = o.status ?? (codes as Record<string, { status: number }>)[code]?.status ?? 0;
    this.field = o.field ?? "";
    this.retryAfter = o.retryAfter ?? 0;
  }
}

/** Tells whether an error is a refusal, of one of these codes if there are some. */
export function isProblem(err: unknown, ...of: ProblemCode[]): err is Problem {
  return err instanceof Problem && (of.length === 0 || (of as string[]).includes(err.code));
}

/** Returns the problem that an answer has. */
export function problemOf(status: number, headers: IncomingHttpHeaders, text: string): Problem {
  const seconds = Number(headers["retry-after"] ?? 0);
  const more = { status, retryAfter: Math.min(60, Number.isFinite(seconds) ? seconds : 1) * 1000 };
  try {
    const body = parse(text);
    if (isObject(body) && typeof body.code === "string") {
      const word = (v: unknown) => (typeof v === "string" ? v : "");
      return new Problem(body.code, word(body.detail), { ...more, field: word(body.field) });
    }
  } catch {
    // it is no answer of the server: a proxy has given it
  }
  const code = [502, 503, 504].includes(status) ? "unavailable" : status >= 500 ? "internal" : "invalid";
  return new Problem(code, `status ${status}: ${clean(text.slice(0, 200))}`, more);
}
