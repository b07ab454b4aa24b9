// The router: the page that is shown is in the part of the address after #, such as
// #/runs?status=running, so that each view has a link and the back button works.
import { signal } from './lib.js';

/** @typedef {{path: string, parts: string[], query: URLSearchParams}} Route */

/** @returns {Route} */
function read() {
  const text = location.hash.startsWith('#/') ? location.hash.slice(1) : '/home';
  const [path, query = ''] = text.split('?', 2);
  const parts = path.split('/').filter(Boolean).map(part => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  return { path, parts, query: new URLSearchParams(query) };
}

/** The current route. */
export const route = signal(read());
addEventListener('hashchange', () => { route.value = read(); });

/**
 * href makes the link of a view.
 * @param {string} path
 * @param {Record<string, any>|URLSearchParams} [query] empty values are left out
 */
export function href(path, query) {
  const q = query instanceof URLSearchParams ? query : new URLSearchParams(
    Object.entries(query ?? {}).filter(([, v]) => v !== undefined && v !== null && v !== '' && v !== false));
  return '#' + path + (q.size ? '?' + q : '');
}

/** keep remembers something of this entry of the history, such as how far it was scrolled, for when it comes back. */
export function keep(what) { history.replaceState({ ...history.state, ...what }, ''); }

/** kept is what was remembered of this entry. A new one has nothing. */
export const kept = () => history.state ?? {};

// Views come with their rows a moment after the address, so the browser can't restore the place by itself. From the
// moment at which the history moves until the place is restored, nothing is remembered: a page without its rows is
// short, and the browser moves it to its top.
history.scrollRestoration = 'manual';
let keeping = 0, moving = true, shown = route.value.path;
const note = () => { clearTimeout(keeping); keeping = 0; keep({ y: Math.round(scrollY) }); };
addEventListener('scroll', () => {
  if (moving) return;
  clearTimeout(keeping);
  keeping = setTimeout(note, 80);
}, { passive: true });
for (const left of ['popstate', 'hashchange']) {
  addEventListener(left, () => { clearTimeout(keeping); keeping = 0; moving = true; });
}
for (const own of ['wheel', 'touchstart', 'keydown', 'pointerdown']) {
  addEventListener(own, () => {
    if (keeping) note(); // a click may lead away before it would be remembered
    moving = false; // somebody goes elsewhere
  }, { passive: true, capture: true });
}

/** wanted is how far this entry was scrolled, while the page is not yet as long as that. */
let wanted = 0;
const longer = new ResizeObserver(() => { if (moving) reach(); });
longer.observe(document.documentElement);
longer.observe(document.body);

function reach() {
  scrollTo(0, wanted);
  if (document.documentElement.scrollHeight >= wanted + innerHeight) moving = false;
}

/**
 * restorePlace scrolls to where this entry of the history was, as soon as the page is as long as that, however late
 * its rows come. It is called when the view of a route is in the page. A new entry of the view that is shown, such as
 * another filter, stays where it is.
 */
export function restorePlace() {
  const { y } = kept(), same = shown === route.value.path;
  shown = route.value.path;
  if (same && (y === undefined || !moving)) { moving = false; return; }
  wanted = y ?? 0;
  moving = true;
  reach();
}

/** go shows another view. With replace it takes the place of this one in the history. */
export function go(path, query, { replace = false } = {}) {
  const to = href(path, query);
  if (replace) {
    history.replaceState(history.state, '', to);
    route.value = read();
  } else {
    location.hash = to;
  }
}

/** withQuery is the current view with some parameters changed. */
export function withQuery(changes) {
  const q = new URLSearchParams(route.value.query);
  for (const [k, v] of Object.entries(changes)) {
    if (v === undefined || v === null || v === '' || v === false) q.delete(k);
    else q.set(k, String(v));
  }
  return href(route.value.path, q);
}

/** change changes parameters of the current view, in the place of this one in the history. */
export function change(changes) {
  history.replaceState(history.state, '', withQuery(changes));
  route.value = read();
}
