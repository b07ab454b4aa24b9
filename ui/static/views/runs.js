// The list of runs: tabs by state, filters as chips, a search, saved views, selection and bulk actions.
import { html, useState, useRef, useEffect, cls, none } from '../lib.js';
import { go, href, withQuery, route } from '../router.js';
import { get, post, can } from '../api.js';
import { useRuns, useCounts, refresh, asQuery } from '../live.js';
import { ended, count } from '../format.js';
import { Page, Table, State, Ago, Empty, Trouble, Loading, Tabs, RunLink, Took, ask, act, toast,
  statusOf } from '../parts.js';
import { Safe } from '../safe.js';
import { tenant } from '../tenants.js';

const tabs = ['', 'running', 'queued', 'suspended', 'deferred', 'completed', 'failed', 'timeout', 'cancelled'];
const names = { '': 'All', running: 'Running', queued: 'Queued', suspended: 'Waiting', deferred: 'Deferred',
  completed: 'Completed',
  failed: 'Failed', timeout: 'Timed out', cancelled: 'Cancelled' };
const plain = ['kind', 'queue', 'thread_id', 'root_run_id', 'parent_run_id', 'created_after', 'created_before'];

/** filterOf reads the filter from the address. */
function filterOf(query) {
  const f = {};
  if (query.get('status')) f.status = [query.get('status')];
  for (const k of plain) if (query.get(k)) f[k] = query.get(k);
  for (const [k, v] of query) if (k.startsWith('metadata.')) (f.metadata ??= {})[k.slice(9)] = v;
  return f;
}

