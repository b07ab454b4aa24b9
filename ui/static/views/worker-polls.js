// The polls of a worker.
import { html } from '../lib.js';
import { Safe } from '../safe.js';

/** Polls says what a worker polls for: its kinds, by the queues that it takes them from. */
export function Polls({ worker }) {
  const byQueues = new Map();
  for (const p of worker.polls ?? []) {
    const queues = p.queues.join(', ');
    byQueues.set(queues, [...(byQueues.get(queues) ?? []), ...(p.kinds?.length ? p.kinds : ['every kind'])]);
  }
  if (!byQueues.size) return html`<span class="dim">${(worker.queues ?? []).join(', ') ||
    'nothing: it executes what it has started'}</span>`;
  return [...byQueues].map(([queues, kinds]) => html`<span class="polls" key=${queues}>
    ${[...new Set(kinds)].slice(0, 8).map(k => html`<span class="meta" key=${k}>
      <${Safe} text=${k} max=${40} /></span>`)}
    <span class="dim">of <${Safe} text=${queues} max=${80} /></span></span>`);
}
