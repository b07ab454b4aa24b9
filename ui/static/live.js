// The data of views that change: lists of runs, counts, and other lists. socket.js has the
// connection, rows.js the rows of runs.
import { useEffect, useRef, useState, none } from './lib.js';
import { get } from './api.js';
import { watch, refresh, connection } from './socket.js';
import { RunRows, partly } from './rows.js';

export { watch, refresh, connection };

/** asQuery is a filter as parameters of GET /runs. */
export function asQuery(filter) {
  const q = {};
  for (const [k, v] of Object.entries(filter)) {
    if (k === 'metadata') for (const [name, value] of Object.entries(v)) q['metadata.' + name] = value;
    else q[k] = Array.isArray(v) ? v.join(',') : v;
  }
  return q;
}

/**
 * useRuns watches a page of runs. While held, changes are counted and not shown.
 * @param {object} filter
 * @param {{limit?: number, cursor?: string, held?: boolean}} o
 */
export function useRuns(filter, { limit = 50, cursor = '', held = false } = {}) {
  const [state, set] = useState({ rows: /** @type {any[]|null} */ (null), next: '', searched: '', error: null });
  const key = JSON.stringify([filter, limit, cursor]);
  const rows = useRef(new RunRows()), waiting = useRef(0), hold = useRef(held);
  const [news, setNews] = useState(0);
  const drawn = useRef(/** @type {any[]|null} */ (null)), later = useRef(0);
  const show = error => {
    const wanted = rows.current.list();
    drawn.current = partly(drawn.current, wanted, limit);
    set({ rows: drawn.current, next: rows.current.next, searched: rows.current.searched, error });
    if (drawn.current !== wanted) later.current ||= requestAnimationFrame(() => { later.current = 0; show(error); });
  };
  useEffect(() => {
    hold.current = held;
    if (!held && state.rows) { waiting.current = 0; setNews(0); show(null); }
  }, [held]);
  useEffect(() => {
    rows.current = new RunRows();
    drawn.current = null;
    set(s => ({ ...s, rows: null, error: null }));
    const stop = watch({
      of: 'runs', filter, limit, cursor: cursor || undefined, events: false,
      poll: async () => [{ type: 'snapshot', ...await get('/runs', { ...asQuery(filter), limit, cursor }) }],
      on(messages) {
        let error = null;
        for (const m of messages) {
          error = m.type === 'error' ? m.error : null;
          if (error) continue;
          rows.current.take(m);
          rows.current.keep(limit);
          if (m.type !== 'snapshot') waiting.current += (m.changes ?? [m]).length;
        }
        if (hold.current) setNews(waiting.current);
        else show(error);
      },
    });
    return () => { stop(); cancelAnimationFrame(later.current); later.current = 0; };
  }, [key]);
  return { ...state, news };
}

/** useCounts watches how many runs there are of each state. It is null where the server does not tell. */
export function useCounts(filter = {}) {
  const [counts, set] = useState(none);
  const absent = useRef(false);
  useEffect(() => watch({
    of: 'counts', filter,
    poll: async () => {
      if (absent.current) return [];
      try {
        return [{ type: 'counts', ...await get('/runs/counts', asQuery(filter)) }];
      } catch (e) {
        absent.current = e.status === 404 || e.status === 400;
        return [];
      }
    },
    on: messages => { const m = messages.findLast(m => m.type === 'counts'); if (m) set(m); },
  }), [JSON.stringify(filter)]);
  return counts;
}

/**
 * useList watches a list that is sent whole when it has changed.
 * @param {string} of  its name on the socket; empty: it is polled, and the page says so
 * @param {string} path
 * @param {string} field  of the answer over REST
 * @param {object} params  of the call, and the filter of the watch
 * @param {object} more  fields of the filter that are no parameters of the call
 */
export function useList(of, path, field, params = {}, more = {}) {
  const [state, set] = useState({ items: none, next: '', error: none, body: none });
  useEffect(() => {
    if (!path) return undefined;
    set(s => ({ ...s, items: null }));
    const read = async () => {
      const body = await get(path, params);
      return [{ type: 'list', items: field ? body[field] : body, next: body.next_cursor, body }];
    };
    const on = messages => {
      const m = messages.at(-1);
      if (m.type === 'error') set(s => ({ ...s, error: m.error, items: s.items ?? (m.error.status ? [] : null) }));
      else set({ items: m.items ?? [], next: m.next ?? m.next_cursor ?? '', error: null, body: m.body ?? null });
    };
    const { limit, cursor, ...rest } = /** @type {any} */ (params);
    const filter = { ...rest, ...more };
    for (const k of ['status', 'state']) filter[k] = filter[k] ? [filter[k]] : undefined;
    // A page behind the first is not carried by the socket.
    return watch({ of: cursor ? '' : of, filter, limit, poll: read, on });
  }, [of, path, JSON.stringify([params, more])]);
  return { ...state, again: refresh };
}

/** useGet reads something once, and again when a dependency changes. */
export function useGet(path, query, deps = []) {
  const [state, set] = useState({ value: none, error: none, loading: true });
  useEffect(() => {
    if (!path) { set({ value: null, error: null, loading: false }); return undefined; }
    const abort = new AbortController();
    get(path, query, { signal: abort.signal }).then(
      value => set({ value, error: null, loading: false }),
      error => error.name !== 'AbortError' && set({ value: null, error, loading: false }));
    return () => abort.abort();
  }, [path, JSON.stringify(query), ...deps]);
  return state;
}

/** rereadAfter is the least time between two calls of useReread. */
const rereadAfter = 1000;

/**
 * useReread reads something that the socket does not carry, and reads it again when something that it does carry has
 * changed: a page that nothing changes on asks for nothing.
 * @param {string} path
 * @param {object} query
 * @param {any[]} told  what the socket has told of
 */
export function useReread(path, query, told) {
  const [round, set] = useState(0), timer = useRef(0);
  useEffect(() => {
    timer.current ||= setTimeout(() => { timer.current = 0; set(n => n + 1); }, rereadAfter);
  }, told);
  useEffect(() => () => clearTimeout(timer.current), []);
  return useGet(path, query, [round]);
}