// search understands kind:report, queue:slow, thread:…, since:2h, name=value of metadata, and ids.
function search(text) {
  const q = {};
  for (const word of text.trim().split(/\s+/).filter(Boolean)) {
    const id = word.match(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
    if (id) { go('/runs/' + word); return; }
    const field = word.match(/^(kind|queue|status|thread|tree|parent|since|before):(.+)$/);
    const meta = word.match(/^([^=:]+)=(.*)$/);
    if (field) {
      const [, k, v] = field;
      const past = v.match(/^(\d+)([smhd])$/);
      const at = past ? new Date(Date.now() - past[1] * { s: 1e3, m: 6e4, h: 36e5, d: 864e5 }[past[2]]).toISOString()
        : v;
      q[{ thread: 'thread_id', tree: 'root_run_id', parent: 'parent_run_id', since: 'created_after',
          before: 'created_before' }[k] ?? k]
        = k === 'since' || k === 'before' ? at : v;
    } else if (meta) q['metadata.' + meta[1]] = meta[2];
    else q.kind = word;
  }
  location.hash = withQuery({ ...q, cursor: '' });
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

function Chips({ query }) {
  const chips = [...query].filter(([k]) => k !== 'status' && k !== 'cursor' && k !== 'limit');
  return chips.map(([k, v]) => html`<span class="chip" key=${k}>
      <b>${k.replace('metadata.', '')}</b> <${Safe} text=${v} max=${60} />
    <a href=${withQuery({ [k]: '', cursor: '' })} aria-label=${`Remove the filter ${k}`}>×</a></span>`);
}

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

/** maxSelected bounds a selection. More is done in several turns, or with the API. */
const maxSelected = 2000;

/**
 * BulkBar does something to the selected runs. all selects every run that matches the filters, also
 * those that are not shown. It is there as long as there are such runs, whichever are selected: the list is
 * live, and a row that comes in between must not take the button away.
 */
function BulkBar({ picked, drop, all }) {
  const [progress, tell] = useState(none), [reading, setReading] = useState(false), stop = useRef(false);
  const live = picked.filter(r => !ended(r.state)), over = picked.filter(r => ended(r.state)),
    dead = over.filter(r => r.state === 'failed' || r.state === 'timeout');
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

/** Life is the age of the last sign of life, marked when it is old. */
function Life({ run }) {
  if (ended(run.state)) return html`<span class="dim">–</span>`;
  if (!run.seen_at) return html`<span class="dim">not yet</span>`;
  return html`<span class=${'life is-' + (run.tier ?? 'none')}><${Ago} at=${run.seen_at} />
      ${run.tier && run.tier !== 'fresh' ? html` <b>${run.tier}</b>` : ''}</span>`;
}

// With all tenants together, a row says whose it is, and its link leads to that tenant.
const whose = r => (tenant.value === '*' && r.tenant ? { tenant: r.tenant } : undefined);

export const runColumns = [
  { name: 'State', className: 'c-state', cell: r => html`<${State} state=${statusOf(r)} title=${statusOf(r) !== r.state
      ? `The work is ${r.state}` : undefined} />` },
  { name: 'Kind', className: 'grow', cell: r =>
    html`<span class="kind"><a href=${href('/runs/' + r.run_id, whose(r))}><${Safe} text=${r.kind} max=${80} /></a>
    ${whose(r) && html`<span class="tag">${r.tenant}</span>`}
    ${r.error ? html`<span class=${cls('why', r.state !== 'cancelled' && 'bad')}>
        <code>${r.error.code}</code> <${Safe} text=${r.error.message ?? ''} max=${110} /></span>`
    : r.activity && !ended(r.state) ? html`<span class="why"><${Safe} text=${r.activity} max=${110} /></span>`
    : r.result_summary ? html`<span class="why"><${Safe} text=${r.result_summary} max=${110} /></span>` : ''}
    ${Object.entries(r.metadata ?? {}).slice(0, r.error || r.activity ? 1 : 2).map(([k, v]) =>
        html`<a class="meta" key=${k} href=${withQuery({ ['metadata.' + k]: v })}>
            ${k}=<${Safe} text=${v} max=${24} /></a>`)}</span>` },
  { name: 'Run', className: 'c-id', cell: r => html`<${RunLink} id=${r.run_id} query=${whose(r)} />` },
  { name: 'Queue', className: 'c-queue wide-only', cell: r => html`<${Safe} text=${r.queue} max=${40} />` },
  { name: 'Try', className: 'num c-try wide-only', cell: r =>
    html`${r.attempt}<span class="dim">/${r.max_attempts}</span>` },
  { name: 'Sign of life', className: 'c-life wide-only', cell: r => html`<${Life} run=${r} />` },
  { name: 'Took', className: 'num c-took', cell: r => html`<${Took} run=${r} />` },
  { name: 'Age', className: 'num c-age', cell: r => html`<${Ago} at=${r.created_at} suffix="" />` },
];

export default function Runs({ query }) {
  const [paused, setPaused] = useState(false);
  const [chosen, setChosen] = useState(new Set());
  const [limit, setLimit] = useState(50);
  const last = useRef('');
  const filter = filterOf(query), cursor = query.get('cursor') ?? '';
  const { rows, next, error, news } = useRuns(filter, { limit, cursor, held: paused });
  const { status: _, ...rest } = filter;
  const counts = useCounts(rest);
  const at = query.get('status') ?? '';
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
  const filtered = [...query].length > 0;
  const n = s => (s ? counts?.status?.[s] : undefined);
  return html`<${Page} title="Runs" actions=${html`
      <button type="button" data-pause aria-pressed=${paused} onClick=${() => setPaused(!paused)}>
        ${paused ? `Go on${news ? ` (${count(news)} changes)` : ''}` : 'Pause'}</button>
      ${can('runs:create') && html`<a class="button primary" href=${href('/start')}>Start a run</a>`}`}>
    <${Tabs} label="States" at=${at} to=${s => { location.hash = withQuery({ status: s, cursor: '' }); }}
      tabs=${tabs.map(s => ({ id: s, name: names[s], state: s || undefined, count: n(s) }))} />
    <div class="filters"><form role="search" onSubmit=${e =>
        { e.preventDefault(); search(e.currentTarget.q.value); e.currentTarget.reset(); }}>
      <input type="search" name="q" aria-label="Filter runs"
        placeholder="kind:report  queue:slow  host=cube  since:2h  or a run's id" /></form>
      <${Chips} query=${query} /><${SavedViews} /></div>
    <${Trouble} error=${error} />
    ${chosen.size > 0 && rows && html`<${BulkBar}
      drop=${list => setChosen(old => old.difference(new Set(list.map(r => r.run_id))))}
      picked=${[...chosen].map(id => picked.current.get(id)).filter(Boolean)} all=${next && selectAll} />`}
    ${rows === null ? (error ? '' : html`<${Loading} />`) : rows.length === 0
      ? (filtered ? html`<${Empty} title="No run matches">
          ${next ? html`None of the newest runs does. <a href=${withQuery({ cursor: next })}>Look further back</a>, or `
            : ''}<a href=${href('/runs')}>show all runs</a>.<//>`
        : html`<${Empty} title="No runs yet">
            <p>A run is one piece of work that is kept until it has ended, whatever happens to the machine it runs
              on. Start one:</p>
            <pre class="text">perdure chat "check disk space"\nperdure exec -- sleep 60</pre>
          <p>or <a href=${href('/start')}>fill in a form</a>.</p><//>`)
      : html`<${Table} steady label="Runs" columns=${runColumns} rows=${rows} keyOf=${r => r.run_id} open=${r =>
          go('/runs/' + r.run_id, whose(r))} chosen=${chosen} choose=${tenant.value === '*' ? undefined : choose} />
        <div class="pager">${cursor && html`<a href=${withQuery({ cursor: '' })}>Newest</a>`}
          ${next && limit < 200 && !cursor &&
            html`<button type="button" onClick=${() => setLimit(Math.min(200, limit * 2))}>Show more</button>`}
          ${next && html`<a href=${withQuery({ cursor: next })}>Older</a>`}</div>`}
  <//>`;
}
