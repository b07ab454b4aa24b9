// One queue: what is in it, and why what waits is not taken.
import { html } from '../lib.js';
import { href } from '../router.js';
import { useList, useRuns, useReread, refresh } from '../live.js';
import { count, duration } from '../format.js';
import { call, can } from '../api.js';
import { Page, Card, Facts, Trouble, Loading, Ago, RunLink, State, statusOf, ask, toast } from '../parts.js';
import { Safe } from '../safe.js';
import { Paused, PauseButton } from './queue-pause.js';
import { LimitNames } from './limits.js';

/** Runs are some rows of runs. */
export const Runs = ({ rows, none = 'None.' }) => (rows.length === 0 ? html`<p class="dim">${none}</p>`
  : html`<ul class="plain">${rows.map(r => html`<li key=${r.run_id}><${State} state=${statusOf(r)} />
    <${RunLink} id=${r.run_id} /><a class="grow cut" href=${href('/kinds/' + encodeURIComponent(r.kind))}>
    <${Safe} text=${r.kind} max=${60} /></a><span class="why cut">${(r.waiting_for ?? r.activity) && html`<${Safe}
    text=${r.waiting_for?.text ?? r.activity} max=${120} />`}</span><span class="dim"><${Ago}
      at=${r.created_at} /></span></li>`)}</ul>`);

/** Reasons groups queued runs by why they wait. */
function Reasons({ rows, next }) {
  const groups = new Map();
  for (const r of rows) {
    const w = r.waiting_for, key = w ? `${w.reason} ${w.reason === 'unserved' ? r.kind : ''}` : '';
    const g = groups.get(key) ?? { text: w?.text ?? 'It may be taken now.', reason: w?.reason ?? '', n: 0 };
    groups.set(key, { ...g, n: g.n + 1 });
  }
  return html`<ul class="plain-list">${[...groups.values()].sort((a, b) => b.n - a.n).map(g => html`<li key=${g.text}
    class="reason" data-reason=${g.reason}><b class="need-n">${count(g.n)}${next ? '+' : ''}</b>
    <span><${Safe} text=${g.text} max=${240} /></span></li>`)}</ul>`;
}

/** bound changes the limits of a queue. */
async function bound(q) {
  const made = await ask({ title: `Limits of ${q.name}`, yes: 'Save',
    text: 'They count for runs that are accepted from now on. Empty: no limit.',
    fields: [{ name: 'concurrency', label: 'Runs with a worker at once', value: String(q.concurrency ?? '') },
      { name: 'limits', label: 'Limits, separated by commas', value: (q.limits ?? []).join(', ') }],
    run: a => call('PUT', '/queues/' + encodeURIComponent(q.name), { once: true, body: {
      concurrency: /^\d*$/.test(a.concurrency.trim()) ? Number(a.concurrency) : a.concurrency,
      limits: a.limits.split(',').map(x => x.trim()).filter(Boolean) } }) });
  if (made) toast('Changed.');
  refresh();
}

export default function Queue({ parts: [name] }) {
  const queues = useList('queues', '/queues', 'queues', { limit: 200 });
  const workers = useList('workers', '/workers', 'workers', { limit: 200 });
  const q = queues.items?.find(x => x.name === name);
  // The socket does not say of each run why it waits; the call does.
  const changed = useRuns({ queue: name, state: ['queued'] }, { limit: 100 });
  const list = useReread('/runs', { queue: name, state: 'queued', limit: 100 }, [changed.rows, queues.items,
    workers.items]);
  const queued = { rows: list.value?.runs, next: list.value?.next_cursor };
  const working = useRuns({ queue: name, state: ['dispatched', 'running'] }, { limit: 20 });
  const serving = (workers.items ?? []).filter(w => !w.offline && (w.polls ?? []).some(p => p.queues.includes(name)));
  const figure = (value, text, state) => html`<div class="figure"><p class="big"><a href=${href('/runs',
    { queue: name, state })}>${value}</a></p><p class="sub">${text}</p></div>`;
  const n = x => count(x) + (q?.at_least ? '+' : '');
  return html`<${Page} name=${`Queue ${name}`} title=${html`<${Safe} text=${name} max=${120} />`}
      crumbs=${html`<a href=${href('/workers')}>Workers and queues</a>`} actions=${q && html`${can('kinds:admin')
        && html`<button type="button" onClick=${() => bound(q)}>Limits</button>`}<${PauseButton} queue=${q} />`}>
    <${Trouble} error=${queues.error} />
    ${q?.paused && html`<${Paused} pause=${q.paused} />`}
    <${Card} title="What it holds">${queues.items === null ? html`<${Loading} />` : html`<div class="figures">
      ${figure(n(q?.queued ?? 0), 'queued', 'queued')}${figure(n(q?.running ?? 0), 'with a worker',
        'dispatched,running')}
      ${figure(n(q?.suspended ?? 0), 'waiting, without a worker', 'suspended')}
      <div class="figure"><p class="big">${q?.oldest_claimable_ms ? duration(q.oldest_claimable_ms) : '–'}</p>
        <p class="sub">waits the oldest that may be taken</p></div></div>
      ${q && (q.concurrency || q.limits) && html`<${Facts} of=${[['At once', q.concurrency],
        ['Limits', q.limits && html`<${LimitNames} of=${q} />`]]} />`}`}<//>
    <div class="home"><section class="home-main"><${Card} title="Why queued runs are not taken">
      ${!queued.rows ? html`<${Loading} />` : queued.rows.length === 0 ? html`<p
        class="dim">Nothing is queued here.</p>`
        : html`<${Reasons} rows=${queued.rows} next=${queued.next} /><h3 class="gap-top">Newest of them</h3>
          <${Runs} rows=${queued.rows.slice(0, 10)} />`}<//></section>
    <section class="home-side"><${Card} title="Workers that poll it">${workers.items === null ? html`<${Loading} />`
      : serving.length === 0 ? html`<p class="dim">None. What is queued here waits until one does.</p>`
        : html`<ul class="plain">${serving.slice(0, 20).map(w => html`<li key=${w.worker_id}><a class="grow cut"
          href=${href('/workers/' + encodeURIComponent(w.worker_id))}><${Safe} text=${w.worker_id} max=${60} /></a>
          <span class="dim"><${Ago} at=${w.seen_at} /></span></li>`)}</ul>`}<//>
      <${Card} title="With a worker">${working.rows ? html`<${Runs} rows=${working.rows} />` : html`<${Loading} />`}<//>
    </section></div><//>`;
}
