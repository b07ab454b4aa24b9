// The tree of a run: the run, everything below it, and the logs that the page shows, kept up to date.
import { useEffect, useState, none } from './lib.js';
import { get } from './api.js';
import { watch } from './socket.js';
import { RunRows } from './rows.js';
import { RunLog } from './log.js';

/** maxRuns is how many runs of a tree are shown: the server tells of so many together. */
export const maxRuns = 1000;
/** maxLogs is how many runs of a tree the page reads the logs of, in the order of the timeline. */
const maxLogs = 60;
/** logsAtOnce is how many logs are read at the same time. */
const logsAtOnce = 4;
/** retryAfter is how long the page waits before it reads again what it could not read. */
const retryAfter = 2000;

/** @typedef {{run: any, log: RunLog, events: any[]}} Entry */

/** inOrder gives the ids of a tree as the timeline has them: a run, then its children by age. */
export function inOrder(rows, root) {
  const children = new Map();
  for (const run of rows) {
    const p = run.parent_run_id ?? '';
    if (!children.has(p)) children.set(p, []);
    children.get(p).push(run.run_id);
  }
  const out = [], has = new Set(rows.map(r => r.run_id));
  const add = id => {
    if (!has.delete(id)) return;
    out.push(id);
    for (const child of (children.get(id) ?? []).sort()) add(child);
  };
  add(root);
  return out;
}

/** A Tree keeps the runs of a tree and their logs. */
class Tree {
  constructor(id, root, changed) {
    this.id = id;
    this.root = root;
    this.changed = changed;
    this.over = false;
    /** family is the newest runs of the tree; own is the run itself and its root, which may not be among them. */
    this.family = new RunRows();
    this.own = new RunRows();
    /** @type {Map<string, RunLog>} */
    this.logs = new Map();
    this.reading = 0;
    /** stops end the watches. */
    this.stops = [];
    /** on makes the function that takes the messages of a watch. */
    this.on = /** @type {(rows: RunRows) => (messages: any[]) => void} */ (none);
  }

  /** ids are the runs of the tree. */
  ids() { return [...new Set([...this.own.rows.keys(), ...this.family.rows.keys()])]; }

  /** entries are the runs of the tree with their logs. */
  entries() {
    /** @type {Map<string, Entry>} */
    const out = new Map();
    for (const id of this.ids()) {
      const log = this.log(id);
      out.set(id, { run: this.row(id), log, events: log.events });
    }
    return out;
  }

  log(id) {
    let log = this.logs.get(id);
    if (!log) this.logs.set(id, log = new RunLog(id, this.changed));
    return log;
  }

  /** row is a run as it was told of last. */
  row(id) {
    const a = this.own.rows.get(id), b = this.family.rows.get(id);
    return a && b ? (a.last_seq > b.last_seq ? a : b) : a ?? b;
  }

  /** take takes a message into one of the two sets of rows. */
  take(rows, m) {
    for (const { run, events } of rows.take(m)) {
      const log = this.log(run.run_id);
      if (events && (log.events.length || events[0]?.seq === 1)) log.add(events);
    }
    this.readLogs();
  }

  /** readLogs reads what is missing of the logs that are shown, a few at a time. */
  readLogs() {
    const rows = this.ids().map(id => this.row(id));
    for (const id of [this.id, ...inOrder(rows, this.root).slice(0, maxLogs)]) {
      if (this.over || this.reading >= logsAtOnce) return;
      const row = this.row(id), log = this.log(id);
      if (!row || log.busy || log.last >= row.last_seq || log.absent >= row.last_seq) continue;
      this.reading++;
      log.follow(row.last_seq).then(() => (id === this.id ? log.back() : undefined)).finally(() => {
        this.reading--;
        if (log.last >= row.last_seq || log.absent >= row.last_seq) this.readLogs();
        else setTimeout(() => this.readLogs(), retryAfter);
      });
    }
  }

  /** after is the last line that the page has of each log. */
  after(ids) {
    const have = ids.filter(id => this.logs.get(id)?.last).map(id => [id, this.log(id).last]);
    return have.length ? Object.fromEntries(have) : undefined;
  }

  /** watch begins to follow the tree. told is called after each message, with an error or null. */
  watch(told) {
    const on = this.on = rows => messages => {
      for (const m of messages) {
        if (m.type === 'error') { told(m.error); return; }
        this.take(rows, m);
        // All of the tree is told of: the run that was read before is among it, or was deleted.
        if (m.type === 'snapshot' && rows === this.family && !rows.cut && this.stops.length < 2) {
          this.own = new RunRows();
        }
      }
      this.watchOwn();
      told(null);
    };
    this.stops.push(watch({
      of: 'runs', filter: { root_run_id: this.root }, limit: maxRuns, events: true,
      after: () => this.after([...this.family.rows.keys()]),
      poll: async () => [{ type: 'snapshot', ...await get(`/runs/${this.root}/tree`, { limit: maxRuns }) }],
      on: on(this.family),
    }));
  }

  /** watchOwn watches the run and its root by their ids, once a tree has more runs than are told of together. */
  watchOwn() {
    const ids = [...new Set([this.id, this.root])];
    if (this.stops.length > 1 || !this.family.cut || ids.every(id => this.family.rows.has(id))) return;
    this.stops.push(watch({
      of: 'runs', ids, events: true, after: () => this.after(ids),
      poll: async () => [{ type: 'snapshot', runs: await Promise.all(ids.map(id => get('/runs/' + id))) }],
      on: this.on(this.own),
    }));
  }

  end() {
    this.over = true;
    for (const stop of this.stops) stop();
    for (const log of this.logs.values()) log.over = true;
  }
}

/**
 * useTree follows the tree of a run.
 * @param {string} id
 */
export function useTree(id) {
  const [state, set] = useState({ version: 0, root: '', run: /** @type {any} */ (null), error: none, loading: true,
    entries: /** @type {Map<string, Entry>} */ (new Map()), cut: false, deleted: false });
  useEffect(() => {
    let over = false, later = 0, error = none;
    let mine = /** @type {Tree} */ (none);
    // Many logs may be read in one frame: the page is drawn once.
    const show = () => {
      later = 0;
      if (over) return;
      const run = mine.row(id);
      set(s => ({ version: s.version + 1, root: mine.root, run: run ?? s.run, error, loading: false,
        entries: mine.entries(), cut: mine.family.cut, deleted: !run || error?.status === 404 }));
    };
    const changed = () => {
      if (over || later) return;
      later = document.hidden ? setTimeout(show, 0) : requestAnimationFrame(show);
    };
    const begin = async () => {
      const run = await get('/runs/' + id);
      if (over) return;
      mine = new Tree(id, run.root_run_id || id, changed);
      mine.take(mine.own, { type: 'change', run_id: id, run });
      show();
      mine.watch(e => { error = e; changed(); });
    };
    const attempt = () => begin().catch(e => {
      if (over) return;
      set(s => ({ ...s, error: e, loading: false }));
      if (!e.status || e.status >= 500) later = setTimeout(attempt, retryAfter);
    });
    attempt();
    return () => { over = true; clearTimeout(later); cancelAnimationFrame(later); mine?.end(); };
  }, [id]);
  return { ...state, tree: state.entries };
}
