// Calls of the HTTP API, and the session that they are made with.
import { signal, none } from './lib.js';
import { choose, callTenant } from './tenants.js';

const V1 = '/api/v1';

/**
 * @typedef {Object} Session
 * @property {string} [key_id]
 * @property {string} [name]
 * @property {string} [tenant]
 * @property {boolean} [platform]
 * @property {string[]} [scopes]
 * @property {boolean} [read_only]
 * @property {string} [expires_at]
 */

/** The session: undefined until it is known, null when somebody has to log in. */
export const session = signal(/** @type {Session|null|undefined} */ (undefined));
session.subscribe(s => { if (s && !(s.platform && s.scopes?.includes('platform:read'))) choose(''); });
/** isStill tells whether this is an exported file. */
export const isStill = () => Boolean(still);
/** answering tells whether the server has answered the last call. */
export const answering = signal(true);
/** Why the login page is shown. */
export const loginReason = signal('');

/** A Problem is a refusal of the server, or a call that got no answer (status 0). */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `The server answered ${status}.`);
    this.status = status;
    this.code = body.code ?? '';
    this.field = body.field ?? '';
  }
}

/** An Exact is a number that JavaScript would round. It is shown and sent as it was written. */
export class Exact {
  constructor(source) { this.source = source; }
  toString() { return this.source; }
  toJSON() {
    const raw = /** @type {any} */ (JSON).rawJSON; // newer than the types of TypeScript
    return raw ? raw(this.source) : Number(this.source);
  }
}

// Texts, which are passed over, and numbers of 16 characters and more.
const textsAndLongNumbers = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]{15,}/g;

/**
 * parse reads JSON, and keeps numbers that JavaScript would round. Such a number becomes a text that begins with
 * NUL, which no value of the server does, and then an Exact: JSON.parse with a function for each value would
 * stop the page for a second where a value has a megabyte.
 * @param {string} text
 */
export function parse(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  let found = false;
  const marked = text.replace(textsAndLongNumbers, m => {
    if (m[0] === '"' || String(Number(m)) === m) return m;
    found = true;
    return `"\\u0000${m}"`;
  });
  return found ? exact(JSON.parse(marked)) : JSON.parse(text);
}

/** exact turns marked texts in a value into numbers that are kept as they were written. */
function exact(v) {
  if (typeof v === 'string') return v.charCodeAt(0) === 0 ? new Exact(v.slice(1)) : v;
  if (v === null || typeof v !== 'object') return v;
  if (Array.isArray(v)) for (let i = 0; i < v.length; i++) v[i] = exact(v[i]);
  else for (const k of Object.keys(v)) v[k] = exact(v[k]);
  return v;
}

/** still answers calls in a file that was exported: there is no server behind it. */
let still = none;
/** answerFrom has a function answer all calls. */
export const answerFrom = f => { still = f; };

/** newKey makes an idempotency key. */
export const newKey = () => (crypto.randomUUID ? crypto.randomUUID() : String(Math.random()));

/**
 * call makes a call and returns its body. With once it counts once: give the same key to repeat it.
 * @param {string} method
 * @param {string} path below /api/v1, or a whole path that begins with /api/
 * @param {{body?: any, query?: Record<string, any>, once?: boolean|string, signal?: AbortSignal, auth?: string}} [o]
 */
export async function call(method, path, o = {}) {
  if (still) {
    if (method !== 'GET') throw new Problem(403, { code: 'read_only',
      detail: 'This is a copy: nothing can be changed.' });
    return still(path, o.query);
  }
  const headers = { 'X-Perdure': 'ui', 'Accept': 'application/json' };
  if (o.auth) headers.Authorization = 'Bearer ' + o.auth;
  if (o.body !== undefined) headers['Content-Type'] = 'application/json';
  if (o.once) headers['Idempotency-Key'] = o.once === true ? newKey() : o.once;
  let res;
  try {
    res = await fetch(url(path, o.query), { method, headers, signal: o.signal, cache: 'no-store',
      body: o.body === undefined ? undefined : JSON.stringify(o.body) });
  } catch (e) {
    if (e.name === 'AbortError') throw e;
    answering.value = false;
    throw new Problem(0, { code: 'no_answer', detail: 'The server does not answer.' });
  }
  answering.value = true;
  const text = await res.text();
  let body = {};
  try { body = text ? parse(text) : {}; } catch { /* not JSON: of a proxy */ }
  if (!res.ok) {
    if (res.status === 401 && !o.auth && session.value) logOutHere('Your login has expired, or its key was revoked.');
    throw new Problem(res.status, body ?? {});
  }
  return body;
}

/** url is the address of a call. */
export function url(path, query) {
  const full = path.startsWith('/') && !path.startsWith('/api/') && !/^\/(healthz|readyz|metrics)/.test(path)
    ? V1 + path : path;
  const q = new URLSearchParams();
  for (const [k, v] of Object.entries(query ?? {})) {
    if (v !== undefined && v !== null && v !== '') q.set(k, String(v));
  }
  // Every call is about the chosen tenant, but for those about the login itself.
  const t = callTenant();
  if (t && full.startsWith(V1 + '/') && !full.startsWith(V1 + '/session')) q.set('tenant', t);
  return full + (q.size ? '?' + q : '');
}

export const get = (path, query, o) => call('GET', path, { ...o, query });
export const post = (path, body = {}, o) => call('POST', path, { once: true, ...o, body });

// ---- login

function logOutHere(reason) {
  loginReason.value = reason;
  session.value = null;
}

/** whoAmI finds out whether somebody is logged in. */
export async function whoAmI() {
  try {
    session.value = await get('/session');
  } catch (e) {
    if (e.status === 0) throw e;
    session.value = null;
  }
}

/**
 * logIn begins a session. The browser keeps it in a cookie that this page can't read.
 * @param {string} secret  a key, or that of a login link
 * @param {boolean} readOnly
 */
export async function logIn(secret, readOnly) {
  session.value = await call('POST', '/session', { auth: secret, body: { read_only: readOnly } });
  loginReason.value = '';
}

/** logOut ends the session. */
export async function logOut() {
  await call('DELETE', '/session').catch(() => {});
  logOutHere('');
}

/** can tells whether the session may do what needs this scope. The server checks it in any case. */
export function can(scope) {
  if (still) return false;
  const s = session.value;
  if (!s) return false;
  if (s.read_only && !/:read$/.test(scope)) return false;
  // To change something of another tenant takes one scope more.
  if (callTenant() && !/:read$/.test(scope) && !s.scopes?.includes('platform:admin')) return false;
  return s.scopes?.includes(scope) ?? false;
}

/** explain says what a problem means for the person in front of the page. */
export function explain(e) {
  switch (e.code) {
    case 'no_answer': return 'The server does not answer. Is it running? This page tries again by itself.';
    case 'forbidden': return `This login may not do that: ${e.message}. Log in with a key that has the scope.`;
    case 'quota_exceeded': return `${e.message} Wait until runs have ended, or raise the tenant's limit.`;
    case 'not_found': return 'It does not exist (any more), or belongs to another tenant.';
    case 'unavailable': return 'The store did not take it. Nothing was changed: try again.';
    case 'unknown_outcome': return 'It may have been stored. Look before you try again.';
    case 'cross_site': return 'The server takes changes from its own page only. Open the dashboard at its own address.';
  }
  return e.field ? `${e.field}: ${e.message}` : e.message;
}
