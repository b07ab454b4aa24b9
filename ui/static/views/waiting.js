// Why a queued run is not executed yet.
import { html, useState, useEffect, none } from '../lib.js';
import { href } from '../router.js';
import { get } from '../api.js';
import { watch } from '../live.js';
import { Ago, Until } from '../parts.js';
import { now, ms, count } from '../format.js';
import { Safe, visible } from '../safe.js';

/** brief is how long a run that workers serve may wait before the page says so. */
const brief = 2000;

/**
 * useWaits follows what a run waits for: why it is queued, its open waits, and what nobody read.
 * @param {any} run
 * @param {boolean} wanted
 * @returns {{value: {waiting_for?: any, waits: any[], skipped: any[]}|null, error: any}}
 */
export function useWaits(run, wanted) {
  const [state, set] = useState({ value: none, error: none });
  useEffect(() => {
    set({ value: null, error: null });
    if (!wanted) return undefined;
    return watch({
      of: 'waiting', filter: { run_id: run.run_id },
      poll: async () => [{ type: 'list', items: [await get(`/runs/${run.run_id}/activity`)] }],
      on(messages) {
        const m = messages.at(-1);
        if (m.type === 'error') set(s => ({ ...s, error: m.error }));
        else set({ value: m.items?.[0] ?? { waits: [], skipped: [] }, error: null });
      },
    });
  }, [run?.run_id, wanted]);
  return state;
}

/**
 * whyOf gives why a run waits, of what useWaits has told, or null.
 * @returns {{reason: string, text: string, since?: string, until?: string, last?: string}|null}
 */
export function whyOf(run, told) {
  const w = run?.state === 'queued' ? told?.waiting_for : null;
  return w && w.reason !== 'held' && !(w.reason === 'no_free_slot' && now.value - ms(w.since) < brief) ? w : null;
}

/** useWaiting gives why a run waits, as its activity has it, or null. */
export const useWaiting = run => whyOf(run, useWaits(run, run?.state === 'queued').value);

/** words say a reason with links and ages. The others are said by the server. */
const words = {
  queue_paused: (w, run) => html`Queue <a href=${href('/workers')}><code>${visible(run.queue)}</code></a> was paused
    ${' '}<${Ago} at=${w.since} />. The run waits ${w.until ? html`for its end: <${Until} at=${w.until} />`
      : 'until somebody resumes it'}.`,
  unserved: (w, run) => html`No worker polls for kind <code>${visible(run.kind)}</code> of queue${' '}
    <code>${visible(run.queue)}</code>${w.since ? html`. The last one did <${Ago} at=${w.since} />` : ''}:
    the run waits until one does. <a href=${href('/workers')}>See the workers</a>.`,
  not_before: w => html`It is not begun before its time: <${Until} at=${w.until} />.`,
  limit: w => html`It waits at ${(w.limits ?? []).map((l, i) => html`${i ? ', ' : ''}limit${' '}
    <a href=${href('/limits/' + encodeURIComponent(l.limit))}><code>${visible(l.limit)}</code></a>${l.key
      ? html` (key <code>${visible(l.key)}</code>)` : ''} for <${Ago} at=${l.since} suffix="" />${l.ahead
      ? `, behind ${count(l.ahead)} other${l.ahead === 1 ? '' : 's'}` : ''}${l.closed_until
      ? html`, closed: it opens <${Until} at=${l.closed_until} />` : ''}`)}.`,
  no_free_slot: w => html`All slots of its workers are taken. It could have begun <${Ago} at=${w.since} />.${' '}
    <a href=${href('/workers')}>See the workers</a>.`,
};

/** Waiting says why a queued run waits. */
export function Waiting({ run, why }) {
  if (!why) return null;
  return html`<p class="notice" data-waiting=${why.reason}><span>${words[why.reason]?.(why, run)
    ?? html`It waits: <${Safe} text=${why.text} max=${300} />.`}</span></p>`;
}
