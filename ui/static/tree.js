// The tree of a run: the run, everything below it, and their logs, kept up to date.
import { useEffect, useState, useRef, none } from './lib.js';
import { get } from './api.js';
import { watch } from './live.js';

/** maxEvents is how many lines of a log a page keeps. */
const maxEvents = 20_000;
/** maxRuns is how many runs of a tree are shown. */
const maxRuns = 200;

/**
 * useTree follows the tree of a run.
 * @param {string} id
 */
export function useTree(id) {
  const tree = useRef(/** @type {Map<string, {run: any, events: any[], busy?: boolean, cut?: boolean}>} */ (new Map()));
  const [state, set] = useState({ version: 0, root: '', run: /** @type {any} */ (null), error: none, loading: true });
  useEffect(() => {
    let over = false, stop = () => {};
    tree.current = new Map();
    const bump = more => { if (!over) set(s => ({ ...s, ...more, version: s.version + 1 })); };
    const entry = run => {
      let e = tree.current.get(run.run_id);
      if (!e) tree.current.set(run.run_id, e = { run, events: [] });
      return e;
    };
    // readLog reads the lines that are missing.
    const readLog = async e => {
      if (e.busy) return;
      e.busy = true;
      try {
        for (;;) {
          const after = e.events.at(-1)?.seq ?? 0;
          if (over || after >= e.run.last_seq || e.events.length >= maxEvents) break;
          const page = await get(`/runs/${e.run.run_id}/events`, { after, limit: 2000 });
          add(e, page.events);
          bump();
          if (!page.events.length) break;
        }
      } catch { /* the next change, or the next poll, reads it again */ } finally { e.busy = false; }
    };
    const add = (e, events) => {
      const last = e.events.at(-1)?.seq ?? 0;
      for (const one of events) if (one.seq > last) e.events.push(one);
      if (e.events.length > maxEvents) { e.events.splice(0, e.events.length - maxEvents); e.cut = true; }
    };
    const take = (run, events) => {
      const e = entry(run);
      e.run = { ...e.run, ...run, finished_at: run.finished_at };
      const last = e.events.at(-1)?.seq ?? 0;
      if (events?.length && events[0].seq <= last + 1) add(e, events);
      if ((e.events.at(-1)?.seq ?? 0) < run.last_seq) readLog(e);
    };
    const begin = async () => {
      const run = await get('/runs/' + id);
      if (over) return;
      const root = run.root_run_id || id;
      take(run);
      bump({ run, root, loading: false, error: null });
      stop = watch({
        of: 'runs', filter: { root_run_id: root }, limit: maxRuns, events: true,
        after: () => Object.fromEntries([...tree.current].map(([k, e]) => [k, e.events.at(-1)?.seq ?? 0])),
        poll: async () => [{ type: 'snapshot', runs: (await get(`/runs/${root}/tree`, { limit: maxRuns })).runs }],
        on(messages) {
          for (const m of messages) {
            if (m.type === 'snapshot') for (const r of m.runs ?? []) take(r);
            else if (m.type === 'error') { bump({ error: m.error }); return; }
            else for (const c of m.changes ?? [m]) if (c.run) take(c.run, c.events);
          }
          bump({ run: tree.current.get(id)?.run ?? run, error: null });
        },
      });
    };
    begin().catch(error => bump({ error, loading: false }));
    return () => { over = true; stop(); };
  }, [id]);
  return { ...state, tree: tree.current };
}
