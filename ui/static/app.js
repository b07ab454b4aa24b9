// The dashboard begins here: who is logged in, the frame around the views, and the keyboard.
import { html, render, useState, useEffect, cls, signal, effect, none } from './lib.js';
import { route, href, go } from './router.js';
import { session, whoAmI, logIn, logOut, can, explain, loginReason, get } from './api.js';
import { connection, useCounts, useList } from './live.js';
import { Toasts, Dialogs, Loading, Empty, Page } from './parts.js';
import { Login } from './views/login.js';
import { Help } from './views/help.js';
import { tenant, choose, TenantChoice } from './tenants.js';

// A view is loaded when it is shown for the first time.
/**
 * @type {{path: string, name: string, file: string, key: string, group: string, platform?: boolean, scope?: string,
 *   hidden?: boolean}[]}
 */
const views = [
  { path: 'runs', name: 'Runs', file: 'runs', key: 'r', group: 'Work' },
  { path: 'threads', name: 'Chat', file: 'threads', key: 'c', group: 'Work' },
  { path: 'approvals', name: 'Approvals', file: 'approvals', key: 'a', group: 'Work' },
  { path: 'dead-letters', name: 'Dead letters', file: 'deadletters', key: 'd', group: 'Work' },
  { path: 'start', name: 'Start a run', file: 'start', key: 'n', group: 'Work', scope: 'runs:create' },
  { path: 'workers', name: 'Workers and queues', file: 'workers', key: 'w', group: 'Operate' },
  { path: 'webhooks', name: 'Webhooks', file: 'webhooks', key: 'b', group: 'Operate', scope: 'webhooks:admin' },
  { path: 'health', name: 'Health', file: 'health', key: 'h', group: 'Operate' },
  { path: 'watchdog', name: 'Watchdog', file: 'watchdog', key: 'g', group: 'Operate', platform: true },
  { path: 'recovery', name: 'Recovery', file: 'recovery', key: 'v', group: 'Operate', platform: true },
  { path: 'keys', name: 'Keys and tenants', file: 'keys', key: 'k', group: 'Operate', scope: 'keys:admin' },
  { path: 'run', name: 'Run', file: 'run', key: '', group: '', hidden: true },
];

// A drawing beside each view, in a box of 16.
const icons = {
  runs: 'M2 4h12M2 8h8M2 12h5', threads: 'M2.500 3h11v8h-6l-3 2.500V11h-2z', approvals: 'M3 8.500l3.200 3.200L13 4.500',
  'dead-letters': 'M2 4h12v8.500H2zM2 4.500l6 4.500 6-4.500', start: 'M8 3v10M3 8h10',
  workers: 'M2.500 3h11v4h-11zM2.500 9h11v4h-11zM5 5h.1M5 11h.1',
  webhooks: 'M6.500 9.500l3-3M7 4.500l1-1a3 3 0 0 1 4.500 4.500l-1 1M9 11.500l-1 1A3 3 0 0 1 3.500 8l1-1',
  health: 'M1.500 8.500h3l2-5 3 9 2-4h3',
  watchdog: 'M8 1.800l5.500 2v4c0 3.200-2.300 5.400-5.500 6.500-3.200-1.100-5.500-3.300-5.500-6.500v-4z',
  recovery: 'M3 8a5 5 0 1 1 1.600 3.700M3 12.500V9.200h3.200',
  keys: 'M9.500 6.500a3 3 0 1 0-2 2.800L9 10.800h1.800v1.700h1.700V14H14v-2L9.400 7.400z',
};

const helping = signal(false), menu = signal(false);

// ---- light and dark

const theme = signal(localStorage.getItem('perdure.theme') ?? 'auto');
const dark = matchMedia('(prefers-color-scheme: dark)');
const paint = () => {
  document.documentElement.dataset.theme = theme.value === 'auto' ? (dark.matches ? 'dark' : 'light') : theme.value;
};
dark.addEventListener('change', paint);
effect(() => { paint(); localStorage.setItem('perdure.theme', theme.value); });

// ---- the frame

const connections = {
  connecting: ['Connecting', 'Connecting to the server.'],
  live: ['Live', 'Changes arrive as they happen, over one socket.'],
  polling: ['Polling',
    'There is no live connection. The page asks the server every two seconds, and tries to connect again.'],
  silent: ['Polling',
    'The live connection was silent for 60 seconds. The page asks the server every two seconds instead.'],
};

