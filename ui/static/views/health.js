// Health: throughput, latency and errors over time, and whether the store keeps its promises.
import { html, useMemo } from '../lib.js';
import { withQuery, href } from '../router.js';
import { session } from '../api.js';
import { useList, useCounts, useReread, connection } from '../live.js';
import { count, duration } from '../format.js';
import { Plot } from '../plot.js';
import { Page, Card, Tabs, Loading, RunLink, Shape, Ago } from '../parts.js';

const spans = { '1h': ['Hour', 3600e3, '1m', 6e4], '6h': ['6 hours', 216e5, '5m', 3e5],
  '24h': ['Day', 864e5, '15m', 9e5], '168h': ['Week', 6048e5, '2h', 72e5] };

const stepName = { '1m': 'minute', '5m': '5 minutes', '15m': '15 minutes', '2h': '2 hours' };

/**
 * grid fills the steps in which nothing happened, so that lines go down to zero.
 * @param {string} span
 * @param {any[]} counted
 */
function grid(span, counted) {
  const [, long, , step] = spans[span];
  const at = new Map(counted.map(p => [Math.floor(Date.parse(p.at) / step), p]));
  const times = [], points = [];
  // A minute that is not over would look like a fall.
  const last = Math.floor(Date.now() / step) - (step === 60_000 ? 1 : 0);
  for (let n = Math.ceil((Date.now() - long) / step); n <= last; n++) {
    times.push((n * step) / 1000);
    points.push(at.get(n) ?? {});
  }
  return { times, of: name => points.map(p => p[name] ?? 0), known: name => points.map(p => p[name] ?? null) };
}

/** History draws what the server has counted per minute. */
function History({ span, points }) {
  const [, , step] = spans[span];
  const drawn = useMemo(() => points && grid(span, points), [span, points]);
  if (!drawn) return html`<${Loading} />`;
  const { times, of, known } = drawn;
  return html`<div class="grid-2">
    <${Plot} title=${`Runs, per ${stepName[step]}`} times=${times} lines=${[
      { name: 'created', color: 'accent', values: of('created'), dash: [6, 3] },
      { name: 'completed', color: 'completed', values: of('completed'), fill: true }]} />
    <${Plot} title="Ended without a result" times=${times} lines=${[
      { name: 'failed', color: 'failed', values: of('failed') },
      { name: 'timed out', color: 'timeout', values: of('timed_out'), dash: [6, 3] },
      { name: 'cancelled', color: 'cancelled', values: of('cancelled'), dash: [2, 3] },
      { name: 'failed attempts', color: 'queued', values: of('errors'), dash: [8, 2, 2, 2] }]} />
    <${Plot} title="From queued to a worker" times=${times} format=${duration} lines=${[
      { name: 'half within', color: 'running', values: known('dispatch_p50_ms'), points: true },
      { name: '99 % within', color: 'timeout', values: known('dispatch_p99_ms'), dash: [6, 3], points: true }]} />
    <${Plot} title="How late deadlines were kept" times=${times} format=${duration} lines=${[
      { name: 'latest', color: 'dispatched', values: of('lateness_ms') }]} />
  </div>`;
}

/** Number_ is a number of now, with the shape of its state. */
const Number_ = ({ state, value, name, to = '' }) => html`<div class="card number"><p class="big">
    ${to ? html`<a href=${to}>${value}</a>` : value}</p>
  <p class="sub"><span class=${'text-' + state}><${Shape} state=${state} /></span><span>${name}</span></p></div>`;

export default function Health({ query }) {
  const span = spans[query.get('span')] ? query.get('span') : '1h';
  const counts = useCounts();
  const history = useList('history', '/history', 'points', { since: span, step: spans[span][2] });
  const told = [history.items, counts, connection.value];
  const ready = useReread('/readyz', {}, told);
  const invariants = useReread(session.value?.platform ? '/api/admin/invariants' : '', { recent: true }, told);
  const inv = invariants.value, n = state => (counts?.state ? count(counts.state[state] ?? 0) + (counts.at_least
    ? '+' : '') : '…');
  const fine = inv && !inv.violations?.length && !inv.runs_past_deadline;
  return html`<${Page} title="Health">
    <div class="cards numbers">
      <${Number_} state=${ready.value?.status === 'ready' ? 'completed' : 'failed'} 
        value=${ready.value?.status ?? (ready.error ? 'not ready' : '…')}
        name=${`this node${ready.value?.detail ? `: ${ready.value.detail}` : ''}`} />
      ${[['running', 'running'], ['queued', 'queued'], ['suspended', 'waiting, no worker held']].map(([s, name]) =>
        html`<${Number_} key=${s} state=${s} value=${n(s)} name=${name} to=${href('/runs', { state: s })} />`)}
      ${session.value?.platform && html`<${Number_} state=${inv?.violations?.length ? 'failed' : 'completed'}
          value=${inv ? count(inv.violations?.length ?? 0) : '…'}
          name=${html`of ${inv ? count(inv.checked) : 'the'} invariants violated${inv?.checked_at &&
            html`, <${Ago} at=${inv.checked_at} />`}`} />
        <${Number_} state=${inv?.runs_past_deadline ? 'failed' : 'completed'}
          value=${inv ? count(inv.runs_past_deadline) : '…'} name="runs past their deadline" />`}
    </div>
    ${inv && !fine && html`<${Card} title="Violations">
        ${(inv.violations ?? []).map(v =>
            html`<p key=${v.id + v.row} class="trouble">
                <span><b>${v.id}</b> ${v.statement} <code>
                    ${v.row}</code></span></p>`)}${(inv.past_deadline_run_ids ?? []).map(id =>
                    html`<${RunLink} key=${id} id=${id} /> `)}<//>`}
    <${Tabs} label="Time" at=${span} to=${s => { location.hash = withQuery({ span: s }); }}
      tabs=${Object.entries(spans).map(([id, [name]]) => ({ id, name }))} />
    <${History} key=${span} span=${span} points=${history.items} /><//>`;
}
