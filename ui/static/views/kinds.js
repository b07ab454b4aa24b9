// Kinds: what the tenant's workers can do.
import { html } from '../lib.js';
import { href, go } from '../router.js';
import { useList, useCounts } from '../live.js';
import { count } from '../format.js';
import { Page, Table, Empty, Trouble, Loading, Shape } from '../parts.js';
import { Safe } from '../safe.js';

/** Served says whether a worker polls for a kind. */
export const Served = ({ kind: k }) => (k.served ? html`<span class="text-completed"><${Shape}
    state="completed" /></span> polled for` : html`<span class="text-timeout"><${Shape} state="held" /></span>
    <b class="text-timeout">nobody polls</b>`);

export default function Kinds() {
  const kinds = useList('kinds', '/kinds', 'kinds', { limit: 200 }), counts = useCounts();
  const known = new Map((kinds.items ?? []).map(k => [k.kind, k]));
  // A kind that was never announced has runs all the same.
  for (const name of Object.keys(counts?.kind ?? {})) if (name !== 'other' && !known.has(name)) known.set(name, {
    kind: name });
  const list = [...known.values()].sort((a, b) => (a.kind < b.kind ? -1 : 1));
  const n = (k, ...states) => count(states.reduce((sum, s) => sum + (counts?.kind?.[k.kind]?.[s] ?? 0), 0));
  return html`<${Page} title="Kinds" sub="What can be done. Workers announce their kinds when they start.">
    <${Trouble} error=${kinds.error} />
    ${kinds.items === null ? !kinds.error && html`<${Loading} />` : list.length === 0
      ? html`<${Empty} title="No kinds yet">Workers that announce their kinds describe them here.<//>`
      : html`<${Table} label="Kinds" rows=${list} keyOf=${k => k.kind} open=${k =>
          go('/kinds/' + encodeURIComponent(k.kind))} columns=${[
      { name: 'Kind', className: 'fit', cell: k => html`<a href=${href('/kinds/' + encodeURIComponent(k.kind))}>
        <b><${Safe} text=${k.kind} max=${60} /></b></a>` },
      { name: 'What it does', className: 'grow', cell: k => html`<span class="why">
        <${Safe} text=${k.description ?? ''} max=${160} /></span>` },
      { name: 'Running', className: 'num', cell: k => n(k, 'running', 'dispatched', 'deferred') },
      { name: 'Queued', className: 'num', cell: k => n(k, 'queued') },
      { name: 'Failed', className: 'num', cell: k => n(k, 'failed', 'timeout') },
      { name: 'Workers', className: 'fit', cell: k => (k.builds || k.served !== undefined ? html`<${Served}
        kind=${k} />`
        : html`<span class="dim">not announced</span>`) },
      { name: '', className: 'fit', cell: k => html`<a href=${href('/start', { kind: k.kind })}>Start one</a>` },
    ]} />`}<//>`;
}
