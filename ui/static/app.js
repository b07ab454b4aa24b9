// The dashboard begins here: who is logged in, the frame around the views, and the keyboard.
import { html, render, useState, useEffect, cls, signal, effect, none } from './lib.js';
import { route, href, go, restorePlace } from './router.js';
import { session, whoAmI, logIn, logOut, can, explain, loginReason, get } from './api.js';
import { connection } from './live.js';
import { lines, useAttention } from './attention.js';
import { Toasts, Dialogs, Loading, Empty, Page, toast } from './parts.js';
import { Login } from './views/login.js';
import { Help } from './views/help.js';
import { tenant, choose, TenantChoice } from './tenants.js';
import { visible } from './safe.js';

// A view is loaded when it is shown for the first time.
/**
 * @type {{path: string, name: string, file: string, key: string, group: string, platform?: boolean, scope?: string,
 *   hidden?: boolean, one?: string}[]}  one is the file of the view of one of them
 */
const views = [
  { path: 'home', name: 'Home', file: 'home', key: 'o', group: 'Work' },
  { path: 'runs', name: 'Runs', file: 'runs', one: 'run', key: 'r', group: 'Work' },
  { path: 'groups', name: 'Groups', file: 'groups', one: 'group', key: 'm', group: 'Work' },
  { path: 'threads', name: 'Chat', file: 'threads', key: 'c', group: 'Work' },
  { path: 'approvals', name: 'Approvals', file: 'approvals', key: 'a', group: 'Work' },
  { path: 'dead-letters', name: 'Dead letters', file: 'deadletters', key: 'd', group: 'Work' },
  { path: 'start', name: 'Start a run', file: 'start', key: 'n', group: 'Work', scope: 'runs:create' },
  { path: 'workers', name: 'Workers, queues', file: 'workers', one: 'worker', key: 'w',
    group: 'Operate' },
  { path: 'kinds', name: 'Kinds', file: 'kinds', one: 'kind', key: 'i', group: 'Operate' },
  { path: 'schedules', name: 'Schedules', file: 'schedules', one: 'schedule', key: 's', group: 'Operate' },
  { path: 'limits', name: 'Limits', file: 'limits', one: 'limit', key: 'l', group: 'Operate' },
  { path: 'webhooks', name: 'Webhooks', file: 'webhooks', key: 'b', group: 'Operate', scope: 'webhooks:admin' },
  { path: 'health', name: 'Health', file: 'health', key: 'h', group: 'Operate' },
  { path: 'watchdog', name: 'Watchdog', file: 'watchdog', key: 'g', group: 'Operate', platform: true },
  { path: 'recovery', name: 'Recovery', file: 'recovery', key: 'v', group: 'Operate', platform: true },
  { path: 'keys', name: 'Keys and tenants', file: 'keys', key: 'k', group: 'Operate', scope: 'keys:admin' },
  { path: 'queues', name: 'Queue', file: 'workers', one: 'queue', key: '', group: '', hidden: true },
  { path: 'compare', name: 'Compare', file: 'compare', key: '', group: '', hidden: true },
];

