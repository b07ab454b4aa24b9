// Live state. One WebSocket carries all that the page watches (docs/streaming.md). Each watch also
// says how to read the same over REST: while there is no socket, or it is silent for a minute, the
// page polls instead, and says so.
//
// Messages are collected and handed over once a frame, so that 500 of them in a second cost one
// rendering each 16 ms.
import { signal, useEffect, useRef, useState, batch, none } from './lib.js';
import { get, parse, session } from './api.js';
import { watchTenant } from './tenants.js';


/**
 * @typedef {Object} Watch
 * @property {string} of             runs, counts, workers, queues, approvals, …
 * @property {object} [filter]
 * @property {string[]} [ids]
 * @property {number} [limit]
 * @property {string} [cursor]
 * @property {boolean} [events]
 * @property {() => object} [after]  the last line that is known of each run, at the time of a reconnect
 * @property {(messages: object[]) => void} on   takes the messages of one frame
 * @property {() => Promise<object[]>} poll      reads the same over REST, as messages
 */

/** How the page gets its news: connecting, live, polling (no socket), or silent (polling, the socket says nothing). */
export const connection = signal('connecting');

// Tests give another bound of silence in the address, in milliseconds.
const silence = Number(new URLSearchParams(location.search).get('silence') ?? 60_000);
const pollEvery = 2000, probeAfter = silence * 0.4, reconnectMax = 20_000;
/** @type {Map<string, Watch & {pending: object[], busy?: boolean, refused?: boolean}>} */
const watches = new Map();
/** @type {WebSocket|null} */
let socket = null;
let heard = 0, probed = 0, failures = 0, nextTry = 0, numbered = 0, frame = 0, lastPoll = 0;

function request(id, w) {
  return JSON.stringify({ type: 'watch', id, of: w.of, filter: w.filter, ids: w.ids, limit: w.limit,
    cursor: w.cursor, events: w.events, after: w.after?.(), tenant: watchTenant(w.of, w.ids) });
}

function connect() {
  const at = new URL('/api/v1/ws', location.href);
  at.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:';
  at.searchParams.set('watch', 'none');
  const s = socket = new WebSocket(at);
  s.onopen = () => {
    heard = Date.now();
    for (const [id, w] of watches) s.send(request(id, w));
  };
  s.onmessage = ({ data }) => {
    if (s !== socket) return;
    let m;
    try { m = parse(data); } catch { return; }
    heard = Date.now();
    failures = 0;
    if (connection.value !== 'live') connection.value = 'live';
    if (m.type === 'error' && m.id === 'probe') return;
    const w = watches.get(m.id);
    if (!w) return;
    // A watch that the server refuses is polled, which also says why.
    if (m.type === 'error') { w.refused = true; poll(m.id, w); return; }
    push(w, m);
  };
  s.onclose = () => {
    if (s !== socket) return;
    socket = null;
    failures++;
    nextTry = Date.now() + Math.min(reconnectMax, 500 * 2 ** failures) * (0.5 + Math.random() / 2);
    if (connection.value !== 'polling') connection.value = 'polling';
  };
}

function push(w, m) {
  w.pending.push(m);
  frame ||= document.hidden ? setTimeout(flush, 250) : requestAnimationFrame(flush);
}

function flush() {
  frame = 0;
  batch(() => {
    for (const w of watches.values()) {
      if (w.pending.length) w.on(w.pending.splice(0));
    }
  });
}

async function poll(id, w) {
  // All tenants together are shown by the socket alone.
  if (w.busy || (watchTenant(w.of, w.ids) === '*' && !w.refused)) return;
  w.busy = true;
  try {
    for (const m of await w.poll()) if (watches.get(id) === w) push(w, m);
  } catch (e) {
    if (watches.get(id) === w && e.name !== 'AbortError') push(w, { type: 'error', error: e });
  } finally {
    w.busy = false;
  }
}

// The heart of it, four times a second: reconnects, notices silence, and polls meanwhile.
function tick() {
  if (!session.value || document.hidden) return;
  const t = Date.now();
  if (!socket && t >= nextTry) connect();
  if (socket?.readyState === WebSocket.OPEN) {
    // A quiet server says nothing. A question that it has to answer tells quiet from dead.
    if (t - heard > probeAfter && t - probed > probeAfter) {
      probed = t;
      socket.send(JSON.stringify({ type: 'watch', id: 'probe', of: 'counts' }));
    }
    if (t - heard > silence) {
      socket.close();
      socket = null;
      nextTry = t + reconnectMax;
      connection.value = 'silent';
    }
  }
  if (t - lastPoll >= pollEvery) {
    lastPoll = t;
    for (const [id, w] of watches) if (w.refused || connection.value !== 'live') poll(id, w);
  }
}
setInterval(tick, 250);
document.addEventListener('visibilitychange', () => { if (!document.hidden) { nextTry = 0; tick(); } });

// Another login has another socket.
session.subscribe(s => {
  if (!s && socket) { const old = socket; socket = null; old.close(); connection.value = 'connecting'; }
  if (s) { nextTry = 0; failures = 0; }
});

/**
 * watch begins to watch, and returns a function that ends it. The first answer comes over REST where
 * there is no socket yet.
 * @param {Watch} w
 */
