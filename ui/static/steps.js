// From the log and the journal of a run to rows: one per step, tool, model call, wait, child and attempt. Plain data
// in and out. views/run-steps.js shows the rows, the timeline draws those that take time, and the comparison of two
// runs puts their rows beside each other.
//
// The journal tells when a step was recorded, and not when it began. A step begins no earlier than what was recorded
// before it, so its duration is an upper bound: upTo says so.
import { ms, ended } from './format.js';

/**
 * @typedef {Object} Row
 * @property {string} id       step:KEY for an entry of the journal, line:SEQ for all else
 * @property {string} kind     step, model, tool, wait, child, attempt, message, note, fact, end or many
 * @property {string} name
 * @property {string} state    one of a run, or lost
 * @property {number} from
 * @property {number} to
 * @property {boolean} [upTo]  from is the earliest that it can have begun
 * @property {number} attempt
 * @property {any} [event]     its first line
 * @property {any} [last]      its last line
 * @property {any} [entry]     its entry of the journal
 * @property {any} [value]
 * @property {any} [input]
 * @property {{code?: string, message?: string}|null} [error]
 * @property {number} [tries]
 * @property {{tokens: number, cost: number}|null} [usage]
 * @property {string} [run_id] of a child
 * @property {string} [text]
 * @property {Row[]} [inner]
 */

const own = new Set(['ok', 'error', 'of', 'ignored', 'as', 'loose', 'aside']);
const isObject = v => v !== null && typeof v === 'object' && !Array.isArray(v);
/** isStep tells a value in the form of the SDK's steps, {ok} or {error}, from any other. */
const isStep = v => isObject(v) && ('ok' in v || isObject(v.error)) && Object.keys(v).every(k => own.has(k));
/** inside are the keys of entries that belong to the library and tell a person nothing. */
const inside = /^_(?!undo:|undone:)/;

const number = (o, ...names) => { for (const n of names) if (typeof o[n] === 'number') return o[n]; return 0; };

/** usageOf finds what a value tells about tokens and cost, in the forms that models and agents use. */
export function usageOf(value) {
  for (const v of [value, value?.ok, value?.response, value?.ok?.response, value?.result, value?.ok?.result]) {
    const u = isObject(v) ? (isObject(v.usage) ? v.usage : null) : null;
    if (!u) continue;
    const tokens = number(u, 'input', 'input_tokens', 'prompt_tokens') +
      number(u, 'output', 'output_tokens', 'completion_tokens');
    const cost = number(u, 'cost', 'cost_usd', 'total_cost_usd') || number(v, 'total_cost_usd', 'cost_usd');
    if (tokens || cost) return { tokens, cost };
  }
  return null;
}

/** shownOf is the value of an entry, or what the beginning of a long one tells. */
function shownOf(entry) {
  if (entry.preview === undefined) {
    const v = entry.value;
    return isStep(v) ? { value: v.ok, error: v.error ?? null, usage: usageOf(v) }
      : { value: v, error: null, usage: usageOf(v) };
  }
  let usage = null;
  const found = /"usage":(\{[^{}]*\})/.exec(entry.preview);
  try { usage = found && usageOf({ usage: JSON.parse(found[1]) }); } catch { /* it was cut */ }
  return { value: entry.preview, error: /^\{"error":\{"code":"([^"]*)"/.exec(entry.preview)
    ? { code: RegExp.$1 } : null, usage };
}

const errorOf = e => (e ? (typeof e === 'string' ? { message: e } : e) : null);
const toolOf = d => String(d.key ?? d.call_id ?? d.id ?? d.tool ?? d.name ?? '');
const outcomes = { 'wait:satisfied': 'completed', 'wait:timed_out': 'timeout', 'wait:closed': 'cancelled' };
const endings = { 'run:completed': 'completed', 'run:failed': 'failed', 'run:timed_out': 'timeout',
  'run:cancelled': 'cancelled' };
const facts = new Set(['run:deferred', 'run:reattached', 'run:hold_released', 'run:slow', 'run:stale',
  'run:cancel_requested', 'run:dead_lettered', 'run:late_result', 'run:continued', 'run:process_reattached']);
const moves = new Set(['run:created', 'run:started', 'run:resumed', 'wait:satisfied', 'wait:timed_out',
  'worker:tool_completed', 'worker:tool_failed']);

/** Reader makes rows of lines and entries, in the order of their instants. */
class Reader {
  constructor(run, now, runOf) {
    this.run = run;
    this.now = ended(run.state) ? ms(run.finished_at) || now : now;
    this.runOf = runOf;
    /** @type {Row[]} */
    this.rows = [];
    /** open are rows that have not ended, by a key of their kind. */
    this.open = new Map();
    /** streams are the texts of steps, by the key of the step. */
    this.streams = new Map();
    this.moved = ms(run.created_at);
    this.attempt = null;
  }

  add(row) {
    this.rows.push(row);
    return row;
  }

  row(kind, e, at, more) {
    return this.add({ id: 'line:' + e.seq, kind, name: '', state: 'completed', from: at, to: at, attempt: e.attempt,
      event: e, ...more });
  }

