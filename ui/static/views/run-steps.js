// The first form of a run's log: a row for each step, tool, model call, wait, child and attempt.
import { html, useState, useMemo, useRef, useLayoutEffect, cls, none } from '../lib.js';
import { duration, ms, count, beginning, short, ended, stateNames } from '../format.js';
import { folded, totalOf } from '../steps.js';
import { Empty, Shape } from '../parts.js';
import { Safe } from '../safe.js';
import { useWindow } from '../window.js';

/** rowHeight is that of a row, in pixels, as run.css has it. */
const rowHeight = 36;

const kinds = { step: 'step', model: 'model', tool: 'tool', wait: 'wait', child: 'run', attempt: 'attempt',
  message: 'message', note: 'note', fact: '', end: '', many: '' };

/** shapeOf is the shape of a row's state. */
export const shapeOf = state => (state === 'lost' ? 'failed' : state === 'satisfied' ? 'completed' : state);

/** usage writes tokens and cost. */
export const usageText = u => [u?.tokens && `${count(u.tokens)} tokens`, u?.cost && `$${u.cost.toFixed(
  u.cost < 0.01 ? 4 : 2)}`].filter(Boolean).join(' · ');

/** told is a line about a row: its error, its value, or its text. */
export function told(row) {
  if (row.error) return `${row.error.code ?? 'error'}${row.error.message ? `: ${row.error.message}` : ''}`;
  if (row.kind === 'many') return '';
  const v = row.value !== undefined && row.kind !== 'wait' ? row.value : row.text ?? row.input;
  if (row.kind === 'wait') {
    const d = row.value ?? {};
    return [d.decision, d.by?.name && `by ${d.by.name}`, d.comment, !d.decision && d.outcome].filter(Boolean).join(' ');
  }
  if (typeof v === 'string') return v;
  // The answer of a model is what it says, or what it calls.
  const said = v?.response?.message;
  if (said) return said.content || (said.tool_calls ?? []).map(c => `calls ${c.name}`).join(', ');
  return v === undefined || v === null ? '' : beginning(v, 200).replace(/\s+/g, ' ');
}

function StepRow({ row, depth, begin, chosen, pick, open, toggle }) {
  const u = usageText(row.usage), bad = row.error || row.state === 'failed' || row.state === 'lost';
  const many = row.kind === 'many', took = row.to - row.from;
  return html`<button type="button" data-row data-step=${row.id} aria-expanded=${many ? open : undefined}
      aria-pressed=${many ? undefined : chosen} class=${cls('step', chosen && 'chosen', bad && 'is-bad', depth
        && 'inner',
        'of-' + row.kind)} onClick=${() => (many ? toggle(row.id) : pick(row))}>
    <span class=${'text-' + shapeOf(row.state)} title=${stateNames[row.state] ?? row.state}><${Shape}
        state=${shapeOf(row.state)} /><span class="offscreen">${stateNames[row.state] ?? row.state}</span></span>
    <span class="step-name">${many && html`<span class="fold" aria-hidden="true">${open ? '▾' : '▸'}</span>
        ${count(row.n)} × `}<${Safe} text=${row.kind === 'end' ? stateNames[row.state] : row.name} max=${120} />
      ${kinds[row.kind] && html` <span class="step-kind">${kinds[row.kind]}</span>`}
      ${row.run_id && html` <span class="id dim">${short(row.run_id)}</span>`}</span>
    <span class="step-text"><${Safe} text=${told(row).slice(0, 400).replace(/\n/g, ' ')} max=${200} /></span>
    <span class="step-more">${row.tries > 1 ? `${row.tries} tries` : ''}${row.tries > 1 && u ? ' · ' : ''}${u}</span>
    <span class="step-took">${took > 0 || row.state === 'running' ? (row.upTo ? '≤ ' : '') + duration(took) : ''}</span>
    <span class="step-at dim">+${duration(row.from - begin)}</span></button>`;
}

/** Forms chooses between the two forms of the log. */
export const Forms = ({ lines, to }) => html`<div class="forms" role="group" aria-label="Form of the log">
  <button type="button" aria-pressed=${!lines} onClick=${() => to('')}>Steps</button>
  <button type="button" aria-pressed=${lines} onClick=${() => to('lines')}>Lines</button></div>`;

