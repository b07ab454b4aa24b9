// Parts that the views are made of.
import { html, useState, useEffect, useMemo, useRef, cls, signal, computed, useId, Component, none } from './lib.js';
import { now, ms, age, duration, ended, instant, short, stateNames, json, beginning, count } from './format.js';
import { explain, Exact } from './api.js';
import { Safe, visible } from './safe.js';
import { href } from './router.js';

// Each state has a shape beside its colour, drawn in a box of 12.
const shapes = {
  queued: html`<circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5"
      stroke-dasharray="2 1.6" />`,
  dispatched: html`<circle cx="6" cy="6" r="4.250" fill="none" stroke="currentColor" stroke-width="1.5" />
    <path d="M6 1.750a4.250 4.250 0 0 1 0 8.500z" fill="currentColor" />`,
  running: html`<path d="M3 1.800v8.400L10.200 6z" fill="currentColor" />`,
  suspended: html`<path d="M2.800 2h2.200v8H2.800zM7 2h2.200v8H7z" fill="currentColor" />`,
  deferred: html`<path d="M7.700 1.500a4.700 4.700 0 1 0 2.800 6.400A4.200 4.200 0 0 1 7.700 1.500z"
      fill="currentColor" />`,
  completed: html`<path d="M1.800 6.400l2.900 2.900 5.500-6" fill="none" stroke="currentColor" stroke-width="2"
      stroke-linecap="round" stroke-linejoin="round" />`,
  failed: html`<path d="M2.600 2.600l6.800 6.800M9.400 2.600l-6.800 6.800" stroke="currentColor" stroke-width="2"
      stroke-linecap="round" />`,
  timeout: html`<path d="M2.500 1.500h7L6 6l3.500 4.500h-7L6 6z" fill="none" stroke="currentColor" stroke-width="1.500"
      stroke-linejoin="round" />`,
  cancelled: html`<circle cx="6" cy="6" r="4.250" fill="none" stroke="currentColor" stroke-width="1.500" />
    <path d="M3.100 8.900l5.800-5.800" stroke="currentColor" stroke-width="1.500" />`,
  held: html`<path d="M6 1.300L11 10.300H1z" fill="none" stroke="currentColor" stroke-width="1.500"
      stroke-linejoin="round" /><path d="M6 5v2.500" stroke="currentColor" stroke-width="1.500" />`,
};

/** Shape is the shape of a state, for those who can't tell the colours apart. */
export const Shape = ({ state }) => html`<svg class="shape" viewBox="0 0 12 12" width="12" height="12"
    aria-hidden="true">${shapes[state] ?? shapes.queued}</svg>`;

/** State is the label of a state: shape, colour and name. */
export const State = ({ state, title }) =>
  html`<span class=${cls('state', 'is-' + state)} title=${title}><${Shape} state=${state} />
      ${stateNames[state] ?? state}</span>`;

/** statusOf is what a row shows of a run: on hold, deferred, or its state. */
export const statusOf = run => (run.hold ? 'held' : run.status ?? run.state);

/** Ticking is a text that depends on the time. It changes by itself: nothing around it is rendered again. */
export function Ticking({ text, of }) {
  return html`${useMemo(() => computed(() => text(now.value)), of)}`;
}

/** Ago is the age of an instant. It counts on. */
export function Ago({ at, suffix = ' ago' }) {
  if (!at) return html`<span class="dim">–</span>`;
  const t = ms(at);
  return html`<time datetime=${at} title=${instant(at)}>
    <${Ticking} text=${time => age(time - t) + suffix} of=${[at, suffix]} /></time>`;
}

/** Until is the time that is left until an instant. */
export function Until({ at }) {
  const t = ms(at);
  return html`<time datetime=${at} title=${instant(at)}><${Ticking} of=${[at]} text=${time =>
    (t >= time ? `in ${duration(t - time)}` : `${duration(time - t)} ago`)} /></time>`;
}

/** Took is how long a run took, or how long it lives already. */
export const Took = ({ run }) => (ended(run.state) ? duration(run.duration_ms) : html`<${Ticking}
  of=${[run.created_at]} text=${time => duration(time - ms(run.created_at))} />`);

/** RunLink is a link to a run, by the end of its id. */
export const RunLink = ({ id, query, children }) =>
  html`<a class="id" href=${href('/runs/' + id, query)} title=${id}>${children ?? short(id)}</a>`;

// marks are the parts that Json colours: texts, names, words and numbers.
const marks = /("(?:[^"\\\n]|\\.)*")(\s*:)?|\b(true|false|null)\b|-?\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b/g;

