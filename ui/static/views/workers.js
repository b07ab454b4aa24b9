// Workers and queues: who polls for what, and how much waits.
import { html } from '../lib.js';
import { href, go } from '../router.js';
import { useList, useRuns } from '../live.js';
import { duration, count } from '../format.js';
import { Page, Card, Table, Empty, Trouble, Loading, Ago, Shape, RunLink } from '../parts.js';
import { Safe } from '../safe.js';
import { Polls } from './worker-polls.js';
import { Paused, PauseButton } from './queue-pause.js';

/** Depth is a bar of a queue's runs: running, waiting in line, suspended. */
function Depth({ queue, max }) {
  const part = n => ({ width: `${(100 * n) / Math.max(1, max)}%` });
  return html`<span class="depth" role="img"
      aria-label=${`${queue.running} running, ${queue.queued} queued, ${queue.suspended} waiting`}>
    <i class="is-running" style=${part(queue.running)}></i><i class="is-queued" style=${part(queue.queued)}></i>
    <i class="is-suspended" style=${part(queue.suspended)}></i></span>`;
}

/** nodeOf is the name of the server that a worker is inside of, if it is. */
const nodeOf = worker => (worker.polls ?? []).find(p => p.node)?.node;

/** Slots is how many runs a worker holds of those that it takes at once. */
const Slots = ({ worker, used }) => (worker.slots
  ? html`<span title=${`holds ${used}, asks for ${worker.slots} at once`}>${used}<span
      class="dim">${' / '}${worker.slots}</span></span>` : used);

export default function Workers() {
  const workers = useList('workers', '/workers', 'workers', { limit: 200 });
  const queues = useList('queues', '/queues', 'queues', { limit: 200 });
  const running = useRuns({ status: ['running', 'deferred'] }, { limit: 200 });
  const held = new Map();
  for (const r of running.rows ?? []) {
    if (r.state === 'running' && r.worker_id) held.set(r.worker_id, [...(held.get(r.worker_id) ?? []), r]);
  }
  const max = Math.max(1, ...(queues.items ?? []).map(q => q.queued + q.running + q.suspended));
  const list = [...(workers.items ?? [])].sort((a, b) => Number(a.offline) - Number(b.offline) ||
    (a.seen_at < b.seen_at ? 1 : -1));
  return html`<${Page} title="Workers and queues"
      sub="A worker is anything that speaks the protocol. Runs wait in queues until one polls for their kind.">
    <${Trouble} error=${queues.error ?? workers.error} />
    <${Card} title="Queues">${queues.items === null ? html`<${Loading} />` : queues.items.length === 0
        ? html`<p class="dim">No live runs, so no queue has anything in it.</p>`
        : html`<${Table} label="Queues" rows=${queues.items} keyOf=${q => q.name} open=${q =>
            go('/queues/' + encodeURIComponent(q.name))} columns=${[
      { name: 'Queue', className: 'fit', cell: q =>
        html`<a href=${href('/queues/' + encodeURIComponent(q.name))}><b><${Safe} text=${q.name}
          max=${60} /></b></a>` },
      { name: 'Depth', className: 'grow', cell: q =>
        html`<${Depth} queue=${q} max=${max} /><${Paused} pause=${q.paused} />` },
      { name: 'Running', className: 'num', cell: q => count(q.running) },
        { name: 'Queued', className: 'num', cell: q => html`${count(q.queued)}${q.at_least ? '+' : ''}` },
      { name: 'Claimable', className: 'num wide-only', cell: q => count(q.claimable) },
        { name: 'Waiting', className: 'num wide-only', cell: q => count(q.suspended) },
      { name: 'Oldest', className: 'num', cell: q =>
        (q.oldest_claimable_ms ? html`<span class=${q.oldest_claimable_ms > 60_000 ? 'bad' : ''}>
            ${duration(q.oldest_claimable_ms)}</span>` : '–') },
      { name: '', className: 'fit', cell: q => html`<${PauseButton} queue=${q} />` }]} />`}<//>
    <${Card} title="Workers">${workers.items === null ? !workers.error && html`<${Loading} />` : list.length === 0
        ? html`<${Empty} title="No worker has polled yet"><p>Start one in any language:</p>
            <pre class="text">python3 examples/python/worker.py</pre><//>`
            : html`<${Table} label="Workers" rows=${list} keyOf=${w => w.worker_id} open=${w =>
              go('/workers/' + encodeURIComponent(w.worker_id))} columns=${[
      { name: 'Worker', className: 'fit', cell: w =>
        html`<span class="row nowrap"><span class=${w.offline ? 'text-cancelled' : 'text-completed'}>
            <${Shape} state=${w.offline ? 'cancelled' : 'completed'} /></span>
            <a href=${href('/workers/' + encodeURIComponent(w.worker_id))}><b><${Safe} text=${w.worker_id}
              max=${60} /></b></a>${nodeOf(w) &&
                html`<span class="dim">inside <${Safe} text=${nodeOf(w)} max=${60} /></span>`}</span>` },
      { name: 'State', className: 'fit', cell: w => (w.offline ? html`<span class="dim">offline</span>` : 'online') },
      { name: 'Polls for', className: 'grow', cell: w =>
        html`<${Polls} worker=${w} />` },
      { name: 'Slots', className: 'num', cell: w => html`<${Slots} worker=${w}
          used=${(held.get(w.worker_id) ?? []).length} />` },
      { name: 'Holds', className: 'fit', cell: w => (held.get(w.worker_id) ?? []).slice(0, 3).map(r =>
          html`<${RunLink} key=${r.run_id} id=${r.run_id} /> `) },
      { name: 'Heard from', className: 'fit', cell: w => html`<${Ago} at=${w.seen_at} />` }]} />`}<//>
  <//>`;
}
