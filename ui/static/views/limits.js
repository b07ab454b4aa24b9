// Limits: how many runs hold a slot of each, how many wait there, and until when it is closed.
import { html } from '../lib.js';
import { href, go, withQuery } from '../router.js';
import { call, can, post } from '../api.js';
import { useList, refresh } from '../live.js';
import { count, now, ms, span } from '../format.js';
import { Page, Table, Empty, Trouble, Loading, Until, Shape, ask, toast } from '../parts.js';
import { Safe } from '../safe.js';

export const pathOf = (name, key = '') => '/limits/' + encodeURIComponent(name)
  + (key && '/keys/' + encodeURIComponent(key));

/** isClosed tells whether nothing is granted. A closure ends by itself. */
const isClosed = l => Boolean(l.closed_until) && ms(l.closed_until) > now.value;

/** allowed writes what a limit or a key allows, or nothing if the key has no values of its own. */
export const allowed = ({ concurrency: n, rate: r }) => [n && `${count(n)} at once`,
  r && `${count(r.count)} each ${span(r.per)}${r.burst > 1 ? `, ${count(r.burst)} more in a burst` : ''}`]
  .filter(Boolean).join('; ');

/** LimitNames are the limits that runs of a kind or a queue are under. */
export const LimitNames = ({ of: { limits, missing_limits: missing = [] } }) => limits.map((name, n) => html`${n > 0
  && ', '}<a href=${href(pathOf(name))}><${Safe} text=${name} max=${60} /></a>${missing.includes(name)
  && html` <span class="tag">there is no such limit</span>`}`);

/** Condition is the state of a limit or a key: closed, with runs that wait, or with room. */
export function Condition({ of: l }) {
  const [shape, name] = isClosed(l) ? ['failed', 'Closed'] : l.waiting ? ['suspended', 'Runs wait']
    : ['completed', 'Has room'];
  return html`<span class=${'state is-' + shape}><${Shape} state=${shape} />${name}</span>`;
}

/** Closed says until when a limit or a key is closed, and why. */
export const Closed = ({ of: l }) => isClosed(l) && html`<span class="why">opens <${Until}
  at=${l.closed_until} />${l.close_reason && html`: <${Safe} text=${l.close_reason} max=${120} />`}</span>`;

// done says how it went, and shows what is true now.
const done = (answer, said) => { if (answer) toast(said); refresh(); };

const close = async (name, key) => done(await ask({ title: `Close ${key || name}?`, yes: 'Close it', danger: true,
  text: 'Nothing more is granted under it until then. Runs that are leased go on, and deadlines count.',
  fields: [{ name: 'for', label: 'For how long, such as 2m', value: '2m' },
    { name: 'reason', label: 'Why (others see it)' }],
  run: a => post(pathOf(name) + '/close', { key: key || undefined, for: a.for, reason: a.reason || undefined }) }),
'Closed.');

const open = async (name, key) => done(await ask({ title: `Open ${key || name}?`, yes: 'Open it',
  text: 'What waits there is granted as far as it allows.',
  run: () => post(pathOf(name) + '/open', { key: key || undefined }) }), 'Opened.');

/** Door closes or opens a limit, or a key of it. */
export const Door = ({ of: l, name = l.name, at = '' }) => can('kinds:admin') && (isClosed(l)
  ? html`<button type="button" onClick=${() => open(name, at)}>Open</button>`
  : html`<button type="button" onClick=${() => close(name, at)}>Close</button>`);

/** valuesOf reads the fields of a form. What is no number is sent as it is, and refused with its field. */
const number = text => (/^\d+$/.test(text) ? Number(text) : text);
const valuesOf = a => ({ concurrency: a.concurrency ? number(a.concurrency) : undefined,
  rate: a.count || a.per ? { count: number(a.count), per: a.per || '1m', burst: a.burst ? number(a.burst) : undefined }
    : undefined });

const fieldsOf = ({ concurrency: n, rate: r }) => [
  { name: 'concurrency', label: 'Runs at once (empty: any number)', value: n && String(n) },
  { name: 'count', label: 'Grants in a window of time (empty: any number)', value: r && String(r.count) },
  { name: 'per', label: 'Length of that window, such as 1m', value: r?.per },
  { name: 'burst', label: 'How many more in a burst', value: r?.burst && String(r.burst) }];

