// One worker: what it holds, what it polls for, and why it takes no more.
import { html } from '../lib.js';
import { href } from '../router.js';
import { useList, useRuns } from '../live.js';
import { count, instant } from '../format.js';
import { Page, Card, Facts, Trouble, Loading, Empty, Ago } from '../parts.js';
import { Safe } from '../safe.js';
import { Polls } from './worker-polls.js';
import { Runs } from './queue.js';

/** whyNoMore says why a worker takes no further run, in words. */
export function whyNoMore(w, held, queues) {
  if (w.offline) return `It is offline: it was last heard from at ${instant(w.seen_at)}.`;
  if (w.slots && held >= w.slots) return `All of its ${w.slots} slots are taken.`;
  const polled = new Set((w.polls ?? []).flatMap(p => p.queues));
  if (!polled.size) return 'It polls for nothing: it executes what it has started.';
  const its = queues.filter(q => polled.has(q.name)), paused = its.filter(q => q.paused);
  if (its.length && paused.length === its.length) return 'Every queue that it polls is paused.';
  const waiting = its.reduce((n, q) => n + (q.paused ? 0 : q.claimable), 0);
  if (!waiting) return 'Nothing that may be taken waits in its queues.';
  return `${count(waiting)} runs of its queues may be taken. They are of kinds that it does not poll for,
    or it takes one soon.`;
}

export default function Worker({ parts: [name] }) {
  const workers = useList('workers', '/workers', 'workers', { limit: 200 });
  const queues = useList('queues', '/queues', 'queues', { limit: 200 });
  const held = useRuns({ worker_id: name, state: ['dispatched', 'running'] }, { limit: 100 });
  const before = useRuns({ worker_id: name, status: ['completed', 'failed', 'timeout', 'cancelled'] }, { limit: 10 });
  const w = workers.items?.find(x => x.worker_id === name);
  return html`<${Page} name=${`Worker ${name}`} title=${html`<${Safe} text=${name} max=${120} />`}
      crumbs=${html`<a href=${href('/workers')}>Workers and queues</a>`}>
    <${Trouble} error=${workers.error} />
    ${workers.items === null ? html`<${Loading} />` : !w ? html`<${Empty}
      title="This worker is not known">It may have been
      offline for so long that it was forgotten. Its runs are <a href=${href('/runs', { worker_id: name })}>in the
      list</a>.<//>` : html`<div class="home"><section class="home-main">
      <${Card} title="What it holds">${held.rows ? html`<${Runs} rows=${held.rows} none="Nothing now." />`
        : html`<${Loading} />`}
        <p class="notice gap-top" data-why>${whyNoMore(w, held.rows?.length ?? 0, queues.items ?? [])}</p><//>
      <${Card} title="What it had last" actions=${html`<a href=${href('/runs', { worker_id: name })}>All</a>`}>
        ${before.rows ? html`<${Runs} rows=${before.rows} />` : html`<${Loading} />`}<//></section>
      <section class="home-side"><${Card} title="About it"><${Facts} of=${[
        ['State', w.offline ? 'offline' : 'online'], ['Heard from', html`<${Ago} at=${w.seen_at} />`],
        ['Slots', w.slots ? `${held.rows?.length ?? 0} of ${w.slots} taken` : 'it did not say'],
        ['Polls for', html`<${Polls} worker=${w} />`]]} /><//></section></div>`}<//>`;
}
