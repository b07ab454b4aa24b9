// The watchdog: what it did and why, and its rules.
import { html } from '../lib.js';
import { withQuery } from '../router.js';
import { useList } from '../live.js';
import { Page, Card, Table, Empty, Trouble, Loading, Ago, RunLink } from '../parts.js';
import { Safe } from '../safe.js';
import { rules } from '../rules.js';

/** Bound marks the names of settings in the bound of a rule. */
const Bound = ({ text }) => text.split(/\b([a-z]+(?:_[a-z]+)+|lease|silent|retention)\b/).map((part, i) =>
  (i % 2 ? html`<code>${part}</code>` : part));

export default function Watchdog({ query }) {
  const rule = query.get('rule') ?? '';
  const { items, error, next } = useList('watchdog', '/api/admin/watchdog', 'actions',
    { rule, limit: 100, cursor: query.get('cursor') ?? '' });
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
      { name: 'Run', className: 'fit', cell: a => (a.run_id ? html`<${RunLink} id=${a.run_id} />` : '') }]} />
    ${next && html`<div class="pager"><a href=${withQuery({ cursor: next })}>Older</a></div>`}`}
    <${Card} title="Rules"><${Table} label="Rules" rows=${rules} keyOf=${r => r.name} columns=${[
      { name: 'Rule', className: 'fit', cell: r =>
        html`<a href=${withQuery({ rule: r.name, cursor: '' })}><b>${r.rule}</b></a> <span class="dim">
            ${r.name}</span>` },
      { name: 'When', className: 'half', cell: r => r.when }, { name: 'Then', className: 'half', cell: r => r.then },
        { name: 'Setting', className: 'setting wide-only', cell: r => html`<${Bound} text=${r.bound} />` }]} />
      <p class="sub gap-top"><code>perdure config check</code> prints the settings that are in force.</p><//><//>`;
}
