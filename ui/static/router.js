// The router: the page that is shown is in the part of the address after #, such as
// #/runs?status=running, so that each view has a link and the back button works.
import { signal } from './lib.js';

/** @typedef {{path: string, parts: string[], query: URLSearchParams}} Route */

/** @returns {Route} */
function read() {
  const text = location.hash.startsWith('#/') ? location.hash.slice(1) : '/runs';
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

/** go shows another view. With replace it takes the place of this one in the history. */
export function go(path, query, { replace = false } = {}) {
  const to = href(path, query);
  if (replace) {
    history.replaceState(null, '', to);
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
