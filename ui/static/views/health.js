// Health: throughput, latency and errors over time, and whether the store keeps its promises.
import { html, useState, useEffect, useRef, useMemo, none } from '../lib.js';
import { withQuery } from '../router.js';
import { session } from '../api.js';
import { useList, useCounts, useGet } from '../live.js';
import { count, duration } from '../format.js';
import { Page, Card, Tabs, Trouble, Loading, RunLink } from '../parts.js';

const spans = { '1h': ['Hour', 3600e3, '1m'], '6h': ['6 hours', 216e5, '5m'], '24h': ['Day', 864e5, '15m'],
  '168h': ['Week', 6048e5, '2h'] };

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

/** clockOf writes a time of an axis: the time of day, or the day where the axis has several. */
const clockOf = (t, times) => new Date(t * 1000).toLocaleString('en-GB', times.at(-1) - times[0] > 172_800
  ? { day: '2-digit', month: 'short' } : { hour: '2-digit', minute: '2-digit' });

/** Plot draws lines over time. */
function Plot({ title, times, lines, format = count }) {
  const box = useRef(none);
  useEffect(() => {
    let plot, gone = false, watcher;
    load().then(UPlot => {
      if (gone || !box.current) return;
      const style = getComputedStyle(document.documentElement), of = name => style.getPropertyValue('--' + name).trim();
      const axis = { stroke: of('ink-3'), grid: { stroke: of('line'), width: 1 }, ticks: { stroke: of('line') },
        font: `11px ${of('sans')}` };
      plot = new UPlot({
        width: box.current.clientWidth, height: 180, cursor: { points: { size: 6 } }, legend: { live: true },
        series: [{}, ...lines.map(l => ({ label: l.name, stroke: of(l.color), width: 2, dash: l.dash,
          fill: l.fill ? of(l.color) + '22' : undefined, points: { show: false },
          value: (_, v) => (v === null || v === undefined ? '–' : format(v)) }))],
        axes: [{ ...axis, values: (_, list) => list.map(t => clockOf(t, times)) }, { ...axis, size: 54, values: (_, list) => list.map(v => format(v)) }],
        scales: { y: { range: (_, lo, hi) => [0, Math.max(format === count ? 1 : 10, hi * 1.1)] } },
      }, [times, ...lines.map(l => l.values)], box.current);
      watcher = new ResizeObserver(() => { if (box.current) plot.setSize({ width: box.current.clientWidth, height: 180 }); });
      watcher.observe(box.current);
    });
    return () => { gone = true; watcher?.disconnect(); plot?.destroy(); };
  }, [times, document.documentElement.dataset.theme]);
  return html`<${Card} title=${title}><div class="plot" ref=${box} role="img"
      aria-label=${`${title}: ${lines.map(l =>
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
  for (let n = Math.ceil(Date.parse(history.since) / step); n <= Math.floor(Date.now() / step); n++) {
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
    <${Plot} title="Runs" times=${times} lines=${[
      { name: 'created', color: 'accent', values: of('created'), dash: [6, 3] },
      { name: 'completed', color: 'completed', values: of('completed'), fill: true }]} />
    <${Plot} title="Ended without a result" times=${times} lines=${[
      { name: 'failed', color: 'failed', values: of('failed') },
      { name: 'timed out', color: 'timeout', values: of('timed_out'), dash: [6, 3] },
      { name: 'cancelled', color: 'cancelled', values: of('cancelled'), dash: [2, 3] },
      { name: 'failed attempts', color: 'queued', values: of('errors'), dash: [8, 2, 2, 2] }]} />
    <${Plot} title="From queued to a worker" times=${times} format=${duration} lines=${[
      { name: 'half of them within', color: 'running', values: known('dispatch_p50_ms') },
      { name: '99 of 100 within', color: 'timeout', values: known('dispatch_p99_ms'), dash: [6, 3] }]} />
    <${Plot} title="How late deadlines were kept" times=${times} format=${duration} lines=${[
      { name: 'latest', color: 'dispatched', values: of('lateness_ms') }]} />
  </div>`;
}

export default function Health({ query }) {
  const span = spans[query.get('span')] ? query.get('span') : '1h';
  const counts = useCounts();
  const queues = useList('queues', '/queues', 'queues', { limit: 200 });
  const ready = useList('', '/readyz', '');
  const invariants = useList('', session.value?.platform ? '/api/admin/invariants' : '', '');
  const q = queues.items ?? [], inv = invariants.items;
  const sum = k => q.reduce((n, one) => n + (one[k] ?? 0), 0);
  const fine = inv && !inv.violations?.length && !inv.runs_past_deadline;
  return html`<${Page} title="Health">
    <div class="cards numbers">
      <div class="card"><p class="big">${ready.items?.status ?? '…'}</p>
        <p class="sub">this node${ready.items?.detail ? `: ${ready.items.detail}` : ''}</p></div>
      <div class="card"><p class="big">${count(counts?.status?.running ?? sum('running'))}</p>
        <p class="sub">running</p></div>
      <div class="card"><p class="big">${count(sum('queued'))}</p><p class="sub">queued</p></div>
      <div class="card"><p class="big">${count(sum('suspended'))}</p><p class="sub">waiting, without a worker</p></div>
      ${inv && html`<div class="card"><p class=${`big ${fine ? 'text-completed' : 'text-failed'}`}>
          ${count(inv.violations?.length ?? 0)}</p>
          <p class="sub">violations of ${count(inv.checked)} invariants</p></div>
      <div class="card"><p class=${`big ${inv.runs_past_deadline ? 'text-failed' : 'text-completed'}`}>
          ${count(inv.runs_past_deadline)}</p><p class="sub">runs past their deadline</p></div>`}
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
