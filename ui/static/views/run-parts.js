// The tabs of a run beside its log: input and result, waits, children, output.
import { html } from '../lib.js';
import { call, can, url } from '../api.js';
import { useGet, useList, refresh } from '../live.js';
import { duration, size, now, ms, ended, count } from '../format.js';
import { href } from '../router.js';
import { maxRuns } from '../tree.js';
import { Card, State, Ago, Until, Table, Trouble, Loading, Empty, Value, RunLink, act, ask,
  statusOf } from '../parts.js';
import { Safe } from '../safe.js';
import { Decision } from './approvals.js';
import { useWaits } from './waiting.js';

/** Data is what a run was given, and what it has made. */
export function Data({ run }) {
  const whole = useGet('/runs/' + run.run_id, {}, [run.state]);
  const outcome = useGet(ended(run.state) ? `/runs/${run.run_id}/deliverable` : '', {}, [run.state]);
  const files = useGet(`/runs/${run.run_id}/artifacts`, {}, [run.state, run.last_seq]);
  const views = useGet(`/runs/${run.run_id}/views`, {}, [run.last_seq]);
  const late = useGet(`/runs/${run.run_id}/late-results`, {}, [run.late_results]);
  if (whole.loading) return html`<${Loading} />`;
  const full = whole.value ?? run;
  return html`<div class="grid-2">
    <${Card} title="Input"><${Value} value=${full.input} label="Input" /><//>
    <${Card} title=${outcome.value?.kind === 'fallback' ? 'What there is without a result' : 'Result'}>
      ${ended(run.state)
      ? (outcome.value ? html`<${Value} value=${outcome.value.content} label="Result" />` : full.result !== undefined
        ? html`<${Value} value=${full.result} />` : html`<p class="dim">It has left none.</p>`)
      : html`<p class="dim">There is none until the run has ended.</p>`}
      ${full.progress !== undefined && !ended(run.state) &&
        html`<h3>Progress</h3><${Value} value=${full.progress} />`}<//>
    <${Card} title="Artifacts">${files.value?.artifacts?.length
        ? html`<${Table} label="Artifacts" rows=${files.value.artifacts} keyOf=${a => a.name} columns=${[
      { name: 'Name', className: 'grow', cell: a =>
        html`<a href=${url(`/runs/${run.run_id}/artifacts/${encodeURIComponent(a.name)}`)} download>
            <${Safe} text=${a.name} max=${120} /></a>` },
      { name: 'Size', className: 'num', cell: a => size(a.size) },
        { name: 'Stored', className: 'fit', cell: a => html`<${Ago} at=${a.at} />` }]} />`
      : html`<p class="dim">Files that a run leaves beside its result are here. This one has left none.</p>`}<//>
    ${views.value?.views?.length > 0 && html`<${Card} title="Views">
        ${views.value.views.map(v => html`<${View} key=${v.name} run=${run} view=${v} />`)}<//>`}
    ${late.value?.late_results?.length > 0 &&
      html`<${Card} title="Late results">
          <p class="sub">Work that was finished after the run was taken away, or had ended. It is kept, and can be
            taken.</p>
      ${late.value.late_results.map(l => html`<div key=${l.n} class="stack">
          <div class="row"><b>#${l.n}</b><span class="tag">${l.state}</span>
            <span class="dim">${l.worker_id} · <${Ago} at=${l.at} /></span>
        ${l.state === 'kept' && can('runs:control') &&
          html`<button type="button" onClick=${async () =>
              { if (await ask({ title: 'Take this result?', yes: 'Take it',
                  text: 'It becomes the result of the run.' })) { await act('Taken.', () =>
                    call('POST', `/runs/${run.run_id}/late-results/${l.n}/adopt`, { body: {} })); refresh();
                      } }}>Take it</button>
          <button type="button" onClick=${() =>
            act('Discarded.', () => call('POST', `/runs/${run.run_id}/late-results/${l.n}/discard`,
                { body: {} })).then(refresh)}>Discard</button>`}</div>
        <${Value} value=${l.result} /></div>`)}<//>`}
  </div>`;
}

function View({ run, view }) {
  const v = useGet(`/runs/${run.run_id}/views/${encodeURIComponent(view.name)}`, {}, [view.version]);
  return html`<div><h3><${Safe} text=${view.name} /> <span class="dim">version ${view.version}</span></h3>
      ${v.value && html`<${Value} value=${v.value.value} />`}</div>`;
}

/** Waits is what a run waits for, and what came to it. */
export function Waits({ run }) {
  const a = useWaits(run, true);
  const approvals = useList('approvals', '/approvals', 'approvals', { run_id: run.run_id, state: 'all' });
  if (!a.value && !a.error) return html`<${Loading} />`;
  const waits = a.value?.waits ?? [], skipped = a.value?.skipped ?? [];
  return html`<div class="stack"><${Trouble} error=${a.error} />
    <${Card} title="Open waits">${waits.length
        ? html`<${Table} label="Open waits" rows=${waits} keyOf=${w => w.wait_id} columns=${[
      { name: 'Wait', className: 'grow', cell: w =>
        html`<b><${Safe} text=${w.wait_id} /></b> ${w.name &&
            html`<span class="dim"><${Safe} text=${w.name} /></span>`}` },
      { name: 'For', className: 'fit', cell: w =>
        (w.type === 'children' ? `children (${w.mode}): ${w.ended ?? 0} of ${w.children ?? 0}` : w.type) },
      { name: 'Since', className: 'fit', cell: w => html`<${Ago} at=${w.opened_at} />` },
      { name: 'Times out', className: 'fit', cell: w =>
        (w.timeout_at ? html`<${Until} at=${w.timeout_at} />` : html`<span class="dim">at the deadline</span>`) }]} />`
      : html`<p class="dim">${ended(run.state) ? 'The run has ended: it waits for nothing.'
          : html`It waits for nothing. A run that waits for children, a person, a signal or a timer holds no worker
            meanwhile.`}</p>`}<//>
    ${(approvals.items ?? []).map(one => html`<${Decision} key=${one.approval_id} approval=${one} />`)}
    ${skipped.length > 0 && html`<${Card} title="Items that nobody read">
        <${Table} label="Skipped items" rows=${skipped} keyOf=${i => String(i.seq)} columns=${[
      { name: '#', className: 'num', cell: i => i.seq },
        { name: 'Item', className: 'grow', cell: i => html`${i.type} <${Safe} text=${i.name ?? ''} />` },
      { name: 'Why', cell: i => html`<code>${i.watchdog_error}</code>` },
        { name: 'Came', className: 'fit', cell: i => html`<${Ago} at=${i.at} />` }]} /><//>`}
  </div>`;
}

/** Children is the tree below a run. */
export function Children({ id, tree, cut }) {
  const below = p => [...tree.values()].filter(e => e.run.parent_run_id === p).map(e => e.run).sort((a, b) =>
    (a.run_id < b.run_id ? -1 : 1));
  const branch = (p, depth) => { const list = below(p); return list.length > 0 && depth < 12 &&
    html`<ul class="tree">${list.map(r => html`<li key=${r.run_id}>
    <div class="one" data-row tabindex="-1"><${State} state=${statusOf(r)} /><b><${Safe} text=${r.kind} max=${60} /></b>
      <${RunLink} id=${r.run_id} />
      <span class="dim">${ended(r.state) ? duration(r.duration_ms)
          : duration(now.value - ms(r.created_at))}${r.attempt > 1 ? ` · attempt ${r.attempt}` : ''}</span>
      ${r.error ? html`<span class="bad"><code>${r.error.code}</code></span>` : r.activity && !ended(r.state)
        ? html`<span class="dim"><${Safe} text=${r.activity} max=${80} /></span>` : ''}</div>
    ${branch(r.run_id, depth + 1)}</li>`)}</ul>`; };
  return html`<${Card}>${cut && html`<p class="sub">The tree has more runs: the newest ${count(maxRuns)} are here. <a
      href=${href('/runs', { root_run_id: tree.get(id)?.run.root_run_id ?? id })}>See all</a>.</p>`}${branch(id, 0) ||
      html`<${Empty}
          title="No children">A run can hand work to other runs and wait for them. They would be here, as a
            tree.<//>`}<//>`;
}
