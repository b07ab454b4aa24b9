// Groups: runs that are waited for together, how many of each have ended, and until when it is waited.
import { html } from '../lib.js';
import { href, go, withQuery } from '../router.js';
import { useList } from '../live.js';
import { count, short } from '../format.js';
import { Page, Table, Tabs, Empty, Trouble, Loading, Ago, Until, Shape } from '../parts.js';

export const pathOf = id => '/groups/' + encodeURIComponent(id);

const shapes = { open: ['suspended', 'Open'], satisfied: ['completed', 'Satisfied'],
  timed_out: ['timeout', 'Timed out'] };

/** Condition is the state of a group. */
export function Condition({ of: g }) {
  const [shape, name] = shapes[g.state] ?? ['queued', g.state];
  return html`<span class=${'state is-' + shape}><${Shape} state=${shape} />${name}</span>`;
}

/** modes say in words what a group waits for. */
export const modes = { all: 'until all have ended', all_ok: 'until all have completed, or one has not',
  any: 'until the first has ended', any_ok: 'until the first has completed, or all have ended' };

/** Done is how many runs of a group have ended, in numbers and as a bar. */
const Done = ({ of: g }) => html`<span class="group-done"><progress max=${g.total} value=${g.ended}
  aria-label=${`${g.ended} of ${g.total} runs have ended`}></progress>${count(g.ended)}/${count(g.total)}</span>`;

/** Unsuccessful is how many runs of a group have ended and are not completed. */
const Unsuccessful = ({ of: g }) => (g.ended > g.completed ? html`<span class="bad">
  ${count(g.ended - g.completed)}</span>`
  : '0');

const tabs = [['', 'All'], ['open', 'Open'], ['ended', 'Ended']];

export default function Groups({ query }) {
  const cursor = query.get('cursor') ?? '', state = query.get('state') ?? '';
  const { items, error, next } = useList('groups', '/groups', 'groups', { state, limit: 50, cursor });
  const older = next && html`<a href=${withQuery({ cursor: next })}>Older</a>`;
  return html`<${Page} title="Groups" sub="Runs that are waited for together. A run may be in several groups.">
    <${Tabs} label="States" at=${state} to=${s => { location.hash = withQuery({ state: s, cursor: '' }); }}
      tabs=${tabs.map(([id, name]) => ({ id, name }))} />
    <${Trouble} error=${error} />
    ${items === null ? !error && html`<${Loading} />` : items.length > 0
      ? html`<${Table} label="Groups" rows=${items} keyOf=${g => g.group_id} open=${g => go(pathOf(g.group_id))}
        columns=${[
        { name: 'State', className: 'fit', cell: g => html`<${Condition} of=${g} />` },
        { name: 'Group', className: 'grow lead', cell: g => html`<a class="id" href=${href(pathOf(g.group_id))}
          title=${g.group_id}>${short(g.group_id)}</a> <span class="why">${modes[g.mode] ?? g.mode}</span>` },
        { name: 'Done', className: 'num', cell: g => html`<${Done} of=${g} />` },
        { name: 'Unsuccessful', className: 'num', cell: g => html`<${Unsuccessful} of=${g} />` },
        { name: 'Deadline', className: 'num wide-only', cell: g => (g.deadline_at
          ? html`<${Until} at=${g.deadline_at} />` : html`<span class="dim">–</span>`) },
        { name: 'Age', className: 'num', cell: g => html`<${Ago} at=${g.created_at} suffix="" />` }]} />`
      : next ? html`<${Empty} title="None here">There may be older ones: ${older}.<//>`
        : state || cursor ? html`<${Empty} title="No group matches"><a href=${href('/groups')}>Show all
          groups</a>.<//>`
          : html`<${Empty} title="No groups">
            <p>Make one of runs that exist, and wait for all of them, or for the first:</p>
            <pre class="text">POST /api/v1/groups\n{"run_ids": ["…", "…"], "mode": "any_ok"}</pre><//>`}
    ${(cursor || next && items?.length > 0) && html`<div class="pager">${cursor && html`<a href=${withQuery({
      cursor: '' })}>Newest</a>`}${items?.length > 0 && older}</div>`}<//>`;
}
