// From the logs of a tree of runs to what a timeline draws. No drawing here: plain data in and out.
//
// A run's log tells its phases (queued, dispatched, running, suspended), as perdure.Fold does on the
// server. Beside them there are spans of tools and waits, and marks for single events.
import { ms, ended } from '../format.js';
import { spansOf } from '../steps.js';

/**
 * @typedef {{seq: number, type: string, at: string, attempt: number, data: any}} Event
 * @typedef {{from: number, to: number, phase: string, attempt: number, worker: string, event: Event}} Phase
 * @typedef {{from: number, to: number, name: string, kind: string, state: string, row: number, id: string,
 *   upTo?: boolean}} Span
 * @typedef {{at: number, kind: string, event: Event}} Mark
 * @typedef {{run: any, depth: number, phases: Phase[], spans: Span[], rows: number, marks: Mark[],
 *   gaps: {from: number, to: number}[],
 *   from: number, to: number, live: boolean, n?: number, key?: string}} Lane a folded one has n runs, and a key
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
  if (!events.length) { byRow(out); return out; }
  // Of a long log the page has the end. Lines that a worker writes tell that the run was running before them.
  if (events[0].seq > 1) {
    since = seen = ms(events[0].at);
    phase = signs.test(events[0].type) ? 'running' : '';
  }
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
  return out;
}

// byRow draws a run whose log is not read by what its row tells.
function byRow(out) {
  const { run } = out, began = ms(run.started_at) || out.to;
  const event = { seq: 0, type: 'run:created', at: run.created_at, attempt: run.attempt, data: {} };
  const of = (from, to, phase) => { if (to > from) out.phases.push({ from, to, phase, attempt: run.attempt,
    worker: run.worker_id ?? '', event }); };
  of(out.from, began, 'queued');
  of(began, out.to, out.live && run.state !== 'queued' ? run.state : 'running');
}

/** maxRows is how many spans are drawn one below the other. */
const maxRows = 6;

/** withSpans is a lane with the rows of its run that take time. Spans that overlap have rows of their own. */
export function withSpans(lane, rows) {
  const out = { ...lane, spans: spansOf(rows).map(r => ({ from: r.from, to: r.to, name: r.name, kind: r.kind,
    state: r.state === 'lost' ? 'failed' : r.state, row: 0, id: r.id, upTo: r.upTo })) };
  out.spans.sort((a, b) => a.from - b.from);
  const free = [];
  for (const s of out.spans) {
    let row = free.findIndex(to => to <= s.from);
    if (row < 0) row = free.length < maxRows ? free.length : maxRows - 1;
    free[row] = s.to;
    s.row = row;
  }
  out.rows = free.length;
  return out;
}

// lanes of runs that have ended, by their rows: they are the same until a row or a log is another one.
const kept = new WeakMap();

/** @param {{run: any, events: Event[], log?: {version: number}}} entry */
function keptLane({ run, events, log }, now, depth) {
  const old = kept.get(run), version = log?.version ?? events.length;
  if (old?.version === version && old.lane.depth === depth) return old.lane;
  const made = lane(run, events, now, depth);
  if (!made.live) kept.set(run, { version, lane: made });
  return made;
}

/** fewest is how many equal children become one lane. */
const fewest = 4;
/** foldable are the states in which children fold: what has failed has a lane of its own. */
const foldable = new Set(['completed', 'queued', 'dispatched', 'running', 'suspended']);

/** foldedLane is one lane for several runs: when they lived, and when at least one was running. */
function foldedLane(entries, now, depth, key) {
  const all = entries.map(e => keptLane(e, now, depth));
  const from = Math.min(...all.map(l => l.from)), to = Math.max(...all.map(l => l.to));
  const base = { attempt: 1, worker: '', event: entries[0].events[0] ?? { seq: 0, type: 'run:created',
    at: entries[0].run.created_at, attempt: 1, data: {} } };
  const ran = all.flatMap(l => l.phases.filter(p => p.phase === 'running' || p.phase === 'dispatched'))
    .sort((a, b) => a.from - b.from);
  const phases = [{ from, to, phase: 'queued', ...base }];
  for (const p of ran) {
    const last = phases[phases.length - 1];
    if (last.phase === 'running' && p.from <= last.to) last.to = Math.max(last.to, p.to);
    else phases.push({ from: p.from, to: p.to, phase: 'running', ...base });
  }
  return { run: entries[0].run, depth, phases, spans: [], rows: 0, marks: [], gaps: [], from, to,
    live: all.some(l => l.live), n: all.length, key };
}

/**
 * lanes orders a tree of runs: a run, then its children by age. Equal children are one lane, unless it is open. The
 * main run is among them in any case.
 * @param {Map<string, {run: any, events: Event[], log?: {version: number}}>} tree
 * @param {string} root
 * @param {string} [main]
 * @param {Set<string>} [open]
 */
export function lanes(tree, root, now, max = 60, main = '', open = new Set()) {
  const children = new Map();
  for (const { run } of tree.values()) {
    const p = run.parent_run_id ?? '';
    if (!children.has(p)) children.set(p, []);
    children.get(p).push(run.run_id);
  }
  /** @type {Lane[]} */
  const out = [];
  const add = (id, depth) => {
    const entry = tree.get(id);
    if (!entry) return;
    if (out.length < max || id === main) out.push(keptLane(entry, now, depth));
    /** @type {Map<string, string[]>} */
    const alike = new Map();
    for (const child of (children.get(id) ?? []).sort()) {
      const r = tree.get(child)?.run, single = child === main || children.has(child) || !foldable.has(r.state)
        || r.hold;
      const key = single ? child : `${id} ${r.kind} ${r.state}`;
      if (!alike.has(key)) alike.set(key, []);
      alike.get(key)?.push(child);
    }
    for (const [key, ids] of alike) {
      if (ids.length < fewest || open.has(key)) for (const child of ids) add(child, depth + 1);
      else if (out.length < max) out.push(foldedLane(ids.map(i => tree.get(i)), now, depth + 1, key));
    }
  };
  add(root, 0);
  return out;
}
