// Why a queued run is not executed yet.
import { html, useState, useEffect } from '../lib.js';
import { href } from '../router.js';
import { useGet } from '../live.js';
import { Ago, Until } from '../parts.js';
import { now, ms } from '../format.js';
import { Safe, visible } from '../safe.js';

/** lookEvery is how often a queued run is looked at. A pause, or a worker that comes, changes no run. */
const lookEvery = 3000;

/** brief is how long a run that workers serve may wait before the page says so. */
const brief = 2000;

/**
 * useWaiting gives why a run waits, as its activity has it, or null.
 * @returns {{reason: string, text: string, since?: string, until?: string, last?: string}|null}
 */
export function useWaiting(run) {
  const queued = run?.state === 'queued';
  const [round, setRound] = useState(0);
  useEffect(() => {
    if (!queued) return undefined;
    const timer = setInterval(() => { if (!document.hidden) setRound(n => n + 1); }, lookEvery);
    return () => clearInterval(timer);
  }, [queued]);
  const a = useGet(queued ? `/runs/${run.run_id}/activity` : '', {}, [run?.last_seq, round]);
  const w = queued ? a.value?.waiting_for : null;
  return w && !(w.reason === 'no_free_slot' && now.value - ms(w.since) < brief) ? w : null;
}

/** words say a reason with links and ages. The others are said by the server. */
const words = {
  queue_paused: (w, run) => html`Queue <a href=${href('/workers')}><code>${visible(run.queue)}</code></a> was paused
    ${' '}<${Ago} at=${w.since} />. The run waits ${w.until ? html`for its end: <${Until} at=${w.until} />`
      : 'until somebody resumes it'}.`,
  unserved: (w, run) => html`No worker polls for kind <code>${visible(run.kind)}</code> of queue${' '}
    <code>${visible(run.queue)}</code>${w.since ? html`. The last one did <${Ago} at=${w.since} />` : ''}:
    the run waits until one does. <a href=${href('/workers')}>See the workers</a>.`,
  not_before: w => html`It is not begun before its time: <${Until} at=${w.until} />.`,
  no_free_slot: w => html`All slots of its workers are taken. It could have begun <${Ago} at=${w.since} />.${' '}
    <a href=${href('/workers')}>See the workers</a>.`,
};

/** Waiting says why a queued run waits. */
export function Waiting({ run, why }) {
  if (!why) return null;
  return html`<p class="notice" data-waiting=${why.reason}><span>${words[why.reason]?.(why, run)
    ?? html`It waits: <${Safe} text=${why.text} max=${300} />.`}</span></p>`;
}
