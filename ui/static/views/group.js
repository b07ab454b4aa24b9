// One group: how far it is, and its runs.
import { html, useEffect, useState } from '../lib.js';
import { href, go, withQuery } from '../router.js';
import { useList, useReread, watch, connection } from '../live.js';
import { RunRows } from '../rows.js';
import { count, ended, instant, short } from '../format.js';
import { Page, Card, Facts, Table, Tabs, Trouble, Loading, Empty, Ago, Until, State, Took, RunLink,
  statusOf } from '../parts.js';
import { Safe } from '../safe.js';
import { Condition, modes } from './groups.js';

/** shown is how many runs are shown on a page: the socket tells of 200 by their ids. */
const shown = 100;

/** useRunsOf watches runs by their ids. It is null while no socket has told of them. */
function useRunsOf(ids) {
  const [rows, set] = useState(/** @type {Map<string, any>|null} */ (null));
  useEffect(() => {
    set(null);
    if (!ids.length) return undefined;
    const kept = new RunRows();
    return watch({ of: 'runs', filter: {}, ids, poll: async () => [{ type: 'snapshot', runs: [] }],
      on(messages) {
        const told = messages.filter(m => m.type !== 'error' && !(m.polled && connection.value === 'live'));
        if (!told.length) return;
        for (const m of told) kept.take(m);
        set(told.at(-1).polled ? null : new Map(kept.rows));
      } });
  }, [ids.join()]);
  return rows;
}

const tabs = { '': 'All', live: 'Not ended', completed: 'Completed', failed: 'Failed', cancelled: 'Cancelled' };
// Runs of a group that has ended may be deleted before it is.
const afterwards = { ...tabs, live: 'Live or deleted' };

/** tabOf gives the tab that has a state. */
const tabOf = state => (state === 'timeout' ? 'failed' : state ?? 'live');

/** Why is what became of a run, or what it does. */
const Why = ({ run: r }) => html`<span class="why">${r.error && html`<code>${r.error.code}</code> `}<${Safe}
  text=${r.error?.message ?? r.result_summary ?? (ended(r.state) ? '' : r.activity) ?? ''} max=${140} /></span>`;

const columns = [
  { name: 'State', className: 'fit', cell: r => html`<${State} state=${statusOf(r)} />` },
  { name: 'Kind', className: 'grow', cell: r => html`<b><${Safe} text=${r.kind} max=${80} /></b> <${Why} run=${r} />` },
  { name: 'Run', className: 'fit', cell: r => html`<${RunLink} id=${r.run_id} />` },
  { name: 'Took', className: 'num', cell: r => html`<${Took} run=${r} />` },
  { name: 'Age', className: 'num wide-only', cell: r => html`<${Ago} at=${r.created_at} suffix="" />` },
];

function Members({ of: g, ends, query, told }) {
  const at = query.get('show') ?? '', from = Number(query.get('from')) || 0;
  const stateOf = id => ends.get(id)?.state;
  const ids = g.run_ids.filter(id => !at || tabOf(stateOf(id)) === at);
  const page = ids.slice(from, from + shown);
  const live = useRunsOf(page);
  // A run that the socket does not tell of has what the group says of it, or was deleted.
  const rows = page.map(id => live?.get(id) ?? { run_id: id, kind: '', state: stateOf(id) ?? (live ? 'deleted'
    : 'not ended') });
  const over = rows.reduce((n, r) => n + Number(ended(r.state)), 0);
  useEffect(() => told(over), [over]);
  const n = { '': g.run_ids.length };
  for (const id of g.run_ids) n[tabOf(stateOf(id))] = (n[tabOf(stateOf(id))] ?? 0) + 1;
  const to = (text, start) => html`<a href=${withQuery({ from: start || '' })}>${text}</a>`;
  return html`<${Tabs} label="Runs by their ends" at=${at} to=${show => {
    location.hash = withQuery({ show, from: '' }); }} tabs=${Object.entries(g.state === 'open' ? tabs : afterwards)
    .map(([id, name]) => ({ id, name, count: n[id] ?? 0 }))} />
    ${rows.length === 0 ? html`<p class="dim">None.</p>` : html`<${Table} label="Runs of the group" rows=${rows}
      keyOf=${r => r.run_id} open=${r => go('/runs/' + r.run_id)} columns=${columns} />`}
    ${ids.length > shown && html`<div class="pager"><span class="searched">${count(from + 1)} to
      ${' '}${count(Math.min(ids.length, from + shown))} of ${count(ids.length)}</span>
      ${from > 0 && to('Before', Math.max(0, from - shown))}
      ${from + shown < ids.length && to('Next', from + shown)}</div>`}`;
}

export default function Group({ parts: [id], query }) {
  const path = '/groups/' + encodeURIComponent(id);
  const head = useList('groups', path, '', {}, { group_id: id });
  const [over, told] = useState(0);
  const whole = useReread(path, {}, [head.items, over]);
  // The call answers with the group, the socket with a list of one.
  const g = Array.isArray(head.items) ? head.items[0] : head.items, all = whole.value;
  const absent = head.items && !g || head.error?.status === 404;
  const ends = new Map((all?.ended_runs ?? []).map(r => [r.run_id, r]));
  const figure = (value, text) => html`<div class="figure"><p class="big">${value}</p><p class="sub">${text}</p></div>`;
  const decided = g && g.state !== 'open';
  return html`<${Page} name=${`Group ${short(id)}`} title=${html`Group <span class="id">${short(id)}</span>`}
      crumbs=${html`<a href=${href('/groups')}>Groups</a>`} sub=${g && `It waits ${modes[g.mode] ?? g.mode}.`}>
    ${!absent && html`<${Trouble} error=${head.error} />`}
    ${absent ? html`<${Empty} title="There is no such group">A group that has ended is removed after a time, as its
        runs are.<//>`
      : !g ? html`<${Loading} />` : html`<div class="home"><section class="home-main">
      <${Card} title=${decided ? 'When it was decided' : 'How far it is'}><div class="figures">
        ${figure(`${count(g.ended)} of ${count(g.total)}`, 'ended')}${figure(count(g.completed), 'completed')}
        ${figure(count(g.ended - g.completed), 'unsuccessful')}</div><//>
      <${Card} title="Its runs">${all ? html`<${Members} of=${all} ends=${ends} query=${query} told=${told} />`
        : html`<${Trouble} error=${whole.error} />${!whole.error && html`<${Loading} />`}`}<//>
    </section><section class="home-side"><${Card} title="About it"><${Facts} of=${[
      ['State', html`<${Condition} of=${g} />`], ['Mode', html`<code>${g.mode}</code>`],
      ['Losers', g.on_losers === 'cancel' ? 'are cancelled when it is satisfied' : 'go on'],
      ['Deadline', g.deadline_at && html`<${Until} at=${g.deadline_at} />`],
      ['Ended', g.ended_at && html`<${Ago} at=${g.ended_at} />`], ['Made', instant(g.created_at)],
      ['Id', html`<span class="mono">${id}</span>`]]} /><//></section></div>`}<//>`;
}