const wanted = { all: () => true, trouble: r => r.error || ['failed', 'lost', 'timeout', 'held'].includes(r.state) };

/** summaryOf says how many rows of each kind there are, and what they have used. */
function summaryOf(rows) {
  const of = (kind, one, more) => {
    const n = rows.filter(r => r.kind === kind).length;
    return n && `${count(n)} ${n === 1 ? one : more}`;
  };
  return [of('step', 'step', 'steps'), of('model', 'model call', 'model calls'), of('tool', 'tool', 'tools'),
    of('wait', 'wait', 'waits'), of('child', 'child', 'children'),
      usageText(totalOf(rows))].filter(Boolean).join(' · ');
}

/**
 * Steps shows the rows of a run.
 * @param {{run: any, rows: any[], selected: string, pick: (row: any) => void, log: any, form: any}} p
 */
export function Steps({ run, rows, selected, pick, log, form }) {
  const [text, setText] = useState(''), [only, setOnly] = useState(false), [open, setOpen] = useState(new Set());
  const box = useRef(none), atEnd = useRef(true);
  const toggle = id => setOpen(o => { const s = new Set(o); s.has(id) ? s.delete(id) : s.add(id); return s; });
  const shown = useMemo(() => {
    const low = text.toLowerCase();
    let list = only ? rows.filter(wanted.trouble) : rows;
    if (low) list = list.filter(r => `${r.name} ${r.kind} ${r.run_id ?? ''} ${told(r)}`.toLowerCase().includes(low));
    const out = [];
    for (const row of low || only ? list : folded(list)) {
      // A group is open if it was opened, or has what is selected.
      const isOpen = row.inner && (open.has(row.id) !== row.inner.some(r => r.id === selected));
      out.push({ row, depth: 0, isOpen });
      if (isOpen) for (const r of row.inner) out.push({ row: r, depth: 1 });
    }
    return out;
  }, [rows, text, only, open, selected]);
  const win = useWindow(shown.length, rowHeight);
  // A list that grows stays at its end, unless somebody has scrolled up.
  useLayoutEffect(() => {
    const e = box.current;
    if (e && atEnd.current && !ended(run.state)) e.scrollTop = e.scrollHeight;
  }, [shown.length]);
  // A link leads to a step: it is scrolled to once, when it is there.
  const led = useRef('');
  useLayoutEffect(() => {
    const i = shown.findIndex(s => s.row.id === selected);
    if (i < 0 || led.current === selected || !box.current) return;
    led.current = selected;
    const e = box.current, top = i * rowHeight;
    if (top < e.scrollTop || top > e.scrollTop + e.clientHeight - rowHeight) e.scrollTop = top - e.clientHeight / 3;
  }, [shown, selected]);
  const begin = ms(run.created_at);
  return html`<div class="stack"><div class="filters">${form}
      <form role="search" onSubmit=${e => e.preventDefault()}>
        <input type="search" aria-label="Search the steps" placeholder="Search the steps" value=${text} onInput=${e =>
          setText(e.currentTarget.value)} /></form>
      <button type="button" aria-pressed=${only} onClick=${() => setOnly(!only)}>Trouble only</button>
      <span class="sub">${summaryOf(rows)}</span></div>
    ${log && log.events.length > 0 && !log.whole && html`<p class="sub">Steps from line ${count(log.first)} on. <button
        type="button" class="linkish" onClick=${() => log.older()}>Read older lines</button></p>`}
    ${shown.length === 0 ? html`<${Empty} title=${rows.length ? 'No step matches' : 'No steps yet'}>
        ${rows.length ? 'Search for something else, or look at the lines.'
          : 'Each step, tool, wait, child and attempt of the run is a row here.'}<//>`
    : html`<div class="steps" ref=${box} role="group" aria-label="Steps of the run" onScroll=${e => {
      const b = e.currentTarget;
      atEnd.current = b.scrollHeight - b.scrollTop - b.clientHeight < 40;
      if (win.long) win.look(b);
    }}>${win.before}${shown.slice(win.first, win.last).map(({ row, depth, isOpen }) => html`<${StepRow}
        key=${(depth ? 'i' : '') + row.id} row=${row} depth=${depth} begin=${begin} chosen=${row.id === selected}
          pick=${pick}
        open=${isOpen} toggle=${toggle} />`)}${win.after}</div>`}</div>`;
}
