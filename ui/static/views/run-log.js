// The log of a run: filters, a search, and following its end. Rows outside of the window are not in
// the page, so that a log of 20 000 lines scrolls like a short one.
import { html, useState, useRef, useEffect, useMemo, cls, none } from '../lib.js';
import { clock, duration, ms, json, count, size } from '../format.js';
import { url } from '../api.js';
import { Empty } from '../parts.js';
import { Safe, visible } from '../safe.js';

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
const rowHeight = 29, window_ = 80;

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

export function Log({ run, events, cut, picked, pick }) {
  const [off, setOff] = useState(new Set(['beats']));
  const [only, setOnly] = useState(false), [text, setText] = useState(''), [follow, setFollow] = useState(false),
    [top, setTop] = useState(0);
  const box = useRef(none);
  const shown = useMemo(() => events.filter(e => {
    if (only) return bad.test(e.type);
    for (const [k, [, match]] of Object.entries(groups)) if (off.has(k) && match(e.type)) return false;
    return true;
  }).filter(e => !text || (e.type + ' ' + summary(e)).toLowerCase().includes(text.toLowerCase())),
    [events, events.length, off, only, text]);
  useEffect(() => { if (follow && box.current) box.current.scrollTop = box.current.scrollHeight; },
    [shown.length, follow]);
  const begin = ms(run.created_at);
  // Long logs: only a window of rows is in the page, between two empty blocks.
  const long = shown.length > 400;
  const first = long ? Math.max(0, Math.floor(top / rowHeight) - 20) : 0;
  const rows = long ? shown.slice(first, first + window_) : shown;
  const save = () => {
    const blob = new Blob([events.map(e => JSON.stringify(e)).join('\n')], { type: 'application/x-ndjson' });
    const a = document.createElement('a');
    a.href = URL.createObjectURL(blob);
    a.download = `${run.run_id}.jsonl`;
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 1000);
  };
  return html`<div class="stack"><div class="filters">
      <form role="search" onSubmit=${e => e.preventDefault()}>
        <input type="search" aria-label="Search the log" placeholder="Search the log" value=${text} onInput=${e =>
          setText(e.currentTarget.value)} /></form>
      ${Object.entries(groups).map(([k, [name]]) =>
          html`<button type="button" key=${k} aria-pressed=${!off.has(k) && !only} onClick=${() =>
              { setOnly(false); setOff(o => { const s = new Set(o); s.has(k) ? s.delete(k) : s.add(k); return s; }); }}>
                ${name}</button>`)}
      <button type="button" aria-pressed=${only} onClick=${() => setOnly(!only)}>Trouble only</button>
      <button type="button" aria-pressed=${follow} onClick=${() => setFollow(!follow)}>Follow</button>
      <button type="button" onClick=${save}>Download</button></div>
    ${cut && html`<p class="sub">Older lines are left out. All are at <a
        href=${url(`/runs/${run.run_id}/events`)}>the API</a>.</p>`}
    ${shown.length === 0 ? html`<${Empty} title=${events.length ? 'No line matches' : 'No lines yet'}>
        ${events.length ? 'Turn on more kinds of lines above, or search for something else.'
          : 'Each thing that happens to a run is a line here.'}<//>`
    : html`<div class=${cls('log', long && 'fixed')} ref=${box} role="log" aria-label="Log of the run" tabindex="0"
        onScroll=${e => { if (long) setTop(e.currentTarget.scrollTop); }}>
      ${first > 0 && html`<div style=${{ height: first * rowHeight + 'px' }}></div>`}
      ${rows.map(e => html`<div key=${e.seq} data-row tabindex="-1"
          class=${cls('log-row', bad.test(e.type) && 'is-bad', e.type === 'run:completed' && 'is-good',
              /deferred|reattached/.test(e.type) && 'is-own', picked?.run === run.run_id &&
                picked.event.seq === e.seq && 'chosen')}
          onClick=${() => pick({ run: run.run_id, event: e })} onKeyDown=${k =>
            { if (k.key === 'Enter') pick({ run: run.run_id, event: e }); }}>
        <span class="seq">${e.seq}</span>
        <time datetime=${e.at} title=${clock(ms(e.at))}>+${duration(ms(e.at) - begin)}</time>
        <span class="type">${visible(e.type)}</span>
        <span class="data"><${Safe} text=${long ? summary(e).slice(0, 140).replace(/\n/g, ' ') : summary(e)}
            max=${400} /></span></div>`)}
      ${long && first + window_ < shown.length &&
        html`<div style=${{ height: (shown.length - first - window_) * rowHeight + 'px' }}></div>`}</div>
      <p class="sub">${count(shown.length)} of ${count(events.length)} lines</p>`}</div>`;
}