/** coloured splits JSON into parts with colours. */
function coloured(shown) {
  const parts = [];
  let from = 0;
  for (const m of shown.matchAll(marks)) {
    if (m[0].length > 20_000) continue;
    parts.push(shown.slice(from, m.index));
    const name = m[1] ? (m[2] ? 'j-key' : 'j-text') : m[3] ? 'j-word' : 'j-number';
    parts.push(html`<span class=${name}>${m[1] ?? m[0]}</span>`, m[2] ?? '');
    from = m.index + m[0].length;
    if (parts.length > 6000) break;
  }
  parts.push(shown.slice(from));
  return parts;
}

/** Json shows a value as JSON, with colours, cut where it is long. */
export function Json({ value, max = 20_000, label }) {
  const [all, showAll] = useState(false);
  const limit = all ? 400_000 : max;
  const text = useMemo(() => beginning(value, limit), [value, limit]);
  const parts = useMemo(() => coloured(visible(text.slice(0, limit))), [text, limit]);
  return html`<div class="json" role="group" aria-label=${label ?? 'JSON'}>
    <${CopyButton} text=${() => json(value)} />
    <pre class="text" tabindex="0"><bdi>${parts}</bdi>${text.length > limit && html`
      <button type="button" class="linkish" disabled=${all} onClick=${() => showAll(true)}>${all
        ? '… the rest can be copied' : 'show all of it'}</button>`}</pre>
  </div>`;
}

/** Value shows a value of an agent: text as text, everything else as JSON. */
export function Value({ value, label }) {
  if (value === undefined) return html`<p class="dim">nothing</p>`;
  if (typeof value === 'string') return html`<${Safe} text=${value} block max=${8000} />`;
  if (value instanceof Exact || typeof value !== 'object' || value === null) return html`<code>${String(value)}</code>`;
  return html`<${Json} value=${value} label=${label} />`;
}

/** copy puts a text on the clipboard. A page without https has none: it then uses a selection. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement('textarea');
    area.value = text;
    area.className = 'offscreen';
    document.body.append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  toast('Copied.');
}

export const CopyButton = ({ text, label = 'Copy', className = 'copy', about = undefined }) =>
  html`<button type="button" class=${className} aria-label=${about}
    onClick=${() => copy(typeof text === 'function' ? text() : text)}>
      ${label}</button>`;

/** Empty says what would be here, and how to get it. */
export const Empty = ({ title, children }) =>
  html`<div class="empty"><svg viewBox="0 0 64 24" width="96" height="36" aria-hidden="true">
      <path d="M4 7h56" stroke="var(--line-strong)" stroke-width="4" stroke-linecap="round" />
      <path d="M4 17h24M34 17h8M48 17h4" stroke="var(--accent)" stroke-width="4" stroke-linecap="round"
        opacity=".55" /></svg>
  <h2>${title}</h2><div>${children}</div></div>`;

/** Trouble shows an error, and what to do. */
export const Trouble = ({ error }) => error &&
  html`<p class="trouble" role="alert"><${Shape} state="failed" /> <span>
      ${explain(error)}${error.code && error.code !== 'no_answer' ? html` <code>${error.code}</code>` : ''}</span></p>`;

/** Loading is shown until there is an answer. */
export const Loading = () => html`<p class="loading" role="status">
    <span class="spinner" aria-hidden="true"></span> Loading</p>`;

/** Page is the frame of a view: its title, what can be done, and its content. */
export function Page({ title, name = title, sub, actions, children, crumbs = none }) {
  useEffect(() => { document.title = `${name} · Perdure`; }, [name]);
  return html`<div class="page"><header class="page-head">
      <div class="page-title">${crumbs && html`<p class="crumbs">${crumbs}</p>`}<h1>${title}</h1>
        ${sub && html`<p class="sub">${sub}</p>`}</div>
    ${actions && html`<div class="actions">${actions}</div>`}</header>${children}</div>`;
}

/** Card is a part of a page with a heading. */
export const Card = ({ title, actions, children, className }) => html`<section class=${cls('card', className)}>
  ${title && html`<header class="card-head"><h2>${title}</h2>
      ${actions && html`<div class="actions">${actions}</div>`}</header>`}${children}</section>`;

/** Facts is a list of names and values. Empty values are left out. */
export const Facts = ({ of }) => html`<dl class="facts">
    ${of.filter(([, v]) => v !== undefined && v !== null && v !== '' && v !== false)
  .map(([k, v]) => html`<div key=${k}><dt>${k}</dt><dd>${v}</dd></div>`)}</dl>`;