// A drawing beside each view, in a box of 16.
const icons = {
  home: 'M2.500 7.500L8 2.500l5.500 5M4 6.500V13h8V6.500', kinds: 'M3 3h4v4H3zM9 3h4v4H9zM3 9h4v4H3zM9 9h4v4H9z',
  runs: 'M2 4h12M2 8h8M2 12h5', groups: 'M5 2.500H2.500v11H5M11 2.500h2.500v11H11M8 5h.1M8 8h.1M8 11h.1',
  threads: 'M2.500 3h11v8h-6l-3 2.500V11h-2z', approvals: 'M3 8.500l3.200 3.200L13 4.500',
  'dead-letters': 'M2 4h12v8.500H2zM2 4.500l6 4.500 6-4.500', start: 'M8 3v10M3 8h10',
  workers: 'M2.500 3h11v4h-11zM2.500 9h11v4h-11zM5 5h.1M5 11h.1',
  webhooks: 'M6.500 9.500l3-3M7 4.500l1-1a3 3 0 0 1 4.500 4.500l-1 1M9 11.500l-1 1A3 3 0 0 1 3.500 8l1-1',
  limits: 'M2 12.500a6.200 6.200 0 1 1 12 0M8 11.500L11 6.500',
  schedules: 'M14 8A6 6 0 1 1 2 8a6 6 0 0 1 12 0M8 4.500V8l2.500 1.500',
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
  refused: ['Polling', 'The server did not take a part of what is shown. The page asks for that every two seconds.'],
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
  useAttention();
  // The lines that need a person are counted beside the view that shows it.
  const badge = {};
  for (const l of lines.value ?? []) (badge[l.view] ??= []).push(l);
  const sum = of => of.reduce((n, l) => n + l.n, 0) + (of.some(l => l.count.endsWith('+')) ? '+' : '');
  const s = session.value ?? {};
  const seen = views.filter(v => !v.hidden && (!v.platform || s.platform) && (!v.scope || can(v.scope)));
  return html`<nav class=${cls('nav', menu.value && 'open')} id="nav" aria-label="Views">
    <a class="brand" href=${href('/home')}>
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
        ? html`<span class="n" title=${badge[v.path].map(l => `${l.count} ${visible(l.text)}`).join('\n')}
            aria-label=${`${sum(badge[v.path])} need attention`}>${sum(badge[v.path])}</span>`
              : ''}</a></li>`)}</ul></div>`)}
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

// Views that show all tenants together, or nothing of a tenant.
const overAll = new Set(['runs', 'watchdog', 'recovery', 'keys']);

/** A banner tells when what is shown may be old, or is less than was chosen. */
function Notice() {
  const at = route.value.parts[0] ?? 'home';
  if (tenant.value === '*' && !overAll.has(at)) {
    return html`<p class="banner" role="status">This view does not show all tenants together: it shows
      ${' '}<b>${session.value?.tenant}</b>. Choose another tenant in the menu to see its own.</p>`;
  }
  if (connection.value !== 'silent') return null;
  return html`<p class="banner"
      role="status">The live connection was silent for 60 seconds. This page now asks the server every two
        seconds.</p>`;
}

// Views that were loaded, and how often each could not be: a browser may remember that under the same address.
const loaded = new Map(), failed = signal(/** @type {Record<string, number>} */ ({}));

async function loadView(file) {
  const times = failed.value[file] ?? 0;
  try {
    loaded.set(file, (await import(`./views/${file}.js${times ? '?again=' + times : ''}`)).default);
    failed.value = { ...failed.value, [file]: 0 };
  } catch { failed.value = { ...failed.value, [file]: times + 1 }; }
}

function View() {
  const { parts } = route.value;
  const name = parts[0] ?? 'home';
  const view = views.find(v => v.path === name);
  const file = (parts[1] && view?.one) || view?.file || '';
  const times = failed.value[file] ?? 0;
  // A view that could not be loaded is loaded when the server answers again.
  useEffect(() => {
    if (!view || loaded.has(file)) return undefined;
    const timer = setTimeout(() => loadView(file), times ? 2000 : 0);
    return () => clearTimeout(timer);
  }, [file, times]);
  if (!view) {
    return html`<${Page} title="Not found">
        <${Empty} title="There is no such view">The address names nothing that this dashboard shows. <a
            href=${href('/home')}>Go home</a>.<//><//>`;
  }
  const Shown = loaded.get(file);
  if (!Shown && times) return html`<${Page} title=${view.name}>
      <${Empty} title="This view could not be loaded">Is the server running? The page tries again by itself.<//><//>`;
  return Shown ? html`<${Shown} key=${file === view.one ? `${name} ${parts[1]}` : name} parts=${parts.slice(1)}
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

// The one-time link of `perdure dashboard` has its secret after #login=. It leaves the address at once.
function takeLink() {
  const m = location.hash.match(/^#login=(.+)$/);
  if (!m) return '';
  history.replaceState(null, '', location.pathname + location.search);
  go('/home', undefined, { replace: true });
  try { return decodeURIComponent(m[1]); } catch { return m[1]; }
}

function refuseLink(e) {
  const why = e.status === 401 ? 'The link was used before, or is older than ten minutes. A new one: perdure dashboard.'
    : `The link was not accepted: ${explain(e)}`;
  if (session.value) toast(`${why} You are still logged in as ${session.value.name ?? 'before'}.`, true);
  else loginReason.value = why;
}

function App() {
  const [down, setDown] = useState(none);
  useEffect(followTenant, [route.value, session.value]);
  useEffect(() => {
    let secret = takeLink();
    const begin = async () => {
      if (!secret) { await whoAmI(); return; }
      try { await logIn(secret, false); } catch (e) {
        if (e.status === 0) throw e;
        await whoAmI();
        refuseLink(e);
      }
      secret = '';
    };
    let timer = 0;
    const attempt = () => begin().then(() => setDown(null), e => { setDown(e); timer = setTimeout(attempt, 2000); });
    attempt();
    // A link may also be pasted into a tab that is open.
    const pasted = () => {
      const given = takeLink();
      if (given) { secret = given; clearTimeout(timer); attempt(); }
    };
    addEventListener('hashchange', pasted);
    return () => { clearTimeout(timer); removeEventListener('hashchange', pasted); };
  }, []);
  useEffect(() => { menu.value = false; }, [route.value.path]);
  useEffect(restorePlace, [route.value]);
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
    <${Nav} key=${'nav ' + tenant.value} at=${route.value.parts[0] ?? 'home'} />
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