function Connection() {
  const [name, why] = connections[connection.value];
  return html`<span class=${cls('connection', 'is-' + connection.value)} role="status" title=${why}>
      <span class="dot" aria-hidden="true"></span>${name}</span>`;
}

function Nav({ at }) {
  const counts = useCounts();
  const approvals = useList('approvals', '/approvals', 'approvals', { limit: 100 });
  const badge = {
    runs: counts?.status && (counts.status.running ?? 0) + (counts.status.dispatched ?? 0),
    approvals: approvals.items?.length,
  };
  const s = session.value ?? {};
  const seen = views.filter(v => !v.hidden && (!v.platform || s.platform) && (!v.scope || can(v.scope)));
  return html`<nav class=${cls('nav', menu.value && 'open')} id="nav" aria-label="Views">
    <a class="brand" href=${href('/runs')}>
      <svg viewBox="0 0 32 32" width="26" height="26" aria-hidden="true">
        <rect width="32" height="32" rx="7" fill="var(--accent)" />
        <path d="M7 21h8M17 21h2.500M21.500 21h1.500" stroke="var(--accent-ink)" stroke-width="3" stroke-linecap="round"
          opacity=".6" /><path d="M7 12h18" stroke="var(--accent-ink)" stroke-width="3" stroke-linecap="round" /></svg>
            <span>Perdure</span></a>
    ${s.platform && can('platform:read') && html`<${TenantChoice} own=${s.tenant}
        list=${q => get('/api/admin/tenants', q)} />`}
    ${['Work', 'Operate'].map(group => html`<div class="nav-group" key=${group}><h2>${group}</h2>
        <ul>${seen.filter(v => v.group === group).map(v => html`
      <li key=${v.path}><a href=${href('/' + v.path)} aria-current=${at === v.path ? 'page' : undefined}>
          <span class="nav-name"><svg class="icon" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
            <path d=${icons[v.path]} /></svg>${v.name}</span>${badge[v.path]
        ? html`<span class="n" aria-label=${`${badge[v.path]} ${v.path === 'runs' ? 'running' : 'open'}`}>
            ${badge[v.path]}</span>` : ''}</a></li>`)}</ul></div>`)}
    <div class="nav-foot">
      <${Connection} />
      <p class="who">${s.name ?? 'logged in'}${s.tenant &&
          html`<span class="dim"> · ${s.tenant}</span>`}${s.read_only && html`<span class="tag">read only</span>`}</p>
      <div class="row"><label class="pick-theme"><span class="offscreen">Colours</span>
          <select value=${theme.value} onChange=${e => { theme.value = e.currentTarget.value; }}>
        <option value="auto">System</option><option value="light">Light</option>
        <option value="dark">Dark</option></select></label>
      <button type="button" onClick=${() => { helping.value = true; }} title="Keys and help (?)"
        aria-label="Help">?</button>
      <button type="button" onClick=${logOut}>Log out</button></div>
    </div></nav>`;
}

/** A banner tells when what is shown may be old. */
function Notice() {
  if (connection.value !== 'silent') return null;
  return html`<p class="banner"
      role="status">The live connection was silent for 60 seconds. This page now asks the server every two
        seconds.</p>`;
}

const loaded = new Map();

function View() {
  const { parts } = route.value;
  const name = parts[0] === 'runs' && parts[1] ? 'run' : parts[0] ?? 'runs';
  const view = views.find(v => v.path === name);
  const [, again] = useState(0);
  const [broken, setBroken] = useState(none);
  useEffect(() => {
    if (!view || loaded.has(view.file)) return;
    import(`./views/${view.file}.js`).then(m =>
      { loaded.set(view.file, m.default); setBroken(null); again(n => n + 1); }, setBroken);
  }, [view?.file]);
  if (!view) {
    return html`<${Page} title="Not found">
        <${Empty} title="There is no such view">The address names nothing that this dashboard shows. <a
            href=${href('/runs')}>Go to the runs</a>.<//><//>`;
  }
  const Shown = loaded.get(view.file);
  if (broken) return html`<${Page} title=${view.name}>
      <${Empty} title="This view could not be loaded">Is the server running? Reload the page when it is.<//><//>`;
  return Shown ? html`<${Shown} key=${name === 'run' ? parts[1] : name} parts=${parts.slice(1)}
      query=${route.value.query} />` : html`<${Loading} />`;
}

