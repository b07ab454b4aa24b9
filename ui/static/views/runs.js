// The list of runs: tabs by state, a search, filters as chips, saved views, columns, selection and bulk actions.
import { html, useState, useRef, useEffect } from '../lib.js';
import { go, href, withQuery, route, keep, kept } from '../router.js';
import { get, can } from '../api.js';
import { useRuns, useCounts, asQuery } from '../live.js';
import { ended, count, instant } from '../format.js';
import { Page, Table, Empty, Trouble, Loading, Tabs, ask, act, toast } from '../parts.js';
import { Safe } from '../safe.js';
import { tenant } from '../tenants.js';
import { filters, names as fieldNames, read } from '../search.js';
import { Search } from './runs-search.js';
import { BulkBar, maxSelected } from './runs-bulk.js';
import { columnsOf, sorted, optional, whose } from './runs-columns.js';

const tabs = ['', 'running', 'queued', 'suspended', 'deferred', 'completed', 'failed', 'timeout', 'cancelled'];
const names = { '': 'All', running: 'Running', queued: 'Queued', suspended: 'Waiting', deferred: 'Deferred',
  completed: 'Completed',
  failed: 'Failed', timeout: 'Timed out', cancelled: 'Cancelled' };

/** filterOf reads the filter from the address. */
function filterOf(query) {
  const f = {};
  if (query.get('status')) f.status = query.get('status').split(',');
  for (const k of filters) if (query.get(k)) f[k] = k === 'state' ? query.get(k).split(',') : query.get(k);
  for (const [k, v] of query) if (k.startsWith('metadata.')) (f.metadata ??= {})[k.slice(9)] = v;
  return f;
}

/** search shows what was typed. The end of one id opens its run. */
async function search(text, kinds) {
  const { query, wrong } = read(text, kinds);
  if (wrong) { toast(wrong, true); return; }
  const id = query.id_part;
  if (id && Object.keys(query).length === 1) {
    const found = await act('', () => get('/runs', { id_part: id, limit: 2 }));
    if (found?.runs.length === 1) { go('/runs/' + found.runs[0].run_id); return; }
  }
  location.hash = withQuery({ ...query, cursor: '' });
}

const saved = () => { try { return JSON.parse(localStorage.getItem('perdure.views') ?? '[]'); } catch { return []; } };

function SavedViews() {
  const [views, set] = useState(saved);
  const keep = list => { set(list); localStorage.setItem('perdure.views', JSON.stringify(list)); };
  const here = String(route.value.query);
  const add = async () => {
    const a = await ask({ title: 'Save this view', yes: 'Save',
        text: 'The filters of this list, under a name, in this browser.',
      fields: [{ name: 'name', label: 'Name' }] });
    if (a?.name) keep([...views.filter(v => v.name !== a.name), { name: a.name, query: here }].slice(-12));
  };
  return html`<span class="saved">${views.map(v =>
      html`<span class="chip" key=${v.name}><a href=${href('/runs', new URLSearchParams(v.query))}>${v.name}</a>
      <button type="button" aria-label=${`Forget the view ${v.name}`} onClick=${() =>
        keep(views.filter(o => o !== v))}>×</button></span>`)}
    ${here && !views.some(v => v.query === here) &&
      html`<button type="button" class="linkish" onClick=${add}>Save this view</button>`}</span>`;
}

/** shown are parameters of the address that are no filters. */
const shown = ['cursor', 'limit', 'cols', 'sort'];

/** chipText writes a value: a time as a person reads it, and nothing where the name says all. */
const chipText = (k, v) => (k === 'held' ? '' : /^\d{4}-\d\d-\d\dT/.test(v) ? instant(v) : v);

function Chips({ query }) {
  const chips = [...query].filter(([k, v]) => !shown.includes(k) && (k !== 'status' || v.includes(',')));
  return chips.map(([k, v]) => html`<span class="chip" key=${k}>
      <b>${fieldNames[k] ?? k.replace('metadata.', '')}</b> <${Safe} text=${chipText(k, v)} max=${60} />
    <a href=${withQuery({ [k]: '', cursor: '' })} aria-label=${`Remove the filter ${k}`}>×</a></span>`);
}

/** Columns chooses the columns. They are in the address, as the filters are. */
function Columns({ columns }) {
  const at = columns.map(c => c.name);
  const change = (name, on) => { location.hash = withQuery({
    cols: optional.filter(n => (n === name ? on : at.includes(n))).join(',') || 'none' }); };
  return html`<details class="menu columns"><summary>Columns</summary><div class="menu-list">
    ${optional.map(n => html`<label class="check" key=${n}><input type="checkbox" checked=${at.includes(n)}
      onChange=${e => change(n, e.currentTarget.checked)} /> ${n}</label>`)}</div></details>`;
}

/** Back says how far a search came that ended before its page was full. */
const Back = ({ to, next }) => to && html`<span class="searched">Searched back to ${instant(to)}.${next &&
  html` <a href=${withQuery({ cursor: next })}>Look further back</a>`}</span>`;

