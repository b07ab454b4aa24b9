// One schedule: its plan, its next instants, and how its instants went.
import { html } from '../lib.js';
import { href } from '../router.js';
import { can } from '../api.js';
import { useList, useGet } from '../live.js';
import { count, duration, instant } from '../format.js';
import { Page, Card, Facts, Table, Trouble, Loading, Empty, Ago, Until, Json, RunLink } from '../parts.js';
import { Safe } from '../safe.js';
import { Buttons, Condition, Next, pathOf, planOf, remove } from './schedules.js';

const overlaps = { allow: 'another one is started', skip: 'none is started', queue: 'one is started after it',
  cancel_old: 'it is asked to stop, and one is started' };
const misses = { once: 'one run for the latest of them', skip: 'none', all: 'a run for each of the last 100' };

export default function Schedule({ parts: [name] }) {
  const list = useList('schedules', '/schedules', 'schedules', { limit: 200 });
  const listed = list.items?.find(x => x.name === name);
  // A schedule behind the first page is read by itself, and again when the list changes.
  const read = useGet(list.items && !listed ? pathOf(name) : '', {}, [list.items]);
  const s = listed ?? read.value;
  const next = useGet(s ? pathOf(name) + '/next' : '', { n: 8 }, [s?.next_at, s?.changed_at]);
  const figure = (value, text) => html`<div class="figure"><p class="big">${value}</p><p class="sub">${text}</p></div>`;
  return html`<${Page} name=${`Schedule ${name}`} title=${html`<${Safe} text=${name} max=${120} />`}
      crumbs=${html`<a href=${href('/schedules')}>Schedules</a>`}
      sub=${s?.description && html`<${Safe} text=${s.description} max=${400} />`}
      actions=${s && html`<${Buttons} of=${s} />${can('runs:control') && html`<button type="button"
        onClick=${() => remove(s)}>Delete</button>`}`}>
    <${Trouble} error=${list.error} />
    ${!s ? (list.items === null || (read.loading && !read.error) ? html`<${Loading} />` : html`<${Empty}
        title="There is no such schedule">It may have been deleted. Its runs go on.<//>`)
      : html`<div class="home"><section class="home-main">
      ${s.last_error && html`<p class="trouble" role="alert"><span>The last instant was refused${s.failures > 1
        ? `, as were ${count(s.failures - 1)} before it` : ''}: <code>${s.last_error.code}</code>
        ${' '}<${Safe} text=${s.last_error.message ?? ''} max=${300} /></span></p>`}
      <${Card} title="How its instants went"><div class="figures">
        ${figure(count(s.fired), 'started a run')}${figure(count(s.missed_count), 'missed')}
        ${figure(count(s.skipped), 'left out: the last run was live')}${figure(count(s.failed), 'refused')}</div><//>
      <${Card} title="Next instants">${!next.value ? html`<${Loading} />` : next.value.instants.length === 0
        ? html`<p class="dim">None is left.</p>` : html`<${Table} label="Next instants" rows=${next.value.instants}
          keyOf=${i => i.at} columns=${[
          { name: 'There', className: 'grow', cell: i => html`<span class="mono">${i.local}</span>` },
          { name: 'Here', className: 'fit', cell: i => instant(i.at) },
          { name: 'When', className: 'num', cell: i => html`<${Until} at=${i.fires_at} />` }]} />`}<//>
    </section><section class="home-side"><${Card} title="About it"><${Facts} of=${[
      ['State', html`<${Condition} of=${s} />`], ['Plan', html`<code>${planOf(s)}</code>`],
      ['Fires next', html`<${Next} of=${s} />`], ['Jitter', s.jitter],
      ['Last', s.last_at && html`<${Ago} at=${s.last_at} />`],
      ['Its run', s.last_run && html`<${RunLink} id=${s.last_run} />`],
      ['It came late by', duration(s.late_ms)], ['Paused', s.paused_at && html`<${Ago} at=${s.paused_at} />`],
      ['Begins', s.start_at && instant(s.start_at)], ['Ends', s.end_at && instant(s.end_at)],
      ['While its last run is live', overlaps[s.overlap]], ['Missed instants start', misses[s.missed]],
      ['Changed', html`<${Ago} at=${s.changed_at} />`]]} /><//>
      <${Card} title="What it starts"><${Json} value=${s.submission} label="Submission" /><//></section></div>`}<//>`;
}