  begins(key, row) {
    row.state = 'running';
    row.to = this.now;
    this.open.set(key, row);
    return row;
  }

  ends(key, e, at, state, more) {
    const row = this.open.get(key);
    this.open.delete(key);
    if (row) Object.assign(row, { to: at, state, last: e, ...more });
    return row;
  }

  /** entry takes an entry of the journal. */
  entry(j) {
    const at = ms(j.at);
    if (!inside.test(j.key)) {
      const told = this.streams.get(j.key), shown = shownOf(j);
      this.add({ id: 'step:' + j.key, kind: told || shown.usage ? 'model' : 'step', name: j.key.replace(/#1$/, ''),
        state: shown.error ? 'failed' : 'completed', from: Math.min(this.moved, at), to: at, upTo: true,
        attempt: told?.event.attempt ?? 0, event: told?.event, entry: j, tries: told?.tries.size, ...shown });
      this.streams.delete(j.key);
    }
    this.moved = Math.max(this.moved, at);
  }

  /** over ends the part of an attempt that a worker had. */
  over(e, at, state, error) {
    const a = this.attempt;
    this.attempt = null;
    if (!a) return;
    this.add({ id: 'line:' + a.event.seq, kind: 'attempt', name: `Attempt ${a.event.attempt}`, state, from: a.at,
      to: at,
      attempt: a.event.attempt, event: a.event, last: e, error, text: a.worker });
  }

  line(e) {
    const at = ms(e.at), d = e.data ?? {}, t = e.type;
    if (t === 'run:dispatched') this.attempt = { at, event: e, worker: d.worker_id ?? '' };
    else if (t === 'run:retrying') this.over(e, at, 'failed', errorOf(d.error));
    else if (t === 'run:held') this.over(e, at, 'held', { code: d.code, message: d.message });
    else if (t === 'run:reclaimed') this.over(e, at, d.reason === 'released' ? 'cancelled' : 'lost',
      { code: d.reason });
    else if (t === 'run:suspended') this.attempt = null;
    else if (endings[t]) {
      if (e.attempt > 1) this.over(e, at, endings[t], errorOf(d.error));
      this.row('end', e, at, { state: endings[t], error: errorOf(d.error), text: d.result_summary });
    } else if (t === 'worker:tool_started') {
      this.begins('t' + toolOf(d), this.row('tool', e, at, { name: String(d.tool ?? d.name ?? toolOf(d)),
        input: d.input ?? d.arguments, value: d }));
    } else if (t === 'worker:tool_completed' || t === 'worker:tool_failed') {
      const state = t.endsWith('failed') ? 'failed' : 'completed', value = d.output ?? d.result ?? d;
      const more = { value, error: state === 'failed' ? errorOf(d.error ?? d.output) : null, usage: usageOf(d) };
      if (!this.ends('t' + toolOf(d), e, at, state, more)) {
        this.row('tool', e, at, { name: String(d.tool ?? d.name ?? toolOf(d)), state, ...more });
      }
    } else if (t === 'wait:opened') {
      this.begins('w' + d.wait_id, this.row('wait', e, at, { name: [d.type, d.name ?? d.title ?? d.wait_id]
        .filter(Boolean).join(' '), value: d }));
    } else if (outcomes[t]) this.ends('w' + d.wait_id, e, at, outcomes[t], { value: d });
    else if (t === 'worker:spawned') {
      const id = String(d.job_id ?? d.run_id ?? '');
      this.begins('c' + id, this.row('child', e, at, { name: String(d.kind ?? d.task ?? 'child'), run_id: id }));
    } else if (t === 'worker:completed') {
      this.ends('c' + (d.job_id ?? d.run_id), e, at, d.status ?? 'completed',
        { error: errorOf(d.error), value: d.result_summary });
    } else if (t === 'llm:delta') this.stream(e, at, typeof d === 'object' ? d : { text: String(d) });
    else if (t === 'message:appended') this.row('message', e, at, { name: d.role ?? 'message', text: d.text });
    else if (facts.has(t)) this.row('fact', e, at, { name: t.slice(4).replace(/_/g, ' '),
      state: /slow|stale|letter/.test(t) ? 'failed' : 'completed' });
    else if (t.startsWith('x:')) this.row('note', e, at, { name: t.slice(2),
      value: typeof d.text === 'string' ? d.text : d });
    if (moves.has(t)) this.moved = Math.max(this.moved, at);
  }

  /** stream takes a piece of text. A step that has streamed is a call of a model. */
  stream(e, at, d) {
    const key = d.step ?? '';
    let s = this.streams.get(key);
    if (!s) this.streams.set(key, s = { event: e, from: Math.min(this.moved, at), tries: new Set(), size: 0, to: at });
    s.tries.add(d.try ?? 0);
    s.size += d.text?.length ?? 0;
    s.to = at;
    s.last = e;
  }

  /** end makes rows of what has not ended. */
  end() {
    const live = !ended(this.run.state);
    for (const [step, s] of this.streams) {
      const here = live && s.last.attempt === this.run.attempt;
      this.add({ id: 'line:' + s.event.seq, kind: 'model', name: step.replace(/#1$/, '') || 'text', event: s.event,
        state: here ? 'running' : step ? 'lost' : 'completed', from: s.from, to: here ? this.now : s.to, upTo: true,
        attempt: s.event.attempt, last: s.last, tries: s.tries.size, text: `${s.size} characters` });
    }
    for (const row of this.open.values()) {
      const child = row.kind === 'child' && this.runOf(row.run_id);
      if (child && ended(child.state)) Object.assign(row, { state: child.state, to: ms(child.finished_at) || row.to });
      else if (!live) row.state = 'cancelled';
      else if (child) row.state = child.state;
      if (row.kind === 'tool' && row.attempt < this.run.attempt) row.state = 'lost';
    }
    for (const row of this.rows) {
      const child = row.kind === 'child' && this.runOf(row.run_id);
      if (child) { row.name = child.kind; row.error ??= child.error ?? null; row.value ??= child.result_summary; }
    }
    if (live && this.attempt && this.attempt.event.attempt > 1) {
      this.over(null, this.now, 'running', null);
    }
    return this.rows.map((row, i) => ({ row, i })).sort((a, b) => a.row.from - b.row.from || a.i - b.i).map(x => x.row);
  }
}

/**
 * stepRows gives the rows of a run, in the order in which they began.
 * @param {any} run
 * @param {any[]} events
 * @param {any[]} entries  of the journal
 * @param {number} now
 * @param {(id: string) => any} [runOf]  gives the row of a child
 */
export function stepRows(run, events, entries, now, runOf = () => undefined) {
  const reader = new Reader(run, now, runOf);
  let j = 0;
  for (const e of events) {
    const at = ms(e.at);
    // Lines and entries of one commit have one instant: a line that says how it ended comes behind the entries.
    const late = endings[e.type] || e.type === 'run:retrying' || e.type === 'wait:opened';
    for (; j < entries.length && (ms(entries[j].at) < at || (late && ms(entries[j].at) === at)); j++) {
      reader.entry(entries[j]);
    }
    reader.line(e);
  }
  for (; j < entries.length; j++) reader.entry(entries[j]);
  return reader.end();
}

/** worst is the state of many rows. */
const worst = rows => ['failed', 'timeout', 'held', 'lost', 'cancelled', 'running', 'dispatched', 'suspended', 'queued']
  .find(s => rows.some(r => r.state === s)) ?? 'completed';

const sum = rows => {
  let tokens = 0, cost = 0;
  for (const r of rows) { tokens += r.usage?.tokens ?? 0; cost += r.usage?.cost ?? 0; }
  return tokens || cost ? { tokens, cost } : null;
};
export { sum as totalOf };

/** many is one row for several. */
const many = (name, rows, kind = rows[0].kind) => ({ id: 'many:' + rows[0].id, kind: 'many', of: kind, name,
  n: rows.length,
  state: worst(rows), from: Math.min(...rows.map(r => r.from)), to: Math.max(...rows.map(r => r.to)),
  attempt: rows[0].attempt, inner: rows, usage: sum(rows), event: rows[0].event });

/** fewest is how many equal rows in a sequence become one. */
const fewest = { child: 4, note: 3, fact: 3, message: 4 };

/** itemOf is the step that a row is an item of. */
const itemOf = r => (r.kind === 'step' && /^(.*)\/\d+$/.exec(r.entry?.key ?? '')?.[1]) || '';

/**
 * folded puts equal rows together: children of one kind and state, notes of one type, the items of a step. Items are
 * executed beside other things, whose rows may be between them.
 */
export function folded(rows) {
  const out = [], items = new Map();
  for (const r of rows) {
    const item = itemOf(r);
    if (item) items.set(item, [...(items.get(item) ?? []), r]);
  }
  for (let i = 0; i < rows.length;) {
    const r = rows[i], item = itemOf(r), all = items.get(item);
    if (item) {
      if (all[0] === r) out.push(all.length > 1 ? many(item.replace(/#1$/, ''), all) : r);
      i++;
      continue;
    }
    const same = fewest[r.kind] &&
      (r.kind === 'child' ? o => o.kind === 'child' : o => o.kind === r.kind && o.name === r.name);
    let to = i + 1;
    while (same && to < rows.length && same(rows[to])) to++;
    const group = rows.slice(i, to);
    i = to;
    /** @type {Map<string, Row[]>} */
    const alike = new Map();
    for (const one of group) {
      const key = one.name + '\n' + one.state;
      if (!alike.has(key)) alike.set(key, []);
      alike.get(key)?.push(one);
    }
    for (const list of alike.values()) {
      if (list.length >= (fewest[r.kind] ?? Infinity)) out.push(many(list[0].name, list));
      else out.push(...list);
    }
  }
  return out;
}

/** spansOf are the rows that the timeline draws below the bar of a run. */
export const spansOf = rows => rows.filter(r => ['step', 'model', 'tool', 'wait'].includes(r.kind));
