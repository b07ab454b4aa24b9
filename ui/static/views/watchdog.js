// The watchdog: what it did and why, and its rules.
import { html } from '../lib.js';
import { withQuery } from '../router.js';
import { useList, useGet } from '../live.js';
import { Page, Card, Table, Empty, Trouble, Loading, Ago, RunLink } from '../parts.js';
import { Safe, visible } from '../safe.js';
import { rules } from '../rules.js';

/** brief writes a duration of the server, such as 1m0s or 168h0m0s, without its zeros: 1m, 7d. */
function brief(value) {
  const hours = /^(\d+)h0m0s$/.exec(value)?.[1];
  if (hours && Number(hours) > 24 && Number(hours) % 24 === 0) return `${Number(hours) / 24}d`;
  return value.replace(/(?<=m)0s$/, '').replace(/(?<=h)0m$/, '');
}

/** about says of a setting what its value does, and where it comes from. */
function about(s) {
  const whose = o => [o.kind && `kind ${o.kind}`, o.activity && `activity ${o.activity}`].filter(Boolean).join(', ');
  return [s.help.replaceAll('`', ''), s.changed ? `the default is ${brief(s.default)}` : 'this is the default',
    s.per_kind && 'a kind may have its own',
    ...(s.overrides ?? []).map(o => visible(`${whose(o)}: ${brief(o.value)}`))].filter(Boolean).join('; ');
}

/** Named is the name of a setting with its value. One that is not the default is marked, as is one with exceptions. */
function Named({ setting: s }) {
  return html`<span class="in-force" title=${about(s)}><code>${s.name}</code> <b>${brief(s.value)}</b>${s.changed &&
    html` <span class="tag">set</span>`}${s.per_kind && html`<span class="dim">*</span>`}${
    s.overrides && html` <span class="dim">(${s.overrides.length} for kinds or activities)</span>`}</span>`;
}

/** Bound is the bound of a rule, with the settings that are in force. */
const Bound = ({ text, settings }) => text.split(/\b([a-z]+(?:_[a-z]+)+|lease|silent|retention)\b/).map((part, i) =>
  (i % 2 === 0 ? part : settings.has(part) ? html`<${Named} setting=${settings.get(part)} />`
    : html`<code>${part}</code>`));

export default function Watchdog({ query }) {
  const rule = query.get('rule') ?? '';
  const { items, error, next } = useList('watchdog', '/api/admin/watchdog', 'actions',
    { rule, limit: 100, cursor: query.get('cursor') ?? '' });
  const policy = useGet('/api/admin/policy', {});
  const settings = new Map((policy.value?.settings ?? []).map(s => [s.name, s]));
  return html`<${Page} title="Watchdog"
      sub="The safety net: every run has a next alarm, and a rule for what happens when it rings. Each action is
        written down with its reason.">
    <${Trouble} error=${error} />
    ${rule && html`<div class="filters"><span class="chip">
        <b>rule</b> ${rule} <a href=${withQuery({ rule: '', cursor: '' })}
          aria-label="Remove the filter rule">×</a></span></div>`}
    ${items === null ? !error && html`<${Loading} />` : items.length === 0
      ? html`<${Empty} title="Nothing had to be done">The watchdog has not acted${rule ? ' by this rule'
          : ''} yet. That is how it should be.<//>` : html`
    <${Table} label="Actions of the watchdog" rows=${items} keyOf=${a => a.id} columns=${[
      { name: 'When', className: 'fit', cell: a => html`<${Ago} at=${a.at} />` },
      { name: 'Rule', className: 'fit', cell: a =>
        html`<a href=${withQuery({ rule: a.rule, cursor: '' })}><b>${a.rule}</b></a> <span class="dim">
            ${a.name}</span>` },
      { name: 'What, and why', className: 'grow', cell: a =>
        html`<b><${Safe} text=${a.what} max=${120} /></b> <span class="why">
            <${Safe} text=${a.why} max=${240} /></span>` },
      { name: 'Tenant', className: 'fit wide-only', cell: a => a.tenant ?? '' },
      { name: 'Run', className: 'fit', cell: a => (a.run_id ? html`<${RunLink} id=${a.run_id}
        query=${a.tenant ? { tenant: a.tenant } : undefined} />` : '') }]} />
    ${next && html`<div class="pager"><a href=${withQuery({ cursor: next })}>Older</a></div>`}`}
    <${Card} title="Rules"><${Table} label="Rules" rows=${rules} keyOf=${r => r.name} columns=${[
      { name: 'Rule', className: 'fit', cell: r =>
        html`<a href=${withQuery({ rule: r.name, cursor: '' })}><b>${r.rule}</b></a> <span class="dim">
            ${r.name}</span>` },
      { name: 'When', className: 'half', cell: r => r.when }, { name: 'Then', className: 'half', cell: r => r.then },
        { name: 'Setting', className: 'setting wide-only', cell: r => html`<${Bound} text=${r.bound}
          settings=${settings} />` }]} />
      <${Trouble} error=${policy.error} />
      <p class="sub gap-top">Values are those of the server that answered. <span class="tag">set</span> marks one that
        is not the default, and * one that a kind may have its own value of.${' '}
        <code>perdure watchdog --rules</code> prints the same.</p><//><//>`;
}
