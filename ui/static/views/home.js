// Home: does anything need me? What does is on top, and beside it how the work goes.
import { html, useMemo } from '../lib.js';
import { href } from '../router.js';
import { can, session } from '../api.js';
import { useCounts, useList, useRuns } from '../live.js';
import { lines } from '../attention.js';
import { count, duration, ended } from '../format.js';
import { Page, Card, Loading, Shape, Ago, RunLink, State, Took, statusOf } from '../parts.js';
import { Safe } from '../safe.js';

/** Line is one thing that may need a person, and a link to the list that it counts. */
function Line({ line }) {
  return html`<li><a class="need" data-row data-need=${line.id} href=${line.to}>
      <span class=${'text-' + line.state}><${Shape} state=${line.state} /></span><b class="need-n">${line.count}</b>
      <span><${Safe} text=${line.text} max=${200} /></span></a>
    ${line.more?.length > 0 && html`<ul class="causes">${line.more.slice(0, 6).map(m => html`<li key=${m.code}>
      <a href=${m.to} data-cause=${m.code}><b>${m.count}</b> <code>${m.code}</code></a>
      <span class="why"><${Safe} text=${m.text} max=${60} />${m.why && html`: <${Safe} text=${m.why}
        max=${140} />`}</span>
      </li>`)}</ul>`}</li>`;
}

/** bars is how many minutes the small pictures of the last hour have. */
const bars = 60;

/** Bars draws a number for each minute of the last hour. */
function Bars({ values, name, state }) {
  const top = Math.max(1, ...values);
  return html`<svg class=${'bars text-' + state} viewBox=${`0 0 ${bars * 4} 36`} preserveAspectRatio="none" role="img"
      aria-label=${`${name}, by the minute; at most ${count(top)}`}>
    ${values.map((v, i) => v > 0 && html`<rect key=${i} x=${i * 4} width="3" y=${36 - Math.max(2, (34 * v) / top)}
      height=${Math.max(2, (34 * v) / top)} fill="currentColor" />`)}</svg>`;
}

/** Figure is a number of the last hour with its picture. */
const Figure = ({ name, value, values, state, to = '' }) => html`<div class="figure"><p class="big">
    ${to ? html`<a href=${to}>${value}</a>` : value}</p><p class="sub">${name}</p>
  ${values && html`<${Bars} values=${values} name=${name} state=${state} />`}</div>`;

/** Pace is throughput and lateness of the last hour. */
function Pace() {
  const history = useList('history', '/history', 'points', { since: '1h', step: '1m' });
  const points = history.items;
  const of = useMemo(() => {
    const now = Math.floor(Date.now() / 60_000), at = new Map((points ?? []).map(p =>
      [Math.floor(Date.parse(p.at) / 60_000), p]));
    return name => Array.from({ length: bars }, (_, i) => at.get(now - bars + 1 + i)?.[name] ?? 0);
  }, [points]);
  if (!points) return html`<${Loading} />`;
  const sum = name => points.reduce((n, p) => n + p[name], 0), most = name => points.reduce((n, p) =>
    Math.max(n, p[name]), 0);
  return html`<div class="figures">
    <${Figure} name="completed in the last hour" value=${count(sum('completed'))} values=${of('completed')}
      state="completed" />
    <${Figure} name="ended without a result" value=${count(sum('failed') + sum('timed_out') + sum('cancelled'))}
      state="failed" values=${of('failed').map((n, i) => n + of('timed_out')[i] + of('cancelled')[i])} />
    <${Figure} name="until 99 % had a worker" value=${duration(most('dispatch_p99_ms'))} state="running"
      values=${of('dispatch_p99_ms')} />
    <${Figure} name="a deadline was kept late by" value=${duration(most('lateness_ms'))} state="timeout"
      values=${of('lateness_ms')} /></div>`;
}

/** Now says how many runs there are at the moment. */
function Now() {
  const counts = useCounts(), n = s => count(counts?.status?.[s] ?? 0) + (counts?.at_least ? '+' : '');
  const one = (state, name) => html`<a class="now" href=${href('/runs', { status: state })}>
    <span class=${'text-' + state}><${Shape} state=${state} /></span><b>${n(state)}</b> ${name}</a>`;
  return html`<p class="row nows">${one('running', 'running')}${one('queued', 'queued')}${one('suspended', 'waiting')}
    ${one('deferred', 'deferred')}</p>`;
}

/** Actions are the last things that the watchdog did. */
function Actions() {
  const { items } = useList('watchdog', '/api/admin/watchdog', 'actions', { limit: 6 });
  return html`<${Card} title="The watchdog's last actions" actions=${html`<a href=${href('/watchdog')}>All</a>`}>
    ${!items ? html`<${Loading} />` : items.length === 0 ? html`<p class="dim">It had nothing to do.</p>`
      : html`<ul class="plain">${items.map(a => html`<li key=${a.id}><span class="dim"><${Ago} at=${a.at} /></span>
        <span class="why"><b>${a.rule}</b> <${Safe} text=${a.what} max=${90} /></span>
        ${a.run_id && html`<${RunLink} id=${a.run_id} query=${a.tenant ? { tenant: a.tenant } : undefined} />`}
        </li>`)}</ul>`}<//>`;
}

/** Newest are the last runs. */
function Newest() {
  const { rows } = useRuns({}, { limit: 8 });
  return html`<${Card} title="Newest runs" actions=${html`<a href=${href('/runs')}>All</a>`}>
    ${!rows ? html`<${Loading} />` : rows.length === 0
      ? html`<p class="dim">None yet. <a href=${href('/start')}>Start one</a>,
        or <code>perdure chat "hello"</code>.</p>`
      : html`<ul class="plain">${rows.map(r => html`<li key=${r.run_id}><${State} state=${statusOf(r)} />
        <a class="grow cut" href=${href('/runs/' + r.run_id)}><${Safe} text=${r.kind} max=${60} /></a>
        <span class="dim">${ended(r.state) ? html`<${Took} run=${r} />` : ''}</span>
        <span class="dim"><${Ago} at=${r.created_at} /></span></li>`)}</ul>`}<//>`;
}

export default function Home() {
  const all = lines.value;
  return html`<${Page} title="Home">
    <div class="home"><section class="home-main">
      <${Card} className=${all?.length ? 'needs' : 'clear'} title=${all?.length ? 'What needs somebody' : undefined}>
        ${all === null ? html`<${Loading} />` : all.length === 0
          ? html`<div class="all-clear" role="status"><svg viewBox="0 0 32 32" width="40" height="40"
            aria-hidden="true">
              <circle cx="16" cy="16" r="14" fill="var(--completed-soft)" /><path
                d="M9.500 16.500l4.500 4.500 8.500-9.500"
                fill="none" stroke="var(--completed)" stroke-width="2.500" stroke-linecap="round"
                stroke-linejoin="round" /></svg><div><h2>All clear</h2>
            <p class="sub">Nothing waits for a decision, nothing failed in the last hour, and every queued run has a
              worker that polls for it.</p></div></div>`
          : html`<ul class="plain-list">${all.map(l => html`<${Line} key=${l.id} line=${l} />`)}</ul>`}<//>
      <${Card} title="The last hour" actions=${html`<a href=${href('/health')}>Health</a>`}><${Now} /><${Pace} /><//>
    </section><section class="home-side"><${Newest} />
      ${session.value?.platform && can('platform:read') && html`<${Actions} />`}</section></div><//>`;
}