/** Tabs switches between parts of a view, with the arrow keys too. */
export function Tabs({ tabs, at, to, label }) {
  const keys = e => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
    if (!step) return;
    e.preventDefault();
    const i = (tabs.findIndex(t => t.id === at) + step + tabs.length) % tabs.length;
    to(tabs[i].id);
    e.currentTarget.querySelectorAll('[role=tab]')[i].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${keys}>${tabs.map(t => html`
    <button type="button" role="tab" key=${t.id} aria-selected=${t.id === at} tabindex=${t.id === at ? 0 : -1}
      onClick=${() => to(t.id)}>${t.state && html`<${Shape} state=${t.state} />`}${t.name}${t.count !== undefined &&
          t.count !== null
        ? html`<span class="n">${typeof t.count === 'number' ? count(t.count) : t.count}</span>`
        : ''}</button>`)}</div>`;
}

// A row of a table. One of a steady table is rendered again only when its object, or its selection,
// is another one: a list that changes many times a second costs what has changed.
class Row extends Component {
  shouldComponentUpdate(next) {
    return !next.steady || next.row !== this.props.row || next.on !== this.props.on;
  }

  render({ row, id, on, table }) {
    const { open, choose, columns } = table.current;
    const click = e => {
      const inner = e.target.closest('a, button, input, summary, details');
      if (open && !inner && !String(getSelection())) table.current.open(row);
    };
    const key = e => {
      if (e.target !== e.currentTarget) return;
      if (e.key === 'Enter' && open) table.current.open(row);
      if (e.key === 'x' && choose) table.current.choose(id, !on, false);
    };
    return html`<tr data-row tabindex=${open ? -1 : undefined} class=${cls(open && 'opens', on && 'chosen')}
        onClick=${click} onKeyDown=${key}>
      ${choose && html`<td class="pick"><input type="checkbox" aria-label=${`Select ${short(id)}`} checked=${on}
        onClick=${e => table.current.choose(id, e.currentTarget.checked, e.shiftKey)} /></td>`}
      ${columns.map(c => html`<td class=${c.className} data-name=${c.name} key=${c.name}>${c.cell(row)}</td>`)}</tr>`;
  }
}

/**
 * Table shows rows, with a row that the keys j and k move to, and Enter opens. A steady one has columns
 * that depend on nothing but the row.
 * One that scrolls and has nothing to use in its rows takes the focus itself.
 * With onSort the columns with a value can be sorted by.
 * @param {{columns: {name: string, cell: (row: any) => any, className?: string, value?: (row: any) => any}[],
 *   rows: any[],
 *   keyOf: (row: any) => string, open?: (row: any) => void, label: string, chosen?: Set<string>,
 *   choose?: (id: string, on: boolean, shift: boolean) => void, steady?: boolean, sort?: string,
 *   onSort?: (name: string) => void, scrolls?: boolean}} p
 */
export function Table({ columns, rows, keyOf, open, label, chosen, choose, steady = false, sort = '', onSort,
  scrolls = false }) {
  const table = useRef(none);
  table.current = { columns, open, choose };
  return html`<div class="table-box" tabindex=${scrolls ? 0 : undefined}>
    <table class=${cls('table', choose && 'choosable')} aria-label=${label}><thead><tr>
    ${choose && html`<th class="pick" scope="col"><input type="checkbox" aria-label="Select all rows that are shown"
      checked=${rows.length > 0 && rows.every(r => chosen?.has(keyOf(r)))}
      onChange=${e => { for (const r of rows) choose(keyOf(r), e.currentTarget.checked, false); }} /></th>`}
    ${columns.map(c => html`<th scope="col" class=${c.className} key=${c.name}
      aria-sort=${sort === c.name ? 'ascending' : sort === '-' + c.name ? 'descending' : undefined}>${onSort && c.value
        ? html`<button type="button" class="sort" title="Sort the rows that are shown"
          onClick=${() => onSort(c.name)}>${c.name}${sort.endsWith(c.name) ? (sort[0] === '-' ? ' ↓' : ' ↑') : ''}
          </button>` : c.name}</th>`)}</tr></thead>
    <tbody>${rows.map(row => {
      const id = keyOf(row);
      return html`<${Row} key=${id} id=${id} row=${row} on=${chosen?.has(id) ?? false} table=${table}
        steady=${steady} />`;
    })}</tbody></table></div>`;
}

// ---- messages that come and go

const toasts = signal(/** @type {{id: number, text: string, bad?: boolean}[]} */ ([]));
let toasted = 0;

/** toast shows a short message for a few seconds. */
export function toast(text, bad = false) {
  const id = ++toasted;
  toasts.value = [...toasts.value.slice(-3), { id, text, bad }];
  setTimeout(() => { toasts.value = toasts.value.filter(t => t.id !== id); }, bad ? 9000 : 3500);
}

export const Toasts = () => html`<div class="toasts" role="status" aria-live="polite">
    ${toasts.value.map(t => html`<p key=${t.id} class=${cls(t.bad && 'bad')}>${t.text}</p>`)}</div>`;

/** act does something and tells how it went. */
export async function act(what, f) {
  try {
    const out = await f();
    if (what) toast(what);
    return out;
  } catch (e) {
    toast(explain(e), true);
    return undefined;
  }
}

// ---- dialogs

const asking = signal(none);

/**
 * ask shows a question and returns what was answered: null if it was dismissed. With run the answer is what that
 * returns; while it is refused, the dialog stays as it is and says why. A secret is shown with a button to copy it.
 * @param {{title: string, text?: any, yes: string, danger?: boolean, secret?: string,
 *   run?: (answer: Record<string, string>) => any,
 *   fields?: {name: string, label: string, value?: string, area?: boolean,
 *     options?: string[][], many?: string[]}[]}} question
 * @returns {Promise<any>}
 */
export const ask = question => new Promise(done => {
  asking.value = { ...question, done, from: document.activeElement };
});

// giveBack returns the focus to the element that had it before a dialog, or to the view if that element is gone.
function giveBack(from) {
  if (from === document.body) return;
  (from.isConnected && from.checkVisibility() ? from : document.getElementById('main'))?.focus();
}

export function Dialogs() {
  const q = asking.value, box = useRef(none), id = useId();
  const [busy, setBusy] = useState(false), [error, setError] = useState(none);
  useEffect(() => { setBusy(false); setError(null); }, [q]);
  // A dialog that leaves the page while it is open does not give the focus back by itself.
  useEffect(() => {
    if (!q) return undefined;
    if (!box.current.open) box.current.showModal();
    return () => giveBack(q.from);
  }, [q]);
  if (!q) return null;
  const end = answer => { asking.value = null; q.done(answer); };
  // A refused form keeps its text.
  const submit = async e => {
    e.preventDefault();
    const data = new FormData(e.currentTarget), answer = /** @type {any} */ (Object.fromEntries(data));
    for (const f of q.fields ?? []) if (f.many) answer[f.name] = data.getAll(f.name);
    if (!q.run) { end(answer); return; }
    setBusy(true);
    try { end(await q.run(answer) ?? answer); } catch (problem) { setError(problem); setBusy(false); }
  };
  return html`<dialog ref=${box} class="dialog" aria-labelledby=${id} onClose=${() => asking.value === q && end(null)}>
    <form method="dialog" onSubmit=${submit}>
      <h2 id=${id}>${q.title}</h2>${q.text && html`<div class="dialog-text">${q.text}</div>`}
      ${(q.fields ?? []).map(f => (f.many ? html`<fieldset class="field" key=${f.name}><legend>${f.label}</legend>
        ${f.many.map(v => html`<label class="check" key=${v}><input type="checkbox" name=${f.name} value=${v}
          checked=${v === f.value} /> ${v}</label>`)}</fieldset>`
        : html`<label class="field" key=${f.name}><span>${f.label}</span>${f.area
        ? html`<textarea name=${f.name} rows="6" defaultValue=${f.value ?? ''}></textarea>`
        : f.options ? html`<select name=${f.name}>${f.options.map(([v, name]) =>
          html`<option key=${v} value=${v} selected=${v === f.value}>${visible(name).slice(0,
            160)}</option>`)}</select>`
        : html`<input name=${f.name} defaultValue=${f.value ?? ''} autocomplete="off" />`}</label>`))}
      ${q.secret && html`<div class="row"><code class="secret">${q.secret}</code>
        <${CopyButton} text=${q.secret} about="Copy the secret" /></div>`}
      <${Trouble} error=${error} />
      <div class="actions">${!q.secret && html`<button type="button" onClick=${() => end(null)}>Cancel</button>`}
        <button type="submit" disabled=${busy} class=${q.danger ? 'danger' : 'primary'}>${q.yes}</button></div>
    </form></dialog>`;
}

/** Menu is a button with a list of things to do. */
export function Menu({ label, items }) {
  const box = useRef(none);
  const close = () => box.current?.removeAttribute('open');
  // A dialog that an item opens gives the focus back to the menu: the item itself is hidden by then.
  const leave = () => { box.current.querySelector('summary').focus(); close(); };
  useEffect(() => {
    const away = e => { if (box.current?.open && !box.current.contains(e.target)) close(); };
    addEventListener('click', away);
    return () => removeEventListener('click', away);
  }, []);
  return html`<details class="menu" ref=${box} onKeyDown=${e =>
      { if (e.key === 'Escape') leave(); }}>
    <summary>${label}</summary><div class="menu-list">
      ${items.filter(Boolean).map(i => html`<button type="button" key=${i.name} class=${cls(i.danger && 'danger-text')}
      onClick=${() => { leave(); i.act(); }}>${i.name}</button>`)}</div></details>`;
}