/** edit makes a limit, or changes one. */
export const edit = async l => {
  const a = await ask({ title: l ? `Change ${l.name}` : 'Make a limit', yes: l ? 'Change it' : 'Make it',
    text: l ? 'A lower number takes no lease away: nothing is granted until enough runs have ended.'
      : 'Runs that name it in their limits are delayed by it, and never dropped.',
    fields: [...(l ? [] : [{ name: 'name', label: 'Name' }]), ...fieldsOf(l ?? {}),
      { name: 'description', label: 'What it is for', value: l?.description },
      ...(l ? [] : [{ name: 'each', label: 'It counts', options: [['', 'all runs together'],
        ['yes', 'the runs of each limit key by themselves']] }])],
    run: f => call('PUT', pathOf(l?.name ?? f.name), { once: true, body: { ...valuesOf(f),
      per_key: l?.per_key ?? f.each === 'yes', description: f.description || undefined } }) });
  done(a, l ? 'Changed.' : 'Made.');
  if (a && !l) go(pathOf(a.name));
};

/** editKey gives a key values of its own, or those of its limit again if all fields are empty. */
export const editKey = async (name, k) => {
  let key = k?.key;
  done(await ask({ title: key ? `Values of ${key}` : 'Values for a key', yes: 'Set them',
    text: 'They take the place of those of the limit. With none it has those of the limit again.',
    fields: [...(key ? [] : [{ name: 'key', label: 'Key' }]), ...fieldsOf(k ?? {})],
    run: f => {
      const body = valuesOf(f);
      key ??= f.key;
      return call(body.concurrency ?? body.rate ? 'PUT' : 'DELETE', pathOf(name, key), { once: true,
        body: body.concurrency ?? body.rate ? body : undefined });
    } }), 'Set.');
};

/** remove deletes a limit. What waits there goes on. */
export async function remove(l) {
  if (!await ask({ title: `Delete ${l.name}?`, yes: 'Delete', danger: true, text: `It delays no run any more. ${
    l.waiting ? `${count(l.waiting)} that wait there go on.` : ''}`,
  run: () => call('DELETE', pathOf(l.name), { once: true }) })) return;
  toast('Deleted.');
  go('/limits');
  refresh();
}

export default function Limits({ query }) {
  const cursor = query.get('cursor') ?? '';
  const { items, error, next } = useList('limits', '/limits', 'limits', { limit: 100, cursor });
  const more = l => (l.at_least ? '+' : '');
  return html`<${Page} title="Limits"
      sub="They delay runs and never drop one: how many are leased at once, and how often."
      actions=${can('kinds:admin') && html`<button type="button" class="primary" onClick=${() =>
        edit()}>Make a limit</button>`}>
    <${Trouble} error=${error} />
    ${items === null ? !error && html`<${Loading} />` : items.length === 0
      ? html`<${Empty} title="No limits"><p>Allow 500 calls of a model a minute, for all agents together:</p>
        <pre class="text">perdure limits set openai --rate 500/1m</pre><//>`
      : html`<${Table} label="Limits" rows=${items} keyOf=${l => l.name} open=${l => go(pathOf(l.name))} columns=${[
        { name: 'State', className: 'fit', cell: l => html`<${Condition} of=${l} />` },
        { name: 'Limit', className: 'grow lead', cell: l => html`<a href=${href(pathOf(l.name))}><b><${Safe}
          text=${l.name} max=${80} /></b></a> <span class="why">${allowed(l)}${l.per_key && ', each key'}</span>
          ${' '}<${Closed} of=${l} />` },
        { name: 'Leased', className: 'num', cell: l => count(l.leased) + more(l) },
        { name: 'Waiting', className: 'num', cell: l => count(l.waiting) + more(l) },
        { name: '', className: 'fit', cell: l => html`<span class="actions"><${Door} of=${l} /></span>` }]} />`}
    ${(next || cursor) && html`<div class="pager">${cursor && html`<a href=${withQuery({ cursor: '' })}>First</a>`}
      ${next && html`<a href=${withQuery({ cursor: next })}>More</a>`}</div>`}<//>`;
}
