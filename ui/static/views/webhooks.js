// Webhooks: endpoints, what they were told, and telling them again.
import { html, useState, useEffect } from '../lib.js';
import { href, go } from '../router.js';
import { get, post, call, can } from '../api.js';
import { useList, useGet, refresh } from '../live.js';
import { duration } from '../format.js';
import { Page, Card, Table, Tabs, Empty, Trouble, Loading, Ago, Until, RunLink, Menu, Shape, ask, act, toast,
  Facts } from '../parts.js';
import { Safe } from '../safe.js';

const health = w => (w.disabled ? ['cancelled', 'Disabled'] : w.failing_at ? ['failed', 'Failing']
  : ['completed', 'In use']);

const shapeOf = { pending: 'suspended', delivered: 'completed', dead: 'failed', dropped: 'cancelled' };

/** Sent is the state of a delivery. */
const Sent = ({ state }) => html`<span class=${'state is-' + state}><${Shape} state=${shapeOf[state] ?? 'queued'} />
    ${state[0].toUpperCase() + state.slice(1)}</span>`;

async function test(w) {
  const r = await act('', () => post(`/webhooks/${w.webhook_id}/test`));
  if (r) toast(r.delivered ? `Delivered: ${r.status} in ${duration(r.took_ms)}.`
    : `Not delivered: ${r.error ?? r.status}`, !r.delivered);
  refresh();
}

async function add() {
  const made = await ask({ title: 'Register a webhook', yes: 'Register', run: register,
      text: 'The server posts signed messages to it. The secret is shown once.', fields: [
    { name: 'url', label: 'URL', value: 'https://' },
      { name: 'events', label: 'Events, with commas; empty: ends and stalls', value: 'run:*' },
        { name: 'description', label: 'Description' }] });
  if (made?.secret) await ask({ title: 'Its secret', yes: 'I have kept it', secret: made.secret,
      text: 'The endpoint checks signatures with it. It is not shown again until it is rotated.' });
  refresh();
}

const register = a => post('/webhooks',
  { url: a.url, events: a.events.split(',').map(s => s.trim()).filter(Boolean), description: a.description });

async function remove(w) {
  if (await ask({ title: 'Delete this webhook?', yes: 'Delete', danger: true,
      text: html`<${Safe} text=${w.url} /> is told nothing more. Its deliveries are gone.` })) {
    await act('Deleted.', () => call('DELETE', `/webhooks/${w.webhook_id}`));
    go('/webhooks');
    refresh();
  }
}

function Delivery({ of: { delivery_id: id, state, attempts } }) {
  const d = useGet('/deliveries/' + id, {}, [state, attempts]);
  if (!d.value) return html`<${Trouble} error=${d.error} />`;
  return html`<${Table} label="Attempts" rows=${d.value.history ?? []} keyOf=${h => String(h.n)} columns=${[
    { name: '#', className: 'num', cell: h => h.n },
      { name: 'When', className: 'fit', cell: h => html`<${Ago} at=${h.at} />` },
        { name: 'Took', className: 'num', cell: h => duration(h.took_ms) },
    { name: 'Answer', className: 'grow', cell: h =>
      html`${h.status ? html`<code>${h.status}</code> ` : ''}
        <span class=${h.error ? 'bad' : ''}><${Safe}
          text=${[h.error, h.response].filter(Boolean).join(': ')} max=${200} /></span>` }]} />`;
}

/** triedPages and triedRows bound the search for the last error among deliveries that were not tried yet. */
const triedPages = 5, triedRows = 200;

/** useLastError gives why deliveries of a failing webhook fail: the newest that was tried says so. */
function useLastError(w) {
  const [found, set] = useState('');
  useEffect(() => {
    set('');
    if (!w.failing_at && !w.disabled) return undefined;
    const abort = new AbortController();
    (async () => {
      for (const state of ['pending', 'dead']) {
        for (let cursor = '', pages = 0; pages < triedPages; pages++) {
          const page = await get(`/webhooks/${w.webhook_id}/deliveries`, { state, limit: triedRows, cursor },
            { signal: abort.signal });
          const tried = page.deliveries.find(d => d.last_error || d.last_status);
          if (tried) { set([tried.last_status, tried.last_error].filter(Boolean).join(' ')); return; }
          cursor = page.next_cursor;
          if (!cursor) break;
        }
      }
    })().catch(() => {}); // the list of deliveries says what is wrong
    return () => abort.abort();
  }, [w.webhook_id, w.failing_at, w.disabled]);
  return found;
}

const sentStates = { '': 'All', pending: 'Pending', delivered: 'Delivered', dead: 'Dead', dropped: 'Dropped' };

