// The pause of a queue: its author, its reason, and the buttons.
import { html } from '../lib.js';
import { post, can } from '../api.js';
import { refresh } from '../live.js';
import { ask, act, toast, Ago, Until } from '../parts.js';
import { Safe } from '../safe.js';

async function pause(name) {
  const done = await ask({ title: `Pause ${name}?`, yes: 'Pause the queue', danger: true,
    text: 'It accepts runs and grants none. Workers keep those that they hold, and deadlines count.',
    fields: [{ name: 'reason', label: 'Why (others see it)' },
      { name: 'for', label: 'For how long, such as 30m (empty: until somebody resumes it)' }],
    run: a => post(`/queues/${encodeURIComponent(name)}/pause`,
      { reason: a.reason || undefined, for: a.for || undefined }) });
  if (done) toast('Paused.');
  refresh();
}

async function resume(name) {
  if (!await ask({ title: `Resume ${name}?`, yes: 'Resume the queue', text: 'Workers get its runs at once.' })) return;
  await act('Resumed.', () => post(`/queues/${encodeURIComponent(name)}/resume`));
  refresh();
}

/** Paused says since when a queue is paused, by whom and why. */
export const Paused = ({ pause: p }) => p && html`<span class="why"><span class="tag">paused</span>
  ${' '}<${Ago} at=${p.paused_at} />${p.platform ? ' by the platform' : p.paused_by
    ? html` by <${Safe} text=${p.paused_by} max=${60} />` : ''}${p.until && html`, ends <${Until} at=${p.until} />`}
  ${p.reason && html`: <${Safe} text=${p.reason} max=${160} />`}</span>`;

/** PauseButton pauses a queue, or resumes one. */
export const PauseButton = ({ queue }) => can('runs:control') && (queue.paused
  ? html`<button type="button" onClick=${() => resume(queue.name)}>Resume</button>`
  : html`<button type="button" onClick=${() => pause(queue.name)}>Pause</button>`);
