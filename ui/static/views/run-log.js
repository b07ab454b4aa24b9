// The log of a run: filters, a search, and following its end. Rows outside of the window are not in
// the page, so that a log of 20 000 lines scrolls like a short one. Of a long log the newest lines are shown
// first, and older ones are read when somebody scrolls to them.
import { html, useState, useRef, useEffect, useLayoutEffect, useMemo, cls, none } from '../lib.js';
import { clock, duration, ms, json, count, size } from '../format.js';
import { maxLines, allLines } from '../log.js';
import { Empty, toast } from '../parts.js';
import { explain } from '../api.js';
import { Safe, visible } from '../safe.js';
import { useWindow } from '../window.js';

/** @type {Record<string, [string, (type: string) => boolean]>} */
const groups = {
  life: ['Life', t =>
    t.startsWith('run:') && !/^run:(heartbeat|progress|slow|stale|late_result)$/.test(t)],
  steps: ['Steps', t => t.startsWith('worker:tool') || t.startsWith('wait:')],
  children: ['Children', t => /^worker:(spawned|started|completed)/.test(t)],
  text: ['Text', t => t === 'llm:delta' || t === 'message:appended' || t.startsWith('x:')],
  beats: ['Signs of life', t => t === 'run:heartbeat' || t === 'run:progress' || t === 'run:slow' || t === 'run:stale'],
};
const bad = /failed|timed_out|dead_lettered|reclaimed|retrying|slow|stale|held/;
const rowHeight = 29;

/** maxSummary is how much of a line is shown and searched. */
const maxSummary = 20_000;
const summaries = new WeakMap();

/** summary is a line about an event, made once. */
export function summary(e) {
  let text = summaries.get(e);
  if (text === undefined) summaries.set(e, text = told(e).slice(0, maxSummary));
  return text;
}

/** apart tells whether a value is kept beside the log because it is large. */
export const apart = d => typeof d?.ref === 'string' && d.ref.startsWith('sha256:') && typeof d.size === 'number';

function told(e) {
  const d = e.data;
  if (d === null || d === undefined) return '';
  if (typeof d !== 'object') return String(d);
  if (apart(d)) return `${size(d.size)} of data, too large for a line of the log`;
  if (typeof d.text === 'string') return d.text;
  if (e.type === 'x:output' && typeof d.data === 'string') return d.data;
  const parts = [];
  for (const [k, v] of Object.entries(d)) {
    if (k === 'run_id' || k === 'attach_url' || v === '' || v === null) continue;
    const text = typeof v === 'object' ? (v.message ? `${v.code}: ${v.message}` : json(v).replace(/\s+/g, ' '))
      : String(v);
    parts.push(`${k.replace(/_/g, ' ')} ${k.endsWith('_at') ? clock(ms(v)) : text}`);
  }
  return parts.join(' · ');
}

/** Download saves all lines of a log, also those that the page does not have. */
function Download({ run }) {
  const [upto, tell] = useState(-1), over = useRef(false);
  useEffect(() => () => { over.current = true; }, []);
  const save = async () => {
    const parts = [];
    tell(0);
    try {
      await allLines(run.run_id, (events, last) => {
        parts.push(events.map(e => JSON.stringify(e) + '\n').join(''));
        tell(last);
        return !over.current;
      });
    } catch (e) { toast(`The log could not be read: ${explain(e)}`, true); return; } finally { tell(-1); }
    if (over.current) return;
    const a = document.createElement('a');
    a.href = URL.createObjectURL(new Blob(parts, { type: 'application/x-ndjson' }));
    a.download = `${run.run_id}.jsonl`;
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 1000);
  };
  return html`<button type="button" disabled=${upto >= 0} onClick=${save}>
    ${upto < 0 ? 'Download' : `Reading line ${count(upto)}`}</button>`;
}

/** nearTop is how close to its first row a log is scrolled before older lines are read, in pixels. */
const nearTop = 600;

/**
 * Log shows the log of a run.
 * @param {{run: any, log: import('../log.js').RunLog, version: number, picked: any, pick: (p: any) => void,
 *   form: any}} p
 */
