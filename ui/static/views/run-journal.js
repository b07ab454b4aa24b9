// The journal and the inbox of a run, also of one that has ended. While the run lives, both are read
// again when its log grows, and every few seconds.
import { html, useState, useEffect, none } from '../lib.js';
import { get } from '../api.js';
import { size, ended } from '../format.js';
import { Card, Table, Trouble, Loading, Empty, Ago, Value, Json, RunLink, act } from '../parts.js';
import { Safe } from '../safe.js';

const pageRows = 100;

// useEntries reads the pages of a list up to where somebody asked for more, and keeps them current.
function useEntries(run, path, field) {
  const [pages, setPages] = useState(1);
  const [state, set] = useState({ rows: /** @type {any[]|null} */ (null), more: false, error: null });
  const [tick, setTick] = useState(0);
  const live = !ended(run.state);
  useEffect(() => {
    if (!live) return undefined;
    const timer = setInterval(() => { if (!document.hidden) setTick(n => n + 1); }, 2000);
    return () => clearInterval(timer);
  }, [live]);
  useEffect(() => {
    const abort = new AbortController();
    (async () => {
      const rows = [];
      let after = 0;
      for (let i = 0; i < pages; i++) {
        const page = await get(`/runs/${run.run_id}/${path}`, { after: after || undefined, limit: pageRows },
          { signal: abort.signal });
        rows.push(...page[field]);
        after = page.next_after ?? 0;
        if (!after) break;
      }
      set({ rows, more: after > 0, error: null });
    })().catch(error => { if (error.name !== 'AbortError') set(s => ({ ...s, error })); });
    return () => abort.abort();
  }, [run.run_id, run.state, run.last_seq, tick, pages]);
  return { ...state, next: () => setPages(n => n + 1) };
}

/** Cut shows a value, or the beginning of a long one with a button for the rest. */
function Cut({ entry, path }) {
  const [whole, setWhole] = useState(none);
  if (entry.damaged) return html`<p class="bad">The stored value can't be read.</p>`;
  if (whole) return typeof whole.value === 'string' ? html`<${Safe} text=${whole.value} block max=${200_000} />`
    : html`<${Json} value=${whole.value} max=${200_000} />`;
  if (entry.preview === undefined) {
    return entry.size > 100 || typeof entry.value === 'string' ? html`<${Value} value=${entry.value} />`
      : html`<code><${Safe} text=${JSON.stringify(entry.value)} /></code>`;
  }
  return html`<div><${Safe} text=${entry.preview + '…'} block max=${1100} />
    <button type="button" class="linkish" onClick=${async () =>
      setWhole(await act('', () => get(`${path}/${entry.seq}`)) ?? null)}>show all ${size(entry.size)}</button></div>`;
}

const More = ({ list }) => list.more &&
  html`<p><button type="button" onClick=${list.next}>Show more</button></p>`;

/** Journal is the steps that a run has recorded. */
export function Journal({ run }) {
  const list = useEntries(run, 'journal/entries', 'entries');
  if (!list.rows) return list.error ? html`<${Trouble} error=${list.error} />` : html`<${Loading} />`;
  return html`<${Card}><${Trouble} error=${list.error} />${list.rows.length === 0 ? html`<${Empty}
      title="Nothing recorded yet">A step whose result is in the journal is not executed again, whatever happens
        to its worker.<//>`
    : html`<${Table} label="Journal" rows=${list.rows} keyOf=${e => String(e.seq)} columns=${[
      { name: '#', className: 'num', cell: e => e.seq },
      { name: 'Step', className: 'fit', cell: e => html`<b><${Safe} text=${e.key} max=${120} /></b>` },
      { name: 'Value', className: 'grow', cell: e =>
        html`<${Cut} entry=${e} path=${`/runs/${run.run_id}/journal/entries`} />` },
      { name: 'Size', className: 'num', cell: e => size(e.size) },
      { name: 'Recorded', className: 'fit', cell: e => html`<${Ago} at=${e.at} />` }]} />
      <${More} list=${list} />`}<//>`;
}

const statuses = { pending: 'not read yet', processing: 'a worker has it', acked: 'read', skipped: 'skipped' };

/** Inbox is the list of items that have come to a run: signals, answers, and the ends of its children. */
export function Inbox({ run }) {
  const list = useEntries(run, 'inbox/items', 'items');
  if (!list.rows) return list.error ? html`<${Trouble} error=${list.error} />` : html`<${Loading} />`;
  return html`<${Card} title="Inbox"><${Trouble} error=${list.error} />${list.rows.length === 0
    ? html`<p class="dim">Nothing has come yet. Signals, answers of people, and the results of children arrive
        here.</p>`
    : html`<${Table} label="Inbox" scrolls rows=${list.rows} keyOf=${i => String(i.seq)} columns=${[
      { name: '#', className: 'num', cell: i => i.seq },
      { name: 'Item', className: 'fit', cell: i => html`<b>${i.type}</b> <${Safe} text=${i.name ?? ''} max=${120} />
          ${i.run_id && html` <${RunLink} id=${i.run_id} />`}` },
      { name: 'Value', className: 'grow', cell: i =>
        html`<${Cut} entry=${i} path=${`/runs/${run.run_id}/inbox/items`} />` },
      { name: 'Status', className: 'fit', cell: i => html`<span title=${i.watchdog_error}>
          ${statuses[i.status] ?? i.status}</span>` },
      { name: 'Size', className: 'num', cell: i => size(i.size) },
      { name: 'Came', className: 'fit', cell: i => html`<${Ago} at=${i.at} />` }]} />
      <${More} list=${list} />`}<//>`;
}
