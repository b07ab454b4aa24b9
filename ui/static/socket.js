// The live connection: one WebSocket carries all that the page watches (docs/streaming.md). Each watch also
// says how to read the same over REST. While there is no socket, or it is silent for a minute, or the server
// refuses a watch, the page polls instead, and says so. This file alone knows whether the page is live.
//
// Messages are collected and handed over once a frame, so that 500 of them in a second cost one
// rendering each 16 ms.
import { signal, batch } from './lib.js';
import { parse, session, answering, isStill } from './api.js';
import { watchTenant } from './tenants.js';

/**
 * @typedef {Object} Watch
 * @property {string} of             runs, counts, workers, queues, approvals, …; empty: the socket does not carry
 *   it, so it is polled, and the page does not say that it is live
 * @property {object} [filter]
 * @property {string[]} [ids]
 * @property {number} [limit]
 * @property {string} [cursor]
 * @property {boolean} [events]
 * @property {() => object} [after]  the last line that is known of each run, at the time of a reconnect
 * @property {(messages: any[]) => void} on   takes the messages of one frame
 * @property {() => Promise<any[]>} poll      reads the same over REST, as messages
 */

/**
 * How the page gets its news: connecting; live; refused (the server did not take one of the watches, which is
 * polled); polling (no socket); or silent (polling, because the socket says nothing).
 */
export const connection = signal('connecting');

// Tests give another bound of silence in the address, in milliseconds.
const silence = Number(new URLSearchParams(location.search).get('silence') ?? 60_000);
const pollEvery = 2000, probeAfter = silence * 0.4, reconnectMax = 20_000, askAgainEvery = 30_000, hiddenEvery = 500;
/**
 * refused is when the server last refused a watch, and told counts its messages on the socket.
 * @type {Map<string, Watch & {pending: any[], busy: boolean, refused: number, told: number}>}
 */
const watches = new Map();
/** @type {WebSocket|null} */
let socket = null;
let spoken = false, heard = 0, probed = 0, failures = 0, nextTry = 0, numbered = 0, frame = 0, flushed = 0;
let lastPoll = 0;

function request(id, w) {
  return JSON.stringify({ type: 'watch', id, of: w.of, filter: w.filter, ids: w.ids, limit: w.limit,
    cursor: w.cursor, events: w.events, after: w.after?.(), tenant: watchTenant(w.of, w.ids) });
}

const send = text => { if (socket?.readyState === WebSocket.OPEN) socket.send(text); };

// judge says how the page gets its news. Without a socket that has spoken it is what the caller knows.
function judge(without = connection.value) {
  const refused = [...watches.values()].some(w => w.refused);
  connection.value = spoken ? (refused ? 'refused' : 'live') : without;
}

function connect() {
  const at = new URL('/api/v1/ws', location.href);
  at.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:';
  at.searchParams.set('watch', 'none');
  const s = socket = new WebSocket(at);
  s.onopen = () => {
    heard = Date.now();
    for (const [id, w] of watches) if (w.of) { w.refused = 0; s.send(request(id, w)); }
  };
  s.onmessage = ({ data }) => {
    if (s !== socket) return;
    let m;
    try { m = parse(data); } catch { return; }
    heard = Date.now();
    failures = 0;
    const w = watches.get(m.id), refused = m.type === 'error';
    const known = spoken && Boolean(w?.refused) === refused;
    spoken = true;
    if (w) w.refused = refused ? Date.now() : 0;
    if (!known) judge();
    if (!w) return; // the answer to a probe, or to a watch that has ended
    // A watch that the server refuses is polled, which also says why.
    if (refused) { poll(m.id, w); return; }
    w.told++;
    push(w, m);
  };
  s.onclose = () => {
    if (s !== socket) return;
    drop('polling');
    failures++;
    nextTry = Date.now() + Math.min(reconnectMax, 500 * 2 ** failures) * (0.5 + Math.random() / 2);
  };
}

// drop gives the socket up.
function drop(why) {
  const old = socket;
  socket = null;
  spoken = false;
  old?.close();
  judge(why);
}

function push(w, m) {
  w.pending.push(m);
  if (frame) return;
  // A page that is not in front draws no frames, and its timers are slow. Messages arrive all the same.
  if (!document.hidden) frame = requestAnimationFrame(flush);
  else if (Date.now() - flushed >= hiddenEvery) flush();
  else frame = setTimeout(flush, hiddenEvery);
}

function flush() {
  frame = 0;
  flushed = Date.now();
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
  const told = w.told;
  // An answer that was overtaken by a message of the socket is older than that.
  const current = () => watches.get(id) === w && w.told === told;
  try {
    for (const m of await w.poll()) if (current()) push(w, { ...m, polled: true });
  } catch (e) {
    if (current() && e.name !== 'AbortError') push(w, { type: 'error', error: e });
  } finally {
    w.busy = false;
  }
}

// The heart of it, four times a second: reconnects, notices silence, and polls meanwhile.
function tick() {
  if (!session.value || isStill()) return;
  const t = Date.now();
  if (!socket && t >= nextTry) connect();
  if (document.hidden) return; // timers are slow then, and nobody looks
  if (socket?.readyState === WebSocket.OPEN) {
    // A quiet server says nothing. A question that it has to answer tells quiet from dead.
    if (t - heard > probeAfter && t - probed > probeAfter) {
      probed = t;
      send(JSON.stringify({ type: 'unwatch', id: 'probe' }));
    }
    if (t - heard > silence) {
      drop('silent');
      nextTry = t + reconnectMax;
    }
  }
  if (t - lastPoll < pollEvery) return;
  lastPoll = t;
  for (const [id, w] of watches) {
    if (!spoken || w.refused) poll(id, w);
    if (spoken && w.refused && t - w.refused > askAgainEvery) { w.refused = t; send(request(id, w)); }
  }
}
setInterval(tick, 250);
document.addEventListener('visibilitychange', () => {
  // A frame that was asked for is not drawn any more.
  if (document.hidden && frame) { cancelAnimationFrame(frame); flush(); }
  if (!document.hidden) { heard = Math.max(heard, Date.now() - probeAfter); nextTry = 0; tick(); }
});

// A server that answers again takes a socket again.
answering.subscribe(yes => { if (yes && !socket) { nextTry = 0; failures = 0; } });

// Another login has another socket.
session.subscribe(s => {
  if (socket) drop('connecting');
  if (s) { nextTry = 0; failures = 0; }
});

/**
 * watch begins to watch, and returns a function that ends it. The first answer comes over REST where
 * there is no socket yet.
 * @param {Watch} w
 */
export function watch(w) {
  const id = `w${++numbered}`, mine = { ...w, pending: [], busy: false, refused: w.of ? 0 : Infinity, told: 0 };
  watches.set(id, mine);
  // A socket that has just opened has said nothing yet, and was not told of this watch: both ways are taken then.
  if (w.of) send(request(id, mine));
  else judge();
  if (!spoken || !w.of) poll(id, mine); // an exported file is asked once
  return () => {
    watches.delete(id);
    if (mine.refused) judge();
    else send(JSON.stringify({ type: 'unwatch', id }));
  };
}

/** refresh reads everything that is shown once more, such as after a change of one's own. */
export function refresh() {
  for (const [id, w] of watches) poll(id, w);
}
