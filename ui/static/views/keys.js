// Keys of this tenant, tenants for the platform, and the audit log.
import { html } from '../lib.js';
import { withQuery } from '../router.js';
import { post, call, can, session } from '../api.js';
import { useList, refresh } from '../live.js';
import { count } from '../format.js';
import { Page, Card, Table, Trouble, Loading, Ago, Until, ask, act, toast } from '../parts.js';
import { Safe } from '../safe.js';

const secretOf = made => made?.secret && ask({ title: 'The new key', yes: 'I have kept it', secret: made.secret,
  text: 'It is shown once: only its hash is stored.' });

async function add() {
  await secretOf(await ask({ title: 'Make a key', yes: 'Make it', run: make,
      text: 'Give each person and each program a key of its own, with no more scopes than it needs.', fields: [
    { name: 'name', label: 'Name' }, { name: 'scopes', label: 'Scopes', value: 'runs:read',
      many: session.value?.scopes ?? [] },
      { name: 'ttl', label: 'Valid for, such as 720h; empty: until revoked' }] }));
  refresh();
}

function make(a) {
  const body = { name: a.name, scopes: a.scopes };
  if (a.ttl) body.ttl = a.ttl;
  return post('/keys', body);
}

// The shares of a tenant: its maxima.
const shares = [['max_live_runs', 'Live runs'], ['max_calls', 'Calls'], ['max_streams', 'Streams'],
  ['max_polls', 'Polls'], ['max_bytes_per_hour', 'Bytes an hour'],
  ['weight', 'Weight']];

async function share(t) {
  const a = await ask({ title: `Shares of ${t.tenant}`, yes: 'Change them',
    text: 'What is taken already stays. Empty or 0 is the default of the server. A weight is a number from 1 to 100.',
    fields: shares.map(([name, label]) => ({ name, label, value: String(t.limits?.[name] || '') })),
    run: f => call('PUT', '/api/admin/tenants/' + encodeURIComponent(t.tenant), { body: { limits: Object.fromEntries(
      shares.map(([name]) => [name, /^\d*$/.test(f[name]) ? Number(f[name]) : f[name]])) } }) });
  if (a) toast('Changed.');
  refresh();
}

export default function Keys({ query }) {
  const cursor = query.get('cursor') ?? '';
  const keys = useList('', '/keys', 'keys', { limit: 200 });
  const tenants = useList('', session.value?.platform ? '/api/admin/tenants' : '', 'tenants', { limit: 200 });
  const audit = useList('', can('audit:read') ? '/audit' : '', 'entries', { limit: 50, cursor });
  const revoke = async k => {
    if (await ask({ title: `Revoke the key ${k.name}?`, yes: 'Revoke', danger: true,
        text: 'Calls with it are refused within a second, on every node. This can\'t be taken back.' })) {
      await act('Revoked.', () => call('DELETE', `/keys/${k.key_id}`));
      refresh();
    }
  };
  return html`<${Page} title="Keys and tenants"
      sub="A key belongs to one tenant, and its tenant is all that a call can see." actions=${can('keys:admin') &&
        html`<button type="button" class="primary" onClick=${add}>Make a key</button>`}>
    <${Card} title="Keys of this tenant"><${Trouble} error=${keys.error} />
      ${keys.items === null ? !keys.error && html`<${Loading} />` : keys.items.length === 0
        ? html`<p class="dim">This tenant has no keys of its own.</p>`
        : html`<${Table} label="Keys" rows=${keys.items} keyOf=${k => k.key_id} columns=${[
      { name: 'Name', className: 'fit', cell: k => html`<b><${Safe} text=${k.name} max=${60} /></b>` },
        { name: 'Scopes', className: 'grow', cell: k => html`<span class="why">${(k.scopes ?? []).join(', ')}</span>` },
      { name: 'Id', className: 'fit wide-only', cell: k => html`<span class="id">${k.key_id}</span>` },
        { name: 'Made', className: 'fit named', cell: k => html`<${Ago} at=${k.created_at} />` },
      { name: 'Ends', className: 'fit named', cell: k =>
        (k.revoked_at ? html`<span class="bad">revoked</span>` : k.expires_at ? html`<${Until} at=${k.expires_at} />`
          : html`<span class="dim">never</span>`) },
      { name: '', className: 'fit', cell: k => !k.revoked_at && can('keys:admin') &&
        html`<button type="button" class="danger" onClick=${() => revoke(k)}>Revoke</button>` }]} />`}<//>
    ${session.value?.platform && html`<${Card} title="Tenants"><${Trouble} error=${tenants.error} />
        ${tenants.items === null ? !tenants.error && html`<${Loading} />`
          : html`<${Table} label="Tenants" rows=${tenants.items} keyOf=${t => t.tenant} columns=${[
      { name: 'Tenant', className: 'grow lead', cell: t => html`<b><${Safe} text=${t.tenant} max=${60} /></b>` },
        ...shares.map(([field, name], i) => ({ name, className: i ? 'num wide-only' : 'num', cell: t =>
          (t.limits?.[field] ? count(t.limits[field]) : html`<span class="dim">default</span>`) })),
        { name: 'Signatures', className: 'fit', cell: t => (t.require_signatures ? 'required' : 'optional') },
          { name: 'Since', className: 'fit wide-only', cell: t => html`<${Ago} at=${t.created_at} />` },
      { name: '', className: 'fit', cell: t => can('platform:admin') && html`<button type="button" onClick=${() =>
        share(t)}>Change</button>` }]} />`}<//>`}
    ${can('audit:read') && html`<${Card} title="Who did what"><${Trouble} error=${audit.error} />
        ${audit.items === null ? !audit.error && html`<${Loading} />` : audit.items.length === 0
          ? html`<p class="dim">Nothing yet.</p>`
          : html`<${Table} label="Audit log" rows=${audit.items} keyOf=${e => e.id} columns=${[
      { name: 'When', className: 'fit', cell: e => html`<${Ago} at=${e.at} />` },
        { name: 'Who', className: 'fit', cell: e =>
          html`<b><${Safe} text=${e.key_name || e.key_id || 'the server'} max=${40} /></b>` },
      { name: 'What', className: 'grow', cell: e =>
        html`<code>${e.action}</code> <span class="why"><${Safe} text=${e.target} max=${80} /></span>` },
          { name: 'From', className: 'fit wide-only', cell: e => e.remote ?? '' }]} />`}
      ${(audit.next || cursor) && html`<div class="pager">${cursor && html`<a href=${withQuery({ cursor: '' })}>Newest
        </a>`}${audit.next && html`<a href=${withQuery({ cursor: audit.next })}>Older</a>`}</div>`}<//>`}<//>`;
}