function One({ webhook: w, query }) {
  const [open, setOpen] = useState('');
  const lastError = useLastError(w);
  const at = query.get('state') ?? '', cursor = query.get('cursor') ?? '';
  const d = useList('deliveries', `/webhooks/${w.webhook_id}/deliveries`, 'deliveries',
    { limit: 50, state: at, cursor }, { webhook_id: w.webhook_id });
  const toggle = (body, said) => act(said, () => call('PATCH', `/webhooks/${w.webhook_id}`, { body })).then(refresh);
  return html`<${Card} title=${html`<${Safe} text=${w.url} max=${120} />`}
      actions=${html`<button type="button" onClick=${() => test(w)}>Send a test</button>
      <${Menu} label="More" items=${[w.disabled ? { name: 'Enable', act: () => toggle({ disabled: false }, 'Enabled.') }
          : { name: 'Disable', act: () => toggle({ disabled: true }, 'Disabled.') },
        { name: 'Rotate the secret', act: async () =>
          { if (await ask({ title: 'Rotate the secret?', yes: 'Rotate',
              text: 'Messages are signed with both for a while.' })) { const n = await act('', () =>
                post(`/webhooks/${w.webhook_id}/rotate`));
                  if (n?.secret) await ask({ title: 'The new secret', yes: 'I have kept it', secret: n.secret }); } } },
        { name: 'Delete', danger: true, act: () => remove(w) }]} />`}>
    <${Facts} of=${[['Told of', (w.events ?? []).join(', ') || 'ends and stalls'], ['Scope', w.scope],
        ['Description', w.description && html`<${Safe} text=${w.description} />`],
          ['Failing since', w.failing_at && html`<${Ago} at=${w.failing_at} />`],
          ['Last error', lastError && html`<span class="bad"><${Safe} text=${lastError} max=${200} /></span>`],
            ['Disabled', w.disabled && html`<${Safe} text=${w.disabled_reason || 'by hand'} />`]]} />
    <h3 class="gap-top">Deliveries</h3><${Trouble} error=${d.error} />
    <${Tabs} label="States of deliveries" at=${at} to=${s => { location.hash = href('/webhooks/' + w.webhook_id,
      { state: s }); }} tabs=${Object.keys(sentStates).map(s => ({ id: s, name: sentStates[s], state: shapeOf[s] }))} />
    ${d.items === null ? !d.error && html`<${Loading} />` : d.items.length === 0
      ? html`<p class="dim">${at || cursor ? 'None.' : 'Nothing was sent yet.'}</p>`
      : html`<${Table} label="Deliveries" rows=${d.items} keyOf=${x => x.delivery_id} open=${x =>
          setOpen(open === x.delivery_id ? '' : x.delivery_id)} columns=${[
      { name: 'State', className: 'fit', cell: x => html`<${Sent} state=${x.state} />` },
      { name: 'Event', className: 'grow', cell: x =>
        html`<b class="mono">${x.type}</b> ${x.last_error &&
            html`<span class="why bad"><${Safe} text=${x.last_error} max=${120} /></span>`}${open === x.delivery_id &&
              html`<${Delivery} of=${x} />`}` },
      { name: 'Run', className: 'fit', cell: x => html`<${RunLink} id=${x.run_id} />` },
        { name: 'Tries', className: 'num', cell: x => x.attempts },
      { name: 'Next', className: 'fit wide-only', cell: x =>
        (!x.next_attempt_at || x.state !== 'pending' ? '–' : Date.parse(x.next_attempt_at) < Date.now()
          ? (w.failing_at ? 'when its turn comes' : 'due')
          : html`<${Until} at=${x.next_attempt_at} />`) },
      { name: 'Since', className: 'fit', cell: x => html`<${Ago} at=${x.created_at} />` },
      { name: '', className: 'fit', cell: x =>
        x.state !== 'pending' && html`<button type="button" onClick=${() =>
            act('It is sent again.', () =>
              post(`/deliveries/${x.delivery_id}/redeliver`)).then(refresh)}>Redeliver</button>` }]} />`}
    ${(d.next || cursor) && html`<div class="pager">${cursor && html`<a href=${href('/webhooks/' + w.webhook_id,
        { state: at })}>Newest</a>`}${d.next && html`<a href=${href('/webhooks/' + w.webhook_id,
        { state: at, cursor: d.next })}>Older</a>`}</div>`}<//>`;
}

export default function Webhooks({ parts: [id], query }) {
  const { items, error } = useList('webhooks', '/webhooks', 'webhooks', { limit: 100 });
  const shown = items?.find(w => w.webhook_id === id) ?? items?.[0];
  return html`<${Page} title="Webhooks" sub="Endpoints that are told of runs, with signed messages and retries."
      actions=${can('webhooks:admin') && html`<button type="button" class="primary"
          onClick=${add}>Register one</button>`}>
    <${Trouble} error=${error} />
    ${items === null ? !error && html`<${Loading} />` : items.length === 0 ? !error &&
      html`<${Empty}
          title="No webhooks">Register an endpoint, and the server tells it when runs end, stall or fail. Each
            delivery is kept with its attempts, and can be sent again.<//>`
            : html`
    <${Table} label="Webhooks" rows=${items} keyOf=${w => w.webhook_id} open=${w => go('/webhooks/' + w.webhook_id)}
      columns=${[
      { name: 'State', className: 'fit', cell: w =>
        { const [s, name] = health(w);
          return html`<span class=${'state is-' + s}><${Shape} state=${s} />${name}</span>`; } },
      { name: 'Endpoint', className: 'grow', cell: w =>
        html`<a href=${href('/webhooks/' + w.webhook_id)}><b><${Safe} text=${w.url} max=${90} /></b></a> <span
            class="why"><${Safe} text=${w.description ?? ''} max=${60} /></span>` },
      { name: 'Scope', className: 'fit named', cell: w => w.scope },
        { name: 'Since', className: 'fit', cell: w => html`<${Ago} at=${w.created_at} />` }]} />
    ${shown && html`<${One} key=${shown.webhook_id} webhook=${shown} query=${query} />`}`}<//>`;
}
