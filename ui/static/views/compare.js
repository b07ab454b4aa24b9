// Two runs side by side: what differs comes first.
import { html, useMemo, useState, cls } from '../lib.js';
import { href } from '../router.js';
import { useTree } from '../tree.js';
import { useJournal } from '../journal.js';
import { useGet } from '../live.js';
import { stepRows, totalOf } from '../steps.js';
import { pairs, same } from '../compare.js';
import { duration, ended, ms, now, count, instant } from '../format.js';
import { Page, Card, Empty, Loading, Trouble, RunLink, Shape, State, Value, statusOf } from '../parts.js';
import { Safe } from '../safe.js';
import { shapeOf, told, usageText } from './run-steps.js';

/** useRun follows one of the two runs, with its rows. */
function useRun(id) {
  const { run, tree, version, error, deleted } = useTree(id), journal = useJournal(id);
  const whole = useGet(id ? '/runs/' + id : '', {}, [run?.state]);
  const events = tree.get(id)?.events ?? [];
  const rows = useMemo(() => (run ? stepRows(run, events, journal.entries, Date.now(), c => tree.get(c)?.run) : []),
    [version, journal.entries]);
  const build = events.findLast(e => e.type === 'run:dispatched')?.data?.build;
  return { run, rows, error, deleted, build, input: whole.value?.input, result: whole.value?.result };
}

const lasted = r => (ended(r.state) ? r.duration_ms : now.value - ms(r.created_at));

/** facts are what is compared of the runs themselves. */
const facts = (one, used) => {
  const r = one.run;
  return { Outcome: html`<${State} state=${statusOf(r)} />`, Error: r.error
    && html`<code>${r.error.code}</code> <${Safe}
      text=${r.error.message ?? ''} max=${200} />`, Took: duration(lasted(r)), Attempts: r.attempt, Build: one.build,
  Worker: r.worker_id, Used: usageText(used), Queue: r.queue, Kind: r.kind, Created: instant(r.created_at) };
};
const plainFacts = one => ({ Outcome: statusOf(one.run), Error: `${one.run.error?.code} ${one.run.error?.message}`,
  Attempts: one.run.attempt, Build: one.build ?? '', Queue: one.run.queue, Kind: one.run.kind });

function Side({ row }) {
  if (!row) return html`<span class="dim">–</span>`;
  return html`<span class="pair-side"><span class=${'text-' + shapeOf(row.state)}><${Shape}
      state=${shapeOf(row.state)} /></span> <span class="step-text"><${Safe} text=${told(row).slice(0, 300)}
        max=${160} /></span>
    <span class="dim">${[row.tries > 1 && `${row.tries} tries`, usageText(row.usage), row.to > row.from &&
      (row.upTo ? '≤ ' : '') + duration(row.to - row.from)].filter(Boolean).join(' · ')}</span></span>`;
}

const link = (run, row) => href('/runs/' + run.run_id, { sel: row.id });

const Rows = ({ list, a, b, label }) => html`<div class="table-box"><table class="table pairs"
  aria-label=${label}><thead>
  <tr><th scope="col">Step</th><th scope="col">First</th><th scope="col">Second</th>
    <th scope="col">Differs in</th></tr></thead>
  <tbody>${list.map(p => html`<tr key=${p.name} data-row tabindex="-1" class=${cls(p.how.length > 0 && 'differs')}>
    <td data-name="Step"><b><${Safe} text=${(p.a ?? p.b).name || 'end'} max=${80} /></b> <span
      class="step-kind">${(p.a ??
      p.b).kind}</span></td>
    ${[[a, p.a], [b, p.b]].map(([run, row], i) => html`<td key=${i} data-name=${i ? 'Second' : 'First'}>${row
      ? html`<a class="pair" href=${link(run, row)}><${Side} row=${row} /></a>` : html`<${Side} row=${row} />`}</td>`)}
    <td data-name="Differs in">${p.how.join(', ')}</td></tr>`)}</tbody></table></div>`;

export default function Compare({ query }) {
  const ida = query.get('a') ?? '', idb = query.get('b') ?? '';
  const a = useRun(ida), b = useRun(idb), [all, showAll] = useState(false);
  const title = 'Compare two runs';
  const list = useMemo(() => pairs(a.rows, b.rows), [a.rows, b.rows]);
  const missing = [a, b].find(one => one.deleted || one.error);
  if (!a.run || !b.run) {
    return html`<${Page} title=${title}>${missing ? html`<${Empty}
      title="There is no such run">One of the two was deleted,
        or belongs to another tenant.<//>` : html`<${Loading} />`}<//>`;
  }
  const different = list.filter(p => p.how.length), equal = list.filter(p => !p.how.length);
  const fa = facts(a, totalOf(a.rows)), fb = facts(b, totalOf(b.rows)), pa = plainFacts(a), pb = plainFacts(b);
  const names = Object.keys(fa).filter(k => fa[k] || fb[k])
    .sort((x, y) => Number(pa[y] !== pb[y]) - Number(pa[x] !== pb[x]));
  const input = same(a.input, b.input), result = same(a.result, b.result);
  return html`<${Page} title=${title} crumbs=${html`<a href=${href('/runs')}>Runs</a>`}
      sub=${different.length ? `${count(different.length)} of ${count(list.length)} steps differ.`
        : 'No step differs.'}>
    <${Trouble} error=${a.error ?? b.error} />
    <${Card}><div class="table-box"><table class="table pairs"
      aria-label="The two runs"><thead><tr><th scope="col">Fact</th>
      ${[a, b].map((one, i) => html`<th scope="col" key=${i}>${i ? 'Second'
        : 'First'}: <${RunLink} id=${one.run.run_id} /></th>`)}
      </tr></thead><tbody>${names.map(k => html`<tr key=${k} class=${cls(k in pa && pa[k] !== pb[k] && 'differs')}>
        <td data-name="Fact">${k}</td><td data-name="First">${fa[k] || '–'}</td><td data-name="Second">${fb[k]
          || '–'}</td>
      </tr>`)}</tbody></table></div><//>
    ${!(input && result) && html`<div class="grid-2">${[['Input', 'input', input], ['Result', 'result', result]]
      .filter(([, , equalTo]) => !equalTo).flatMap(([name, k]) => [a, b].map((one, i) => html`<${Card} key=${k + i}
        title=${`${name} of the ${i ? 'second' : 'first'}`}><${Value} value=${one[k]} label=${name} /><//>`))}</div>`}
    ${different.length > 0 && html`<${Card} title="What differs"><${Rows} list=${different} a=${a.run} b=${b.run}
        label="Steps that differ" /><//>`}
    ${equal.length > 0 && html`<${Card}
      title=${`The same in both: ${count(equal.length)}`} actions=${html`<button type="button"
        aria-expanded=${all} onClick=${() => showAll(!all)}>${all ? 'Hide' : 'Show'}</button>`}>${all && html`<${Rows}
        list=${equal} a=${a.run} b=${b.run} label="Steps that are the same" />`}<//>`}<//>`;
}