export function Log({ run, log, version, picked, pick, form }) {
  const { events } = log;
  const [off, setOff] = useState(new Set(['beats']));
  const [only, setOnly] = useState(false), [text, setText] = useState(''), [follow, setFollow] = useState(false);
  const box = useRef(none), was = useRef({ first: 0, rows: 0 });
  const shown = useMemo(() => events.filter(e => {
    if (only) return bad.test(e.type);
    for (const [k, [, match]] of Object.entries(groups)) if (off.has(k) && match(e.type)) return false;
    return true;
  }).filter(e => !text || (e.type + ' ' + summary(e)).toLowerCase().includes(text.toLowerCase())),
    [events, version, off, only, text]);
  const win = useWindow(shown.length, rowHeight, 400), { long } = win;
  useEffect(() => { if (follow && box.current) box.current.scrollTop = box.current.scrollHeight; },
    [version, follow]);
  // Lines that come or go above leave what is read where it is. A log without its beginning is shown at its end.
  useLayoutEffect(() => {
    const e = box.current, before = was.current, first = shown[0]?.seq ?? 0;
    was.current = { first, rows: shown.length };
    if (!e || !first || first === before.first) return;
    if (!before.first) { if (!log.whole) e.scrollTop = e.scrollHeight; return; }
    const at = shown.findIndex(one => one.seq >= before.first);
    if (at > 0) e.scrollTop += at * rowHeight;
    win.look(e);
  }, [shown]);
  const scrolled = e => {
    win.look(e.currentTarget);
    if (e.currentTarget.scrollTop < nearTop) log.older();
  };
  const begin = ms(run.created_at);
  return html`<div class="stack"><div class="filters">${form}
      <form role="search" onSubmit=${e => e.preventDefault()}>
        <input type="search" aria-label="Search the log" placeholder="Search the log" value=${text} onInput=${e =>
          setText(e.currentTarget.value)} /></form>
      ${Object.entries(groups).map(([k, [name]]) =>
          html`<button type="button" key=${k} aria-pressed=${!off.has(k) && !only} onClick=${() =>
              { setOnly(false); setOff(o => { const s = new Set(o); s.has(k) ? s.delete(k) : s.add(k); return s; }); }}>
                ${name}</button>`)}
      <button type="button" aria-pressed=${only} onClick=${() => setOnly(!only)}>Trouble only</button>
      <button type="button" aria-pressed=${follow} onClick=${() => setFollow(!follow)}>Follow</button>
      <${Download} run=${run} /></div>
    ${events.length > 0 && !log.whole && html`<p class="sub">${log.full
      ? `The page shows ${count(maxLines)} lines at most. Download has all.`
      : html`From line ${count(log.first)} on. <button type="button" class="linkish"
          onClick=${() => log.older()}>Show older lines</button>`}</p>`}
    ${shown.length === 0 ? html`<${Empty} title=${events.length ? 'No line matches' : 'No lines yet'}>
        ${events.length ? 'Turn on more kinds of lines above, or search for something else.'
          : 'Each thing that happens to a run is a line here.'}<//>`
    : html`<div class=${cls('log', long && 'fixed')} ref=${box} role="log" aria-label="Log of the run" tabindex="0"
        onScroll=${long ? scrolled : undefined}>
      ${win.before}${shown.slice(win.first, win.last).map(e => html`<div key=${e.seq} data-row tabindex="-1"
          class=${cls('log-row', bad.test(e.type) && 'is-bad', e.type === 'run:completed' && 'is-good',
              /deferred|reattached/.test(e.type) && 'is-own', picked?.run === run.run_id &&
                picked.event?.seq === e.seq && 'chosen')}
          onClick=${() => pick({ run: run.run_id, id: 'line:' + e.seq })} onKeyDown=${k =>
            { if (k.key === 'Enter') pick({ run: run.run_id, id: 'line:' + e.seq }); }}>
        <span class="seq">${e.seq}</span>
        <time datetime=${e.at} title=${clock(ms(e.at))}>+${duration(ms(e.at) - begin)}</time>
        <span class="type">${visible(e.type)}</span>
        <span class="data"><${Safe} text=${long ? summary(e).slice(0, 140).replace(/\n/g, ' ') : summary(e)}
            max=${400} /></span></div>`)}
      ${win.after}</div>
      <p class="sub">${count(shown.length)} of ${count(events.length)} lines${log.whole ? ''
        : html`, of ${count(run.last_seq)} in all`}</p>`}</div>`;
}
