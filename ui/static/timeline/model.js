// From the logs of a tree of runs to what a timeline draws. No drawing here: plain data in and out.
//
// A run's log tells its phases (queued, dispatched, running, suspended), as perdure.Fold does on the
// server. Beside them there are spans of tools and waits, and marks for single events.
import { ms, ended } from '../format.js';

/**
 * @typedef {{seq: number, type: string, at: string, attempt: number, data: any}} Event
 * @typedef {{from: number, to: number, phase: string, attempt: number, worker: string, event: Event}} Phase
 * @typedef {{from: number, to: number, name: string, kind: 'tool'|'wait', state: string, row: number, event: Event,
 *   last?: Event}} Span
 * @typedef {{at: number, kind: string, event: Event}} Mark
 * @typedef {{run: any, depth: number, phases: Phase[], spans: Span[], rows: number, marks: Mark[],
 *   gaps: {from: number, to: number}[],
 *   from: number, to: number, live: boolean}} Lane
 */

/**
 * silentAfter is how long a running run may say nothing before the gap is drawn. Gaps of the past are those that the
 * watchdog has told of: a heartbeat that says nothing new has a line in the log only once a minute.
 */
const silentAfter = 30_000;

const marks = {
  'run:heartbeat': 'beat', 'run:progress': 'beat', 'llm:delta': 'beat', 'run:deferred': 'deferred',
    'run:reattached': 'attached',
  'run:process_reattached': 'attached', 'run:retrying': 'retry', 'run:reclaimed': 'reclaimed', 'run:held': 'held',
    'run:slow': 'slow',
  'run:stale': 'slow', 'run:cancel_requested': 'cancel', 'run:completed': 'completed', 'run:failed': 'failed',
    'run:timed_out': 'timeout',
  'run:cancelled': 'cancelled', 'run:dead_lettered': 'failed', 'run:late_result': 'late', 'run:continued': 'attached',
  'worker:spawned': 'child', 'worker:completed': 'child', 'message:appended': 'message', 'wait:satisfied': 'signal',
};

// signs are lines that only the holder of a run writes: signs of life.
const signs = /^(run:(heartbeat|progress|started)|llm:|worker:(tool_|spawned)|x:|wait:opened|message:)/;

/**
 * lane reads one log.
 * @param {any} run
 * @param {Event[]} events
 * @param {number} now
 * @returns {Lane}
 */