export function watch(w) {
  const id = `w${++numbered}`;
  watches.set(id, { ...w, pending: [] });
  // A socket that has just opened has said nothing yet, and was not told of this watch: both ways are taken then.
  if (socket?.readyState === WebSocket.OPEN) socket.send(request(id, w));
  if (connection.value !== 'live') poll(id, watches.get(id));
  return () => {
    watches.delete(id);
    if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type: 'unwatch', id }));
  };
}

/** refresh reads everything that is shown once more, such as after a change of one's own. */
export function refresh() {
  for (const [id, w] of watches) poll(id, w);
}

const newestFirst = (a, b) => (a.run_id < b.run_id ? 1 : -1);

/** asQuery is a filter as parameters of GET /runs. */
export function asQuery(filter) {
  const q = {};
  for (const [k, v] of Object.entries(filter)) {
    if (k === 'metadata') for (const [name, value] of Object.entries(v)) q['metadata.' + name] = value;
    else q[k] = Array.isArray(v) ? v.join(',') : v;
  }
  return q;
}

/** rowsPerFrame is how many rows of a list are drawn anew in one frame: as many as take some 10 ms. */
const rowsPerFrame = 6;

/**
 * partly is the list to draw in this frame on the way from one list to another: at most rowsPerFrame rows of it
 * are new or have changed, the oldest first. The others follow in the next frames, so that no task of the page
 * takes long however much has changed. It returns wanted itself if that can be drawn at once.
 * @param {any[]|null} drawn
 * @param {any[]} wanted
 * @param {number} limit
 */
export function partly(drawn, wanted, limit) {
  if (!drawn) return wanted;
  const old = new Map(drawn.map(r => [r.run_id, r]));
  let left = rowsPerFrame, cut = false;
  const list = [];
  for (const row of wanted.toReversed()) {
    const before = old.get(row.run_id);
    if (before === row || left > 0) { if (before !== row) left--; list.push(row); }
    else { cut = true; if (before) list.push(before); }
  }
  if (!cut) return wanted;
  // Rows that will go stay until others take their place, so that the list does not shrink meanwhile.
  const kept = new Set(wanted.map(r => r.run_id));
  const going = drawn.filter(r => !kept.has(r.run_id)).slice(0, Math.max(0, limit - list.length));
  return [...list, ...going].sort(newestFirst);
}

/**
 * useRuns watches a page of runs. While held, changes are counted and not shown.
 * @param {object} filter
 * @param {{limit?: number, cursor?: string, held?: boolean}} o
 */
export function useRuns(filter, { limit = 50, cursor = '', held = false } = {}) {
  const [state, set] = useState({ rows: /** @type {any[]|null} */ (null), next: '', error: null });
  const key = JSON.stringify([filter, limit, cursor]);
  const rows = useRef(new Map()), next = useRef(''), waiting = useRef(0), hold = useRef(held);
  const [news, setNews] = useState(0);
  const drawn = useRef(/** @type {any[]|null} */ (null)), later = useRef(0);
  const show = error => {
    const wanted = [...rows.current.values()].sort(newestFirst);
    drawn.current = partly(drawn.current, wanted, limit);
    set({ rows: drawn.current, next: next.current, error });
    if (drawn.current !== wanted) later.current ||= requestAnimationFrame(() => { later.current = 0; show(error); });
  };
  useEffect(() => {
    hold.current = held;
    if (!held && state.rows) { waiting.current = 0; setNews(0); show(null); }
  }, [held]);
  useEffect(() => {
    rows.current = new Map();
    drawn.current = null;
    set(s => ({ ...s, rows: null, error: null }));
    const stop = watch({
      of: 'runs', filter, limit, cursor: cursor || undefined, events: false,
      poll: async () => [{ type: 'snapshot', ...await get('/runs', { ...asQuery(filter), limit, cursor }) }],
      on(messages) {
        let error = null;
        for (const m of messages) {
          if (m.type === 'snapshot') {
            rows.current = new Map((m.runs ?? []).map(r => [r.run_id, r]));
            next.current = m.next_cursor ?? '';
          } else if (m.type === 'error') {
            error = m.error;
          } else {
            for (const c of m.changes ?? [m]) {
              waiting.current++;
              if (c.type === 'gone' || c.left || c.why) rows.current.delete(c.run_id);
              else if (c.run) rows.current.set(c.run_id, c.run);
            }
            if (rows.current.size > limit) {
              const extra = [...rows.current.values()].sort(newestFirst).slice(limit);
              for (const r of extra) rows.current.delete(r.run_id);
              next.current ||= [...rows.current.keys()].sort()[0];
            }
          }
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
 * @param {string} of  its name on the socket; empty: it is only polled
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
    if (of) {
      const { limit, cursor, ...rest } = params;
      const filter = { ...rest, ...more };
      for (const k of ['status', 'state']) filter[k] = filter[k] ? [filter[k]] : undefined;
      return watch({ of, filter, limit, cursor, poll: read, on });
    }
    // A list that the socket does not carry is read every few seconds.
    let stop = false, timer = 0;
    const again = async () => {
      if (!document.hidden || timer === 0) {
        try { const m = await read(); if (!stop) on(m); } catch (e) { if (!stop) on([{ type: 'error', error: e }]); }
      }
      if (!stop) timer = setTimeout(again, 3000);
    };
    again();
    return () => { stop = true; clearTimeout(timer); };
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
