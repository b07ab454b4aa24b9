// How instants, durations, sizes and ids are written.
import { signal } from './lib.js';

/** now rises every second, so that ages count on while the page is seen. */
export const now = signal(Date.now());
setInterval(() => { if (!document.hidden) now.value = Date.now(); }, 1000);

/** ms of an instant of the API. */
export const ms = instant => (instant ? Date.parse(instant) : NaN);

/** duration writes milliseconds in the two largest units: 1h 05m, 3.2s, 240ms. */
export function duration(d) {
  if (d === undefined || d === null || Number.isNaN(d)) return '';
  const minus = d <= -1000 ? '−' : ''; // clocks differ a little
  d = d < 0 && !minus ? 0 : Math.abs(d);
  if (d < 1000) return `${minus}${Math.round(d)}ms`;
  if (d < 60_000) return `${minus}${(d / 1000).toFixed(d < 9950 ? 1 : 0)}s`;
  const s = Math.floor(d / 1000), m = Math.floor(s / 60), h = Math.floor(m / 60), days = Math.floor(h / 24);
  if (h < 1) return `${minus}${m}m ${String(s % 60).padStart(2, '0')}s`;
  if (days < 1) return `${minus}${h}h ${String(m % 60).padStart(2, '0')}m`;
  return `${minus}${days}d ${String(h % 24).padStart(2, '0')}h`;
}

/** age is how long ago an instant was, in one unit: 12s, 4m, 3h, 2d. */
export function age(d) {
  if (Number.isNaN(d)) return '';
  const s = Math.max(0, Math.round(d / 1000));
  if (s < 60) return `${s}s`;
  if (s < 3600) return `${Math.floor(s / 60)}m`;
  if (s < 86400) return `${Math.floor(s / 3600)}h`;
  return `${Math.floor(s / 86400)}d`;
}

/** time of day with milliseconds. */
export function clock(t) {
  const d = new Date(t);
  return d.toLocaleTimeString('en-GB', { hour12: false }) + '.' + String(d.getMilliseconds()).padStart(3, '0');
}

/** instant as a person reads it, in local time. */
export const instant = t => (t ? new Date(t).toLocaleString('en-GB', {
  year: 'numeric', month: 'short', day: '2-digit', hour: '2-digit', minute: '2-digit', second: '2-digit' }) : '');

/** size writes a number of bytes. */
export function size(n) {
  if (n < 1024) return `${n} B`;
  if (n < 1024 ** 2) return `${(n / 1024).toFixed(1)} KB`;
  if (n < 1024 ** 3) return `${(n / 1024 ** 2).toFixed(1)} MB`;
  return `${(n / 1024 ** 3).toFixed(1)} GB`;
}

/** count writes a number with separators. */
export const count = n => (n ?? 0).toLocaleString('en');

/** short is the end of a run's id: ids of runs that began together differ there. */
export const short = id => (id ? id.slice(-8) : '');

/** json writes a value as indented JSON. */
export const json = v => JSON.stringify(v, null, 2) ?? '';

/**
 * beginning is the beginning of a value as indented JSON: some more than max characters of it, if it has more. A
 * value of a megabyte costs no more than what is shown of it.
 * @param {any} value
 * @param {number} max
 */
export function beginning(value, max) {
  let out = '';
  const write = (v, indent) => {
    if (out.length > max) return;
    const entries = Array.isArray(v) ? v : v && typeof v === 'object' && !v.toJSON ? Object.keys(v) : null;
    if (!entries?.length) { out += json(v); return; }
    const [open, close] = entries === v ? '[]' : '{}';
    out += open;
    for (let i = 0; i < entries.length && out.length <= max; i++) {
      out += `${i ? ',' : ''}\n${indent}  ${entries === v ? '' : JSON.stringify(entries[i]) + ': '}`;
      write(entries === v ? v[i] : v[entries[i]], indent + '  ');
    }
    if (out.length <= max) out += `\n${indent}${close}`;
  };
  write(value, '');
  return out;
}

/** names of states for people. */
export const stateNames = {
  queued: 'Queued', dispatched: 'Dispatched', running: 'Running', suspended: 'Waiting', deferred: 'Deferred',
  completed: 'Completed', failed: 'Failed', timeout: 'Timed out', cancelled: 'Cancelled', held: 'On hold',
};

/** ended tells whether a state is final. */
export const ended = state => ['completed', 'failed', 'timeout', 'cancelled'].includes(state);

/** textOf finds the text of a message's content: a string, {text}, or parts. */
export function textOf(content) {
  if (typeof content === 'string') return content;
  if (Array.isArray(content)) return content.map(textOf).filter(Boolean).join('\n');
  if (content && typeof content === 'object') {
    if (typeof content.text === 'string') return content.text;
    if (content.content !== undefined) return textOf(content.content);
    return json(content);
  }
  return content === undefined || content === null ? '' : String(content);
}

/** span is a length of time of the server without the parts that are nothing: 1h and not 1h0m0s. */
export const span = text => String(text).replace(/(?<=[hm])0s$/, '').replace(/(?<=h)0m$/, '');