export function lane(run, events, now, depth = 0) {
  /** @type {Lane} */
  const out = { run, depth, phases: [], spans: [], rows: 0, marks: [], gaps: [], from: ms(run.created_at),
    to: ended(run.state) ? ms(run.finished_at) : now, live: !ended(run.state) };
  let phase = '', since = out.from, seen = out.from, attempt = 1, worker = '', cause = events[0];
  // quiet is since when the holder has said nothing, if the watchdog has told of it.
  let quiet = 0;
  const heard = at => {
    if (quiet && at > quiet) out.gaps.push({ from: quiet, to: at });
    quiet = 0;
    seen = at;
  };
  const begin = (next, at, e) => {
    if (phase && at > since) out.phases.push({ from: since, to: at, phase, attempt, worker, event: cause });
    heard(at);
    phase = next;
    since = at;
    cause = e;
  };
  const open = new Map();
  for (const e of events) {
    const at = ms(e.at), d = e.data ?? {};
    switch (e.type) {
      case 'run:created': begin('queued', at, e); break;
      case 'run:dispatched': worker = d.worker_id ?? ''; if (phase === 'queued' || !phase) begin('dispatched', at, e);
        break;
      case 'run:started': worker = d.worker_id ?? worker; begin('running', at, e); break;
      case 'run:suspended': begin('suspended', at, e); break;
      case 'run:resumed': begin('queued', at, e); break;
      case 'run:reclaimed':
        // From the last sign of life on, the run was nobody's: its lease ran out.
        if (!['released', 'restored'].includes(d.reason) && at > seen) {
          const lostFrom = Math.max(since, seen);
          if (lostFrom > since) out.phases.push({ from: since, to: lostFrom, phase, attempt, worker, event: cause });
          out.phases.push({ from: lostFrom, to: at, phase: 'lost', attempt, worker, event: e });
          phase = '';
          quiet = 0;
        }
        begin('queued', at, e);
        break;
      case 'run:slow': case 'run:stale':
        if (phase !== 'running' || (d.reason ?? 'silent') !== 'silent') break;
        seen = Math.max(seen, ms(d.seen_at) || 0);
        quiet ||= seen;
        break;
      case 'run:held': begin('queued', at, e); break;
      case 'run:retrying': begin('queued', at, e); attempt = d.attempt ?? attempt + 1; worker = ''; break;
      case 'run:completed': case 'run:failed': case 'run:timed_out': case 'run:cancelled': begin('', at, e); break;
      case 'worker:tool_started': open.set('t' + (d.key ?? d.call_id ?? d.tool ?? e.seq), e); break;
      case 'worker:tool_completed': case 'worker:tool_failed': close(out, open, 't' + (d.key ?? d.call_id ?? d.tool), e,
        at,
        e.type === 'worker:tool_failed' ? 'failed' : 'completed'); break;
      case 'wait:opened': open.set('w' + d.wait_id, e); break;
      case 'wait:satisfied': case 'wait:timed_out': case 'wait:closed': close(out, open, 'w' + d.wait_id, e, at,
        { 'wait:satisfied': 'completed', 'wait:timed_out': 'timeout' }[e.type] ?? 'cancelled'); break;
    }
    if (signs.test(e.type)) heard(at);
    const kind = marks[e.type] ?? (e.type.startsWith('x:') ? 'beat' : '');
    if (kind) out.marks.push({ at, kind, event: e });
  }
  if (phase) {
    out.phases.push({ from: since, to: Math.max(out.to, since), phase, attempt, worker, event: cause });
    if (phase === 'running') {
      const last = Math.max(seen, ms(run.seen_at) || 0);
      if (quiet && last > quiet) heard(last);
      else if (quiet) heard(out.to);
      else if (out.to - last > silentAfter) out.gaps.push({ from: last, to: out.to });
    }
  }
  for (const [id, e] of open) {
    out.spans.push({ from: ms(e.at), to: out.to, name: nameOf(e), kind: id[0] === 't' ? 'tool' : 'wait',
        state: 'running', row: 0, event: e });
  }
  stack(out);
  return out;
}

const nameOf = e => String(e.data?.tool ?? e.data?.name ?? e.data?.key ?? (e.data?.wait_id
    ? `${e.data.type ?? 'wait'} ${e.data.wait_id}` : e.type));

function close(out, open, id, e, at, state) {
  const begun = open.get(id);
  open.delete(id);
  if (begun) out.spans.push({ from: ms(begun.at), to: at, name: nameOf(begun), kind: id[0] === 't' ? 'tool' : 'wait',
      state, row: 0, event: begun, last: e });
}

/** maxRows is how many spans are drawn one below the other. */
const maxRows = 6;

// stack gives spans that overlap rows of their own.
function stack(out) {
  out.spans.sort((a, b) => a.from - b.from);
  const free = [];
  for (const s of out.spans) {
    let row = free.findIndex(to => to <= s.from);
    if (row < 0) row = free.length < maxRows ? free.length : maxRows - 1;
    free[row] = s.to;
    s.row = row;
  }
  out.rows = free.length;
}

/**
 * lanes orders a tree of runs: a run, then its children by age.
 * @param {Map<string, {run: any, events: Event[]}>} tree
 * @param {string} root
 */
export function lanes(tree, root, now, max = 60) {
  const children = new Map();
  for (const { run } of tree.values()) {
    const p = run.parent_run_id ?? '';
    if (!children.has(p)) children.set(p, []);
    children.get(p).push(run.run_id);
  }
  const out = [];
  const add = (id, depth) => {
    const entry = tree.get(id);
    if (!entry || out.length >= max) return;
    out.push(lane(entry.run, entry.events, now, depth));
    for (const child of (children.get(id) ?? []).sort()) add(child, depth + 1);
  };
  add(root, 0);
  return out;
}
