// The actions on many runs at once.
import { html, useState, useRef, useEffect, none } from '../lib.js';
import { get, post, can } from '../api.js';
import { refresh } from '../live.js';
import { ended, count } from '../format.js';
import { mayHaveLetter, canRedrive } from '../letters.js';
import { ask, act, toast } from '../parts.js';

/**
 * bulk does something to many runs, a few at a time, and tells how far it is.
 * @returns {Promise<{done: number, failed: number, total: number, first: string}>}
 */
async function bulk(ids, one, tell, stopped) {
  const state = { done: 0, failed: 0, total: ids.length, first: '' };
  const rest = [...ids];
  const lane = async () => {
    for (let id = rest.shift(); id && !stopped(); id = rest.shift()) {
      try { await one(id); state.done++; } catch (e) { state.failed++; state.first ||= e.message; }
      tell({ ...state });
    }
  };
  tell({ ...state });
  await Promise.all(Array.from({ length: 4 }, lane));
  refresh();
  return state;
}

/** useLetters gives which of some runs have a dead letter that can be redriven. It reads when the runs are others. */
function useLetters(runs) {
  const [found, set] = useState(new Set());
  useEffect(() => {
    if (!runs.length) return undefined;
    const abort = new AbortController(), wanted = new Set(runs.map(r => r.run_id));
    (async () => {
      const has = new Set();
      for (let cursor = '', pages = 0; wanted.size && pages < maxLetterPages; pages++) {
        const page = await get('/dlq', { limit: lettersAtOnce, cursor }, { signal: abort.signal });
        for (const l of page.dead_letters) if (wanted.delete(l.run_id) && canRedrive(l)) has.add(l.run_id);
        cursor = page.next_cursor;
        if (!cursor) break;
      }
      set(has);
    })().catch(() => {}); // the button stays as it is
    return () => abort.abort();
  }, [runs.map(r => r.run_id).join()]);
  return found;
}

/** lettersAtOnce and maxLetterPages bound the letters that a selection is compared with. */
const lettersAtOnce = 1000, maxLetterPages = 5;

/** maxSelected bounds a selection. More is done in several turns, or with the API. */
export const maxSelected = 2000;

/**
 * BulkBar does something to the selected runs. all selects every run that matches the filters, also
 * those that are not shown. It is there as long as there are such runs, whichever are selected: the list is
 * live, and a row that comes in between must not take the button away.
 */
export function BulkBar({ picked, drop, all }) {
  const [progress, tell] = useState(none), [reading, setReading] = useState(false), stop = useRef(false);
  const live = picked.filter(r => !ended(r.state)), over = picked.filter(r => ended(r.state));
  const letters = useLetters(over.filter(mayHaveLetter));
  const dead = over.filter(r => letters.has(r.run_id));
  const run = async (verb, list, one, danger) => {
    const a = await ask({ title: `${verb} ${list.length} run${list.length === 1 ? '' : 's'}?`, danger,
        yes: `${verb} ${list.length}`,
      text: danger ? 'Each is asked to stop, and may clean up first. This can\'t be taken back.'
        : 'Each becomes a new run with the same input.' });
    if (!a) return;
    stop.current = false;
    const end = await bulk(list.map(r => r.run_id), one, tell, () => stop.current);
    const left = end.total - end.done - end.failed;
    toast(`${verb}: ${end.done} done${end.failed ? `, ${end.failed} refused: ${end.first}` : ''}${left
      ? `, ${left} left as they are` : ''}.`, end.failed > 0);
    // A person may have selected others by then, here or in another list: only these are dropped.
    setTimeout(() => { tell(null); drop(list); }, 600);
  };
  return html`<div class="bulk" role="region" aria-label="Selected runs"><b>${count(picked.length)} selected</b>
    ${progress ? html`<progress max=${progress.total} value=${progress.done + progress.failed}
        aria-label="Progress"></progress>
      <span>${progress.done + progress.failed} of ${progress.total}${progress.failed ? `, ${progress.failed} refused`
          : ''}</span>
      <button type="button" onClick=${() => { stop.current = true; }}>Stop</button>`
    : html`<button type="button" class="danger" disabled=${!live.length || !can('runs:control')} onClick=${() =>
        run('Cancel', live, id => post(`/runs/${id}/cancel`, { reason: 'cancelled in the dashboard' }),
          true)}>Cancel ${live.length || ''}</button>
      <button type="button" disabled=${!over.length || !can('runs:create')} onClick=${() =>
        run('Retry', over, id => post(`/runs/${id}/retry`))}>Retry ${over.length || ''}</button>
      <button type="button" disabled=${!dead.length || !can('runs:control')} onClick=${() =>
        run('Redrive', dead, id => post(`/dlq/${id}/redrive`))}>Redrive ${dead.length || ''}</button>
      ${all && html`<button type="button" class="linkish" disabled=${reading} onClick=${async () => {
        setReading(true);
        await act('', all);
        setReading(false);
      }}>${reading ? 'Reading the list' : 'Select all that match'}</button>`}
      <button type="button" class="linkish" onClick=${() => drop(picked)}>Clear</button>`}</div>`;
}
