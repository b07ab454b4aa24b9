// The pane beside the timeline and the log, with what is selected there: a step with its value,
// or a line with its data.
import { html, useState, none, useEffect } from '../lib.js';
import { get } from '../api.js';
import { duration, instant, size, stateNames } from '../format.js';
import { Facts, Json, RunLink, Shape, Value, CopyButton, Trouble, act } from '../parts.js';
import { Safe, visible } from '../safe.js';
import { shapeOf, usageText } from './run-steps.js';

/** Whole reads an entry of the journal of which only the beginning is here. */
function Whole({ run, entry }) {
  const [whole, set] = useState(none);
  useEffect(() => set(null), [run, entry.seq]);
  const step = whole ?? entry;
  if (step.damaged) return html`<p class="bad">The stored value can't be read.</p>`;
  if (step.preview === undefined) return html`<${Value} value=${step.value} label="Recorded value" />`;
  return html`<${Safe} text=${step.preview + '…'} block max=${1100} />
    <button type="button" class="linkish" onClick=${async () => set(await act('', () =>
      get(`/runs/${run}/journal/entries/${entry.seq}`)) ?? null)}>show all ${size(entry.size)}</button>`;
}

const titles = { step: 'Step', model: 'Model call', tool: 'Tool', wait: 'Wait', child: 'Child', attempt: 'Attempt',
  message: 'Message', note: 'Note', fact: 'Fact', end: 'End', many: 'Steps' };

const Line = ({ event: e, name }) => html`<h3>${name} <span class="dim">line ${e.seq} · ${instant(e.at)}</span></h3>
  <${Json} value=${e.data} max=${4000} label=${`Data of line ${e.seq}`} />`;

/**
 * Pane shows a row or a line.
 * @param {{at: {run: string, row?: any, event?: any}, main: string, close: () => void, retry?: any}} p
 */
export function Pane({ at, main, close, retry }) {
  const { row, event, run } = at;
  const state = row?.state;
  return html`<aside class="pane card" aria-label="Selected">
    <header class="pane-head"><div><h2>${row ? html`<${Safe} text=${row.name || stateNames[state]} max=${160} />`
        : visible(event.type)}</h2>
      <p class="sub">${row ? titles[row.kind] : `Line ${event.seq}`}${run !== main
        && html` of <${RunLink} id=${run} />`}
        ${row?.run_id && html` <${RunLink} id=${row.run_id} />`}</p></div>
      <button type="button" class="linkish" onClick=${close}>Close</button></header>
    ${row && html`<${Facts} of=${[
      ['State', html`<span class=${'text-' + shapeOf(state)}><${Shape} state=${shapeOf(state)} /></span>${' '}
          ${stateNames[state] ?? state}`],
      [row.upTo ? 'Took at most' : 'Took', row.to > row.from && duration(row.to - row.from)],
      ['Began', !row.upTo && instant(row.from)], [row.entry ? 'Recorded' : 'Ended', state !== 'running' &&
        instant(row.to)],
      ['Attempt', row.attempt || undefined], ['Tries', row.tries > 1 && row.tries],
      ['Used', usageText(row.usage)], ['Key', row.entry && html`<code>${visible(row.entry.key)}</code>`],
      ['Worker', row.kind === 'attempt' && row.text],
    ]} />`}
    ${row?.error && html`<${Trouble} error=${{ message: row.error.message ?? row.error.code,
      code: row.error.code }} />`}
    ${row?.entry && html`<h3>Recorded value</h3><${Whole} run=${run} entry=${row.entry} />`}
    ${row && !row.entry && row.value !== undefined && row.value !== row.last?.data && row.value !== row.event?.data &&
      html`<h3>Value</h3><${Value} value=${row.value} label="Value" />`}
    ${row?.event && html`<${Line} event=${row.event} name=${row.last ? 'Begins' : 'Event'} />`}
    ${row?.last && row.last !== row.event && html`<${Line} event=${row.last} name="Ends" />`}
    ${!row && html`<p class="sub">${instant(event.at)} · attempt ${event.attempt}</p><${Json} value=${event.data}
        max=${4000} label="Data of the event" />`}
    <div class="row">${retry}<${CopyButton} text=${() => location.href} label="Copy the link" className="" /></div>
  </aside>`;
}