export default function Runs({ query }) {
  const [paused, setPaused] = useState(false);
  const [chosen, setChosen] = useState(new Set());
  const [limit, setLimit] = useState(kept().limit ?? 50);
  const more = n => { setLimit(n); keep({ limit: n }); };
  const last = useRef('');
  const filter = filterOf(query), cursor = query.get('cursor') ?? '';
  const { rows: got, next, searched, error, news } = useRuns(filter, { limit, cursor, held: paused });
  const { status: _, ...rest } = filter;
  const counts = useCounts(rest);
  const at = query.get('status') ?? '', by = query.get('sort') ?? '';
  const rows = got && sorted(got, by);
  const columns = columnsOf(query.get('cols'), at);
  useEffect(() => setChosen(new Set()), [String(query)]);
  const choose = (id, on, shift) => setChosen(old => {
    const set = new Set(old), ids = (rows ?? []).map(r => r.run_id);
    const a = ids.indexOf(last.current), b = ids.indexOf(id);
    for (const one of shift && a >= 0 ? ids.slice(Math.min(a, b), Math.max(a, b) + 1) : [id]) on ? set.add(one)
      : set.delete(one);
    last.current = id;
    return set;
  });
  // Selected runs stay selected when newer runs push them off the page.
  const picked = useRef(new Map());
  for (const r of rows ?? []) if (chosen.has(r.run_id)) picked.current.set(r.run_id, r);
  const selectAll = async () => {
    const found = new Map();
    for (let at = ''; found.size < maxSelected;) {
      const page = await get('/runs', { ...asQuery(filter), limit: 200, cursor: at });
      for (const r of page.runs) found.set(r.run_id, r);
      at = page.next_cursor ?? '';
      if (!at) break;
    }
    for (const [id, r] of found) picked.current.set(id, r);
    setChosen(new Set([...found.keys()].slice(0, maxSelected)));
    if (found.size >= maxSelected) toast(`The newest ${count(maxSelected)} are selected.`);
  };
  const filtered = [...query].some(([k]) => !shown.includes(k));
  // The server counts a bounded number of runs. A number that may be larger says so.
  const n = s => {
    if (!s || !counts?.status) return undefined;
    const number = counts.status[s], more = ended(s) ? counts.ended_since : counts.at_least;
    return more ? `${count(number)}+` : number;
  };
  return html`<${Page} title="Runs" actions=${html`
      <button type="button" data-pause aria-pressed=${paused} onClick=${() => setPaused(!paused)}>
        ${paused ? `Go on${news ? ` (${count(news)} changes)` : ''}` : 'Pause'}</button>
      ${can('runs:create') && html`<a class="button primary" href=${href('/start')}>Start a run</a>`}`}>
    <${Tabs} label="States" at=${at} to=${s => { location.hash = withQuery({ status: s, cursor: '' }); }}
      tabs=${tabs.map(s => ({ id: s, name: names[s], state: s || undefined, count: n(s) }))} />
    ${counts?.ended_since && html`<p class="sub">There are many runs: those that have ended are counted among the ones
      that were created since ${instant(counts.ended_since)}.</p>`}
    <div class="filters"><${Search} counts=${counts} search=${search} />
      <${Chips} query=${query} /><${SavedViews} /><${Columns} columns=${columns} /></div>
    <${Trouble} error=${error} />
    ${chosen.size > 0 && rows && html`<${BulkBar}
      drop=${list => setChosen(old => old.difference(new Set(list.map(r => r.run_id))))}
      picked=${[...chosen].map(id => picked.current.get(id)).filter(Boolean)} all=${next && selectAll} />`}
    ${rows === null ? (error ? '' : html`<${Loading} />`) : rows.length === 0
      ? (filtered ? html`<${Empty} title="No run matches">
          ${searched ? html`<${Back} to=${searched} next=${next} /> Or ` : ''}<a
            href=${href('/runs')}>show all runs</a>.<//>`
        : html`<${Empty} title="No runs yet">
            <p>A run is one piece of work that is kept until it has ended, whatever happens to the machine it runs
              on. Start one:</p>
            <pre class="text">perdure chat "check disk space"\nperdure exec -- sleep 60</pre>
          <p>or <a href=${href('/start')}>fill in a form</a>.</p><//>`)
      : html`<${Table} key=${columns.length} steady label="Runs" columns=${columns} sort=${by}
          onSort=${name => { location.hash = withQuery({ sort: by === name ? '-' + name : by === '-' + name ? ''
            : name }); }} rows=${rows}
          keyOf=${r => r.run_id} open=${r => go('/runs/' + r.run_id, whose(r))} chosen=${chosen}
          choose=${tenant.value === '*' ? undefined : choose} />
        <div class="pager"><${Back} to=${searched} />${cursor && html`<a href=${withQuery({ cursor: '' })}>Newest</a>`}
          ${next && limit < 200 && !cursor &&
            html`<button type="button" onClick=${() => more(Math.min(200, limit * 2))}>Show more</button>`}
          ${next && html`<a href=${withQuery({ cursor: next })}>Older</a>`}</div>`}
  <//>`;
}
