// Schedules: runs that are started at instants of a plan, when they come next, and how late the last ones were.
import { html } from '../lib.js';
import { href, go, withQuery } from '../router.js';
import { call, can, post } from '../api.js';
import { useList, refresh } from '../live.js';
import { count, duration, span } from '../format.js';
import { Page, Table, Empty, Trouble, Loading, Ago, Until, RunLink, Shape, ask, act } from '../parts.js';
import { Safe } from '../safe.js';

export const pathOf = name => '/schedules/' + encodeURIComponent(name);

/** Condition is the state of a schedule. One whose last instants were refused is told apart. */
export function Condition({ of: s }) {
  const [shape, name] = s.state === 'paused' ? ['suspended', 'Paused'] : s.state === 'over' ? ['cancelled', 'Over']
    : s.failures ? ['failed', 'Refused'] : ['completed', 'Active'];
  return html`<span class=${'state is-' + shape}><${Shape} state=${shape} />${name}</span>`;
}

/** planOf writes a plan: its expression and zone, or its interval. */
export const planOf = s => (s.cron ? `${s.cron}, ${s.timezone || 'UTC'}` : `every ${span(s.every)}`);

/** Next is when a schedule fires next. */
export const Next = ({ of: s }) => (s.queued_at ? 'when the last run has ended' : s.state === 'active' && s.next_at
  ? html`<${Until} at=${s.fires_at ?? s.next_at} />` : html`<span class="dim">–</span>`);

async function pause(s) {
  const sure = await ask({ title: `Pause ${s.name}?`, yes: 'Pause the schedule',
    text: 'It starts no runs. Instants that pass meanwhile count as missed when it is resumed.' });
  if (sure) await act('Paused.', () => post(pathOf(s.name) + '/pause')).then(refresh);
}

async function resume(s) {
  const missed = { skip: 'Instants that were missed start none.', all: 'Up to 100 missed instants start a run each.' }[
    s.missed] ?? 'The latest of the missed instants starts a run.';
  if (await ask({ title: `Resume ${s.name}?`, yes: 'Resume the schedule', text: missed })) {
    await act('Resumed.', () => post(pathOf(s.name) + '/resume')).then(refresh);
  }
}

async function trigger(s) {
  if (!await ask({ title: `Start a run of ${s.name} now?`, yes: 'Start it',
    text: 'It moves no instant of the plan.' })) return;
  const run = await act('', () => post(pathOf(s.name) + '/trigger'));
  if (run) go('/runs/' + run.run_id);
}

/** remove deletes a schedule. Its runs go on. */
export async function remove(s) {
  if (!await ask({ title: `Delete ${s.name}?`, yes: 'Delete', danger: true,
    text: 'It starts nothing more. Its runs go on.' })) return;
  if (await act('Deleted.', () => call('DELETE', pathOf(s.name), { once: true }))) go('/schedules');
  refresh();
}

/** Buttons pause or resume a schedule, and start a run of it. */
export const Buttons = ({ of: s }) => html`<span class="actions">
  ${can('runs:create') && html`<button type="button" onClick=${() => trigger(s)}>Run now</button>`}
  ${can('runs:control') && s.state !== 'over' && html`<button type="button" onClick=${() =>
    (s.state === 'paused' ? resume(s) : pause(s))}>${s.state === 'paused' ? 'Resume' : 'Pause'}</button>`}</span>`;

export default function Schedules({ query }) {
  const cursor = query.get('cursor') ?? '';
  const { items, error, next } = useList('schedules', '/schedules', 'schedules', { limit: 100, cursor });
  return html`<${Page} title="Schedules" sub="Runs that are started at instants of a plan, each instant once.">
    <${Trouble} error=${error} />
    ${items === null ? !error && html`<${Loading} />` : items.length === 0
      ? html`<${Empty} title="No schedules"><p>Start a run every night:</p>
        <pre class="text">perdure schedules add nightly report --cron "30 2 * * *"</pre><//>`
      : html`<${Table} label="Schedules" rows=${items} keyOf=${s => s.schedule_id} open=${s => go(pathOf(s.name))}
        columns=${[
        { name: 'State', className: 'fit', cell: s => html`<${Condition} of=${s} />` },
        { name: 'Schedule', className: 'grow lead', cell: s => html`<a href=${href(pathOf(s.name))}><b><${Safe}
          text=${s.name} max=${60} /></b></a> <span class="why"><${Safe} text=${s.submission.kind} max=${40} />
          ${s.last_error ? html`: <span class="bad"><code>${s.last_error.code}</code></span>` : ''}</span>` },
        { name: 'Plan', className: 'fit named', cell: s => html`<span class="mono">${planOf(s)}</span>` },
        { name: 'Next', className: 'fit named', cell: s => html`<${Next} of=${s} />` },
        { name: 'Last', className: 'fit named', cell: s => (s.last_at ? html`<${Ago} at=${s.last_at} />${s.last_run &&
          html` <${RunLink} id=${s.last_run} />`}` : html`<span class="dim">never</span>`) },
        { name: 'Late by', className: 'num wide-only', cell: s => duration(s.late_ms) || '–' },
        { name: 'Missed', className: 'num', cell: s => count(s.missed_count) },
        { name: '', className: 'fit', cell: s => html`<${Buttons} of=${s} />` }]} />`}
    ${(next || cursor) && html`<div class="pager">${cursor && html`<a href=${withQuery({ cursor: '' })}>First</a>`}
      ${next && html`<a href=${withQuery({ cursor: next })}>More</a>`}</div>`}<//>`;
}
