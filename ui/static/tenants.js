// The tenant that a platform key looks at. It is kept for this tab, and sent with every call and every
// watch. A key of a tenant has no choice, and the server refuses one.
import { html, signal, useState, useEffect } from './lib.js';

const kept = 'perdure.tenant';

/** The chosen tenant: empty for the key's own, * for all where the feed can show them. */
export const tenant = signal(sessionStorage.getItem(kept) ?? '');

/** choose takes another tenant. */
export function choose(name) {
  sessionStorage.setItem(kept, name);
  tenant.value = name;
}

/** callTenant is the tenant of a call. Calls have no "all tenants": they are about the key's own then. */
export const callTenant = () => (tenant.value === '*' ? '' : tenant.value);

// Lists that the feed shows over all tenants.
const overAll = new Set(['runs', 'counts', 'history']);

/** watchTenant is the tenant of a watch. */
export const watchTenant = (of, ids) =>
  ((tenant.value === '*' && (!overAll.has(of) || ids)) || of === 'watchdog' ? undefined : tenant.value || undefined);

// Above so many tenants there is a field to search instead of a list.
const few = 20, most = 1000;

/**
 * TenantChoice is the choice in the header, for a platform key that may read tenants.
 * @param {{own: string, list: (query: object) => Promise<any>}} p
 */
export function TenantChoice({ own, list }) {
  const [names, set] = useState(/** @type {string[]} */ ([]));
  const [more, setMore] = useState(false);
  const [bad, setBad] = useState(false);
  useEffect(() => {
    list({ limit: most }).then(page => {
      set(page.tenants.map(t => t.tenant));
      setMore(Boolean(page.next_cursor));
    }, () => set([]));
  }, []);
  const others = names.filter(n => n !== own);
  if (!others.length && !tenant.value) return null;
  const all = [...new Set([own, ...others])];
  const everybody = more ? `The first ${most} tenants` : 'All tenants';
  if (all.length <= few && !more) {
    return html`<label class="pick-tenant"><span class="offscreen">Tenant</span>
      <select value=${tenant.value} onChange=${e => choose(e.currentTarget.value)}>
        <option value="">${own}</option>
        <option value="*">${everybody}</option>
        ${others.map(n => html`<option key=${n} value=${n}>${n}</option>`)}</select></label>`;
  }
  const take = e => {
    const text = e.currentTarget.value.trim();
    const name = text === own ? '' : text === everybody ? '*' : text;
    // With more tenants than were listed, the server says whether there is one of this name.
    const known = !name || name === '*' || all.includes(name) || more;
    setBad(!known);
    if (known) choose(name);
  };
  return html`<label class="pick-tenant"><span class="offscreen">Tenant</span>
    <input type="search" list="tenants" placeholder="Tenant" autocomplete="off" spellcheck="false"
      aria-invalid=${bad ? 'true' : undefined} title=${bad ? 'There is no such tenant.' : 'The tenant that is shown'}
      value=${tenant.value === '*' ? everybody : tenant.value || own} onFocus=${e => e.currentTarget.select()}
      onChange=${take} />
    <datalist id="tenants"><option value=${everybody} />
      ${all.map(n => html`<option key=${n} value=${n} />`)}</datalist></label>`;
}
