// One kind: how its runs go, what it is, what may be changed, and a form that starts one.
import { html } from '../lib.js';
import { href } from '../router.js';
import { call, can } from '../api.js';
import { useList, useRuns, useGet, refresh } from '../live.js';
import { count, duration, instant, ended } from '../format.js';
import { Page, Card, Facts, Table, Trouble, Loading, Ago, Json, RunLink, State, Took, ask,
  statusOf } from '../parts.js';
import { Safe } from '../safe.js';
import { Served } from './kinds.js';
import { StartForm } from './start-form.js';
import { LimitNames } from './limits.js';

const changeable = [['timeout', 'Deadline after', 'such as 1h'], ['hold_timeout', 'Held for at most', 'such as 24h'],
  ['retry.max_attempts', 'Attempts', '1 to 100'], ['retry.backoff', 'First retry after', 'such as 1s'],
  ['retry.max_backoff', 'Later retries after at most', 'such as 5m']];

/** valueIn gives a field by its name, such as retry.backoff. */
const valueIn = (k, name) => name.split('.').reduce((v, part) => v?.[part], k);

/** Defaults are the fields that a submission takes from its kind. An operator may override them. */
function Defaults({ kind: k, again }) {
  const change = async () => {
    const made = await ask({ title: `Override defaults of ${k.kind}`, yes: 'Save',
      text: 'They count for runs that start from now on, on top of what workers announce. Empty: what workers say.',
      fields: changeable.map(([name, label, hint]) => ({ name, label: `${label}, ${hint}`,
        value: k.sources?.[name] === 'operator' ? String(valueIn(k, name)) : '' })),
      run: a => {
        const body = {};
        for (const [name] of changeable) {
          const v = a[name].trim(), was = k.sources?.[name] === 'operator';
          if (!v && !was) continue;
          const given = v === '' ? null : name === 'retry.max_attempts' ? Number(v) : v;
          const [head, tail] = name.split('.');
          if (tail) (body[head] ??= {})[tail] = given;
          else body[head] = given;
        }
        return call('PATCH', '/kinds/' + encodeURIComponent(k.kind), { body, once: true });
      } });
    if (made) { again(); refresh(); }
  };
  const shown = name => { const v = valueIn(k, name); return v === undefined ? html`<span
    class="dim">the server's default</span>`
    : html`${String(v)} ${k.sources?.[name] === 'operator' && html`<span class="tag">overridden</span>`}`; };
  return html`<${Card} title="Defaults" actions=${can('kinds:admin') &&
      html`<button type="button" onClick=${change}>Override</button>`}>
    <${Facts} of=${[['Class', k.class], ...changeable.map(([name, label]) => [label, shown(name)]),
      ['Not retried', k.retry?.not_retried?.join(', ')], ['At once', k.concurrency],
      ['Limits', k.limits && html`<${LimitNames} of=${k} />`], ['Key of its limits', k.limit_key_from],
      ['Defects hold a run', k.hold_defects === false ? 'no' : 'yes']]} /><//>`;
}

/** Figures are how the newest runs went. */
function Figures({ stats: s, kind }) {
  const failed = (s.status.failed ?? 0) + (s.status.timeout ?? 0);
  const over = failed + (s.status.completed ?? 0);
  const figure = (value, name, to) => html`<div class="figure"><p class="big">${to ? html`<a href=${to}>${value}</a>`
    : value}</p><p class="sub">${name}</p></div>`;
  return html`<${Card} title="How it goes" actions=${html`<a href=${href('/runs', { kind })}>Its runs</a>`}>
    ${s.runs === 0 ? html`<p class="dim">There are no runs of this kind.</p>` : html`<div class="figures">
      ${figure(`${count(s.last_hour)}${s.at_least && s.last_hour === s.runs ? '+' : ''}`, 'started in the last hour')}
      ${figure(over ? duration(s.p50_ms) : '–', 'half took at most')}
      ${figure(over ? duration(s.p95_ms) : '–', '95 % took at most')}
      ${figure(over ? `${Math.round((100 * failed) / over)} %` : '–', 'failed',
        href('/runs', { kind, status: 'failed,timeout' }))}</div>
    <p class="sub gap-top">Of the ${s.at_least ? 'newest ' : ''}${s.runs === 1
      ? 'one run' : `${count(s.runs)} runs`}, since ${instant(s.since)}.</p>
    ${s.causes.length > 0 && html`<h3 class="gap-top">Failures by code</h3><ul class="causes">${s.causes.map(c => html`
      <li key=${c.code}><a href=${href('/runs', { kind, error_code: c.code })}><b>${count(c.count)}</b>
        <code>${c.code}</code></a> <span class="why"><${Safe} text=${c.message ?? ''} max=${140} /></span>
        <${RunLink} id=${c.run_id} /></li>`)}</ul>`}`}<//>`;
}

