// One limit: which runs hold its slots, which wait, and its keys.
import { html } from '../lib.js';
import { href } from '../router.js';
import { can } from '../api.js';
import { useList } from '../live.js';
import { count, instant } from '../format.js';
import { Page, Card, Facts, Table, Trouble, Loading, Empty, Ago, RunLink } from '../parts.js';
import { Safe } from '../safe.js';
import { Closed, Condition, Door, allowed, edit, editKey, pathOf, remove } from './limits.js';

/** Runs are those that hold a slot, or wait for one. */
const Runs = ({ rows, none, label, keyed, held = false }) => (!rows?.length ? html`<p class="dim">${none}</p>`
  : html`<${Table} label=${label} rows=${rows} keyOf=${r => r.run_id} columns=${[
    { name: 'Run', className: 'fit', cell: r => html`<${RunLink} id=${r.run_id} />` },
    { name: 'Kind', className: 'grow lead', cell: r => html`<b><${Safe} text=${r.kind} max=${60} /></b>` },
    ...(keyed ? [{ name: 'Key', className: 'fit named', cell: r => html`<${Safe} text=${r.key ?? ''}
      max=${30} />` }] : []),
    ...(held ? [{ name: 'Worker', className: 'fit wide-only', cell: r => html`<${Safe} text=${r.worker_id ?? ''}
      max=${30} />` }] : []),
    { name: 'Since', className: 'num', cell: r => html`<${Ago} at=${r.since} />` }]} />`);

function Keys({ of: l, keys }) {
  if (!keys?.length) return html`<p class="dim">No key is in use, and none has values of its own.</p>`;
  const may = can('kinds:admin');
  return html`<${Table} label="Keys of the limit" rows=${keys} keyOf=${k => k.key} columns=${[
    { name: 'Key', className: 'grow lead', cell: k => html`<${Condition} of=${k} /> ${k.key ? html`<b><${Safe}
      text=${k.key} max=${80} /></b>` : html`<span class="dim">runs without a key</span>`} <span
      class="why">${allowed(k)}</span> <${Closed} of=${k} />` },
    { name: 'Leased', className: 'num', cell: k => count(k.leased) },
    { name: 'Waiting', className: 'num', cell: k => count(k.waiting) },
    { name: '', className: 'fit', cell: k => may && k.key && html`<span class="actions"><button type="button"
      onClick=${() => editKey(l.name, k)}>Set</button><${Door} of=${k} name=${l.name} at=${k.key} /></span>` }]} />`;
}

export default function Limit({ parts: [name] }) {
  const one = useList('limits', pathOf(name), '', {}, { name });
  const keys = useList('limit_keys', pathOf(name) + '/keys', 'keys', { limit: 100 }, { name });
  // The call answers with the limit, the socket with a list of one.
  const l = Array.isArray(one.items) ? one.items[0] : one.items;
  const absent = one.items && !l || one.error?.status === 404;
  const figure = (value, text) => html`<div class="figure"><p class="big">${value}</p><p class="sub">${text}</p></div>`;
  const n = x => count(x) + (l?.at_least ? '+' : '');
  return html`<${Page} name=${`Limit ${name}`} title=${html`<${Safe} text=${name} max=${120} />`}
      crumbs=${html`<a href=${href('/limits')}>Limits</a>`}
      sub=${l?.description && html`<${Safe} text=${l.description} max=${400} />`}
      actions=${l && html`<${Door} of=${l} />${can('kinds:admin') && html`<button type="button" onClick=${() =>
        edit(l)}>Change</button><button type="button" onClick=${() => remove(l)}>Delete</button>`}`}>
    ${!absent && html`<${Trouble} error=${one.error} />`}
    ${absent ? html`<${Empty} title="There is no such limit">It may have been deleted. What waited there
        has gone on.<//>`
      : !l ? html`<${Loading} />` : html`<div class="home"><section class="home-main">
      <${Card} title="What it holds"><div class="figures">${figure(n(l.leased), l.concurrency
        ? `leased, of ${count(l.concurrency)}${l.per_key ? ' for each key' : ''}` : 'leased')}
        ${figure(n(l.waiting), 'wait here')}${figure(n(l.offered), 'let through, not yet taken')}</div><//>
      <${Card} title="Runs that hold a slot"><${Runs} rows=${l.holders} label="Holders" held keyed=${l.per_key}
        none="None." /><//>
      <${Card} title="Runs that wait"><${Runs} rows=${l.waiters} label="Waiters" keyed=${l.per_key}
        none="None." /><//>
      ${l.per_key && html`<${Card} title="Keys" actions=${can('kinds:admin') && html`<button type="button"
        onClick=${() => editKey(name)}>Values for a key</button>`}><${Keys} of=${l} keys=${keys.items} />
        ${keys.next && html`<p class="sub gap-top">The first ${count(keys.items.length)} by name. All of them:
          ${' '}<code>perdure limits show ${name}</code></p>`}<//>`}
    </section><section class="home-side"><${Card} title="About it"><${Facts} of=${[
      ['State', html`<${Condition} of=${l} />`], ['', html`<${Closed} of=${l} />`], ['Allows', allowed(l)],
      ['Counts', l.per_key ? 'the runs of each key by themselves' : 'all runs together'],
      ['Keys in use', l.per_key && n(l.keys)], ['Made', instant(l.created_at)],
      ['Changed', html`<${Ago} at=${l.changed_at} />`]].filter(([k]) => k || l.closed_until).map(([k, v]) =>
      [k || 'Closed', v])} /><//></section></div>`}<//>`;
}
