// The columns of lists of runs.
import { html, cls } from '../lib.js';
import { href, withQuery } from '../router.js';
import { ended } from '../format.js';
import { State, Ago, Until, RunLink, Took, statusOf } from '../parts.js';
import { Safe } from '../safe.js';
import { tenant } from '../tenants.js';

/** Life is the age of the last sign of life, marked when it is old. */
function Life({ run }) {
  if (ended(run.state)) return html`<span class="dim">–</span>`;
  if (!run.seen_at) return html`<span class="dim">not yet</span>`;
  return html`<span class=${'life is-' + (run.tier ?? 'none')}><${Ago} at=${run.seen_at} />
      ${run.tier && run.tier !== 'fresh' ? html` <b>${run.tier}</b>` : ''}</span>`;
}

// With all tenants together, a row says whose it is, and its link leads to that tenant.
export const whose = r => (tenant.value === '*' && r.tenant ? { tenant: r.tenant } : undefined);

export const runColumns = [
  { name: 'State', value: r => statusOf(r),
    className: 'c-state', cell: r => html`<${State} state=${statusOf(r)} title=${statusOf(r) !== r.state
      ? `The work is ${r.state}` : undefined} />` },
  { name: 'Kind', value: r => r.kind,
    className: 'grow', cell: r =>
    html`<span class="kind"><a href=${href('/runs/' + r.run_id, whose(r))}><${Safe} text=${r.kind} max=${80} /></a>
    ${whose(r) && html`<span class="tag">${r.tenant}</span>`}
    ${r.error ? html`<span class=${cls('why', r.state !== 'cancelled' && 'bad')}>
        <code>${r.error.code}</code> <${Safe} text=${r.error.message ?? ''} max=${110} /></span>`
    : r.command && !r.result_summary ? html`<span class="why command"><span class="dim">$ </span><${Safe}
        text=${r.command} max=${110} color=${false} /></span>`
    : r.activity && !ended(r.state) ? html`<span class="why"><${Safe} text=${r.activity} max=${110} /></span>`
    : r.result_summary ? html`<span class="why"><${Safe} text=${r.result_summary} max=${110} /></span>` : ''}
    ${Object.entries(r.metadata ?? {}).slice(0, r.error || r.activity ? 1 : 2).map(([k, v]) =>
        html`<a class="meta" key=${k} href=${withQuery({ ['metadata.' + k]: v })}>
            ${k}=<${Safe} text=${v} max=${24} /></a>`)}</span>` },
  { name: 'Run', className: 'c-id', cell: r => html`<${RunLink} id=${r.run_id} query=${whose(r)} />` },
  { name: 'Queue', value: r => r.queue,
    className: 'c-queue', cell: r => html`<${Safe} text=${r.queue} max=${40} />` },
  { name: 'Try', value: r => r.attempt,
    className: 'num c-try', cell: r =>
    html`${r.attempt}<span class="dim">/${r.max_attempts}</span>` },
  { name: 'Sign of life', value: r => r.seen_at ?? '',
    className: 'c-life', cell: r => html`<${Life} run=${r} />` },
  { name: 'Took', value: r => r.duration_ms ?? Date.now() - Date.parse(r.created_at),
    className: 'num c-took', cell: r => html`<${Took} run=${r} />` },
  { name: 'Age', value: r => -Date.parse(r.created_at),
    className: 'num c-age', cell: r => html`<${Ago} at=${r.created_at} suffix="" />` },
  { name: 'Worker', value: r => r.worker_id ?? '', className: 'c-more', cell: r => html`<${Safe}
    text=${r.worker_id ?? ''} max=${40} />` },
  { name: 'Deadline', value: r => r.deadline_at, className: 'num c-more', cell: r => (ended(r.state) ? html`<span
    class="dim">–</span>` : html`<${Until} at=${r.deadline_at} />`) },
  { name: 'Priority', value: r => r.priority, className: 'num c-try', cell: r => r.priority },
];

/** fixed are the columns that are always there. */
const fixed = ['State', 'Kind', 'Run'];

/** optional are the columns that a person may choose, and those that are shown otherwise. */
export const optional = runColumns.map(c => c.name).filter(n => !fixed.includes(n));
const usual = ['Queue', 'Try', 'Sign of life', 'Took', 'Age'];

/**
 * columnsOf gives the columns of a list: the chosen ones of cols, or the usual ones. Runs that have ended give no
 * signs of life.
 */
export function columnsOf(cols, status) {
  const chosen = cols === null ? usual.filter(n => n !== 'Sign of life' || !ended(status)) : cols.split(',');
  return runColumns.filter(c => fixed.includes(c.name) || chosen.includes(c.name));
}

/** sorted gives the rows in the order of a column: Took, or -Took for the other way round. */
export function sorted(rows, by) {
  const column = runColumns.find(c => c.name === by.replace(/^-/, ''));
  if (!column?.value) return rows;
  const way = by.startsWith('-') ? -1 : 1, { value } = column;
  return [...rows].sort((a, b) => { const x = value(a), y = value(b); return x < y ? -way : x > y ? way : 0; });
}