export default function Kind({ parts: [name] }) {
  const path = '/kinds/' + encodeURIComponent(name);
  const found = useGet(path, {}), k = found.value;
  const stats = useList('kind_stats', path + '/stats', '', {}, { kind: name });
  const workers = useList('workers', '/workers', 'workers', { limit: 200 });
  const { rows } = useRuns({ kind: name }, { limit: 10 });
  const s = Array.isArray(stats.items) ? stats.items[0] : stats.items;
  const serving = (workers.items ?? []).filter(w => !w.offline && (w.polls ?? []).some(p => !p.kinds?.length ||
    p.kinds.includes(name)));
  return html`<${Page} name=${`Kind ${name}`} title=${html`<${Safe} text=${name} max=${120} />`}
      crumbs=${html`<a href=${href('/kinds')}>Kinds</a>`}
      sub=${k?.description && html`<${Safe} text=${k.description} max=${400} />`}>
    <${Trouble} error=${stats.error} />
    ${found.error && found.error.status !== 404 && html`<${Trouble} error=${found.error} />`}
    ${found.error?.status === 404 && html`<p class="notice">No worker has announced this kind. Runs of it wait until one
      polls for it.</p>`}
    <div class="home"><section class="home-main">
      ${s ? html`<${Figures} stats=${s} kind=${name} />` : !stats.error && html`<${Loading} />`}
      <${Card} title="Newest runs">${!rows ? html`<${Loading} />` : rows.length === 0 ? html`<p class="dim">None.</p>`
        : html`<ul class="plain">${rows.map(r => html`<li key=${r.run_id}><${State} state=${statusOf(r)} />
          <${RunLink} id=${r.run_id} /><span class="grow cut why">${r.error ? html`<code>${r.error.code}</code>
            <${Safe} text=${r.error.message ?? ''} max=${120} />` : html`<${Safe}
            text=${r.activity ?? r.result_summary ?? ''} max=${120} />`}</span>
          <span class="dim">${ended(r.state) && html`<${Took} run=${r} />`}</span>
          <span class="dim"><${Ago} at=${r.created_at} /></span></li>`)}</ul>`}<//>
      ${k && html`<${Card} title="Builds and workers"><p class="row"><${Served} kind=${k} />
        ${serving.slice(0, 12).map(w => html`<a class="meta" key=${w.worker_id}
          href=${href('/workers/' + encodeURIComponent(w.worker_id))}><${Safe} text=${w.worker_id}
            max=${40} /></a>`)}</p>
        ${k.builds.length > 0 && html`<${Table} label="Builds" rows=${k.builds} keyOf=${b => b.build + b.platform}
          columns=${[
          { name: 'Build', className: 'grow', cell: b => html`<code>${b.build.slice(0, 24)}</code>${b.build ===
            k.build &&
            html`<span class="tag">counts</span>`}` },
          { name: 'First seen', className: 'fit', cell: b => html`<${Ago} at=${b.first_seen_at} />` },
          { name: 'Last seen', className: 'fit', cell: b => html`<${Ago} at=${b.last_seen_at} />` }]} />`}<//>`}
      ${k?.input_schema && html`<${Card} title="Schema"><div class="stack"><${Json} value=${k.input_schema}
        label="Schema of its input" />${k.output_schema && html`<${Json} value=${k.output_schema}
        label="Schema of its result" />`}</div><//>`}
    </section><section class="home-side">
      ${can('runs:create') && !found.loading && html`<${Card} title="Start one"><${StartForm} key=${name} kind=${name}
        known=${k} short /><//>`}
      ${k && html`<${Defaults} kind=${k} again=${() => location.reload()} />`}</section></div><//>`;
}