// A link to something of another tenant names it. The choice stays when the page goes on from there.
function followTenant() {
  const { path, query } = route.value, named = query.get('tenant'), s = session.value;
  if (named === null || !s) return;
  if (s.platform && can('platform:read')) choose(named === s.tenant ? '' : named);
  const rest = new URLSearchParams(query);
  rest.delete('tenant');
  go(path, rest, { replace: true });
}

function App() {
  const [down, setDown] = useState(none);
  useEffect(followTenant, [route.value, session.value]);
  useEffect(() => {
    const begin = async () => {
      // The one-time link of `perdure dev` has the key after #login=. It leaves the address at once.
      const m = location.hash.match(/^#login=(.+)$/);
      if (m) {
        history.replaceState(null, '', location.pathname);
        route.value = { ...route.value, path: '/runs', parts: ['runs'], query: new URLSearchParams() };
        try { await logIn(decodeURIComponent(m[1]), false); return;
          } catch (e) { loginReason.value = `The link was not accepted: ${explain(e)}`; session.value = null; return; }
      }
      await whoAmI();
    };
    let timer = 0;
    const attempt = () => begin().then(() => setDown(null), e => { setDown(e); timer = setTimeout(attempt, 2000); });
    attempt();
    return () => clearTimeout(timer);
  }, []);
  useEffect(() => { menu.value = false; document.getElementById('main')?.scrollTo?.(0, 0); }, [route.value.path]);
  if (session.value === undefined) return down ? html`<p class="boot" role="alert">${explain(down)}</p>`
    : html`<p class="boot">Perdure</p>`;
  if (session.value === null) return html`<${Login} /><${Toasts} />`;
  return html`<a class="skip" href="#main" onClick=${e =>
      { e.preventDefault(); document.getElementById('main')?.focus(); }}>Skip to the content</a>
    <header class="top"><button type="button" class="burger" aria-expanded=${menu.value} aria-controls="nav"
        onClick=${() => { menu.value = !menu.value; }}>
      <svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">
        <path d="M1 3h14M1 8h14M1 13h14" stroke="currentColor" stroke-width="2" /></svg>
        <span class="offscreen">Menu</span></button>
      <span class="brand-small">Perdure</span><${Connection} /></header>
    <${Nav} key=${'nav ' + tenant.value} at=${route.value.parts[0] ?? 'runs'} />
    <main id="main" tabindex="-1"><${Notice} /><${View} key=${'view ' + tenant.value} /></main>
    <${Toasts} /><${Dialogs} />${helping.value &&
      html`<${Help} views=${views.filter(v => v.key)} close=${() => { helping.value = false; }} />`}`;
}

// ---- the keyboard: j and k move through rows, / searches, ? helps, g and a letter goes to a view

let before = '';
addEventListener('keydown', e => {
  if (e.ctrlKey || e.metaKey || e.altKey || e.defaultPrevented) return;
  const at = /** @type {HTMLElement} */ (e.target);
  if (e.key === 'Escape') { menu.value = false; if (at.matches?.('input[type=search]')) at.blur(); }
  if (at.closest?.('input, textarea, select, [contenteditable], dialog')) return;
  if (before === 'g') {
    before = '';
    const view = views.find(v => v.key === e.key);
    if (view) { e.preventDefault(); go('/' + view.path); return; }
  }
  switch (e.key) {
    case 'g': before = 'g'; setTimeout(() => { before = ''; }, 1000); return;
    case '?': helping.value = true; return;
    case '/': {
      const search = /** @type {HTMLInputElement|null} */ (document.querySelector('main input[type=search]'));
      if (search) { e.preventDefault(); search.focus(); search.select(); }
      return;
    }
    case 'j': case 'k': {
      const rows = /** @type {HTMLElement[]} */ ([...document.querySelectorAll('main [data-row]')]);
      if (!rows.length) return;
      const here = rows.findIndex(r => r === document.activeElement?.closest('[data-row]'));
      const to = rows[Math.max(0, Math.min(rows.length - 1, here + (e.key === 'j' ? 1 : -1)))];
      to.focus();
      to.scrollIntoView({ block: 'nearest' });
      e.preventDefault();
      return;
    }
    case 'p': /** @type {HTMLElement|null} */ (document.querySelector('main [data-pause]'))?.click(); return;
    case 'u': if (route.value.parts.length > 1) go('/' + route.value.parts[0]); return;
  }
});

render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById('app')));
