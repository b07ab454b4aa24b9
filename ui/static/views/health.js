// Health: throughput, latency and errors over time, and whether the store keeps its promises.
import { html, useState, useEffect, useRef, useMemo, none } from '../lib.js';
import { withQuery, href } from '../router.js';
import { session } from '../api.js';
import { useList, useCounts, useGet } from '../live.js';
import { count, duration } from '../format.js';
import { Page, Card, Tabs, Trouble, Loading, RunLink, Shape, Ago } from '../parts.js';

const spans = { '1h': ['Hour', 3600e3, '1m'], '6h': ['6 hours', 216e5, '5m'], '24h': ['Day', 864e5, '15m'],
  '168h': ['Week', 6048e5, '2h'] };

const stepName = { '1m': 'minute', '5m': '5 minutes', '15m': '15 minutes', '2h': '2 hours' };

let plots;

/** added puts an element into the page's head and waits until it is loaded. */
const added = (tag, fields) => new Promise((done, failed) => {
  const e = Object.assign(document.createElement(tag), fields, { onload: done, onerror: failed });
  document.head.append(e);
});

/** load gets the plotting library when it is first needed. */
const load = () => plots ??= Promise.all([
  added('link', { rel: 'stylesheet', href: './vendor/uplot.css' }), added('script', { src: './vendor/uplot.js' }),
]).then(() => /** @type {any} */ (window).uPlot);

/** incrs are the distances between two lines of an axis: whole numbers, so that labels are exact. */
const incrs = [1, 2, 5].flatMap(n => Array.from({ length: 12 }, (_, i) => n * 10 ** i)).sort((a, b) => a - b);

/** clockOf writes a time of an axis: the time of day, or the day where the axis has several. */
const clockOf = (t, times) => new Date(t * 1000).toLocaleString('en-GB', times.at(-1) - times[0] > 172_800
  ? { day: '2-digit', month: 'short' } : { hour: '2-digit', minute: '2-digit' });

/** Plot draws lines over time. The legend has the newest values, and those below the pointer while there is one. */
function Plot({ title, times, lines, format = count }) {
  const box = useRef(none), [at, setAt] = useState(-1);
  useEffect(() => {
    let plot, gone = false, watcher;
    load().then(UPlot => {
      if (gone || !box.current) return;
      const style = getComputedStyle(document.documentElement), of = name => style.getPropertyValue('--' + name).trim();
      const axis = { stroke: of('ink-3'), grid: { stroke: of('line'), width: 1 }, ticks: { show: false },
        font: `11px ${of('sans')}` };
      plot = new UPlot({
        width: box.current.clientWidth, height: 180, padding: [8, 8, 0, 0], legend: { show: false },
        cursor: { points: { size: 6 }, y: false }, hooks: { setCursor: [u => setAt(u.cursor.idx ?? -1)] },
        series: [{}, ...lines.map(l => ({ stroke: of(l.color), width: 1.75, dash: l.dash,
          fill: l.fill ? of(l.color) + '1f' : undefined, points: { show: l.points, size: 4 } }))],
        axes: [{ ...axis, size: 28, gap: 6, values: (_, list) => list.map(t => clockOf(t, times)) },
          { ...axis, size: 46, gap: 6, incrs, values: (_, list) => list.map(v => format(v)) }],
        scales: { y: { range: (_, lo, hi) => [0, Math.max(format === count ? 4 : 10, hi * 1.1)] } },
      }, [times, ...lines.map(l => l.values)], box.current);
      watcher = new ResizeObserver(() => {
        if (box.current) plot.setSize({ width: box.current.clientWidth, height: 180 });
      });
      watcher.observe(box.current);
    });
    return () => { gone = true; watcher?.disconnect(); plot?.destroy(); };
  }, [times, document.documentElement.dataset.theme]);
  const i = at >= 0 && at < times.length ? at : times.length - 1;
  const value = l => (l.values[i] === null || l.values[i] === undefined ? '–' : format(l.values[i]));
  return html`<${Card}><div class="plot-head"><div class="row spread"><h2>${title}</h2>
      <span class="dim sub">${at >= 0 ? clockOf(times[i], times) : 'newest'}</span></div>
    <div class="lines">${lines.map(l => html`<span key=${l.name}><svg width="18" height="8" aria-hidden="true">
      <line x1="0" x2="18" y1="4" y2="4" stroke-width="2" class=${'stroke-' + l.color}
        stroke-dasharray=${l.dash?.join(' ')} /></svg>${l.name} <b>${value(l)}</b></span>`)}</div></div>
    <div class="plot" ref=${box} role="img" aria-label=${`${title}: ${lines.map(l =>
      `${l.name}, last ${format(l.values.at(-1) ?? 0)}`).join('; ')}`}></div><//>`;
}

/**
 * grid fills the steps in which nothing happened, so that lines go down to zero.
 * @param {{since: string, step_seconds: number, points: any[]}} history
 */
function grid(history) {
  const step = history.step_seconds * 1000;
  const at = new Map(history.points.map(p => [Math.floor(Date.parse(p.at) / step), p]));
  const times = [], points = [];
  // A minute that is not over would look like a fall.
  const last = Math.floor(Date.now() / step) - (step === 60_000 ? 1 : 0);
  for (let n = Math.ceil(Date.parse(history.since) / step); n <= last; n++) {
    times.push((n * step) / 1000);
    points.push(at.get(n) ?? {});
  }
  return { times, of: name => points.map(p => p[name] ?? 0), known: name => points.map(p => p[name] ?? null) };
}

/** History draws what the server has counted per minute. */
function History({ span }) {
  const [, , step] = spans[span];
  const [round, setRound] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => { if (!document.hidden) setRound(n => n + 1); }, 15_000);
    return () => clearInterval(timer);
  }, []);
  const { value, error, loading } = useGet('/history', { since: span, step }, [round]);
  const drawn = useMemo(() => value && grid(value), [value]);
  if (!drawn) return loading ? html`<${Loading} />` : html`<${Trouble} error=${error} />`;
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
  const queues = useList('queues', '/queues', 'queues', { limit: 200 });
  const ready = useList('', '/readyz', '');
  const invariants = useList('', session.value?.platform ? '/api/admin/invariants' : '', '', { recent: true });
  const q = queues.items ?? [], inv = invariants.items;
  const sum = k => q.reduce((n, one) => n + (one[k] ?? 0), 0);
  const fine = inv && !inv.violations?.length && !inv.runs_past_deadline;
  return html`<${Page} title="Health">
    <div class="cards numbers">
      <${Number_} state=${ready.items?.status === 'ready' ? 'completed' : 'failed'} value=${ready.items?.status ?? '…'}
        name=${`this node${ready.items?.detail ? `: ${ready.items.detail}` : ''}`} />
      <${Number_} state="running" value=${count(counts?.status?.running ?? sum('running'))} name="running"
        to=${href('/runs', { status: 'running' })} />
      <${Number_} state="queued" value=${count(sum('queued'))} name="queued"
        to=${href('/runs', { status: 'queued' })} />
      <${Number_} state="suspended" value=${count(sum('suspended'))} name="waiting, no worker held"
        to=${href('/runs', { status: 'suspended' })} />
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
    <${History} key=${span} span=${span} /><//>`;
}
