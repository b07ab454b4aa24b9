// A run as one file: an HTML page that has the dashboard's own view of the run inside, with what the server has
// answered. It opens from disk and asks no network: its policy allows the scripts in it and nothing else.
//
// The modules are those that the server sends. Their imports are rewritten to names, and an import map gives each
// name a data: address. Answers are JSON in a script element, with every < and line separator escaped, so that no
// text of an agent ends the element.
import { get } from './api.js';
import { instant } from './format.js';

/** Bounds of a file: lines of a log, runs whose logs are in it, characters of all lines, of all values of the journal,
 * and of one value. */
const maxLines = 20_000, maxLogs = 60, maxText = 24e6, maxValues = 4e6, maxValue = 500_000;
const pageLines = 2000, pageEntries = 200;

const imports = /^((?:import|export) [^'"\n]*(?:\n[^'";]*)*?from |import )'(\.[^']+)'/gm;

/** resolve is the path of an import, seen from a file. */
const resolve = (from, to) => new URL(to, 'http://x/' + from).pathname.slice(1);

async function text(path) {
  const answer = await fetch(new URL(path, document.baseURI), { cache: 'no-cache' });
  if (!answer.ok) throw new Error(`The server does not have ${path}.`);
  return answer.text();
}

/** modules reads the files that the page needs, from the entry on: their texts by path. */
async function modules(entry) {
  const files = new Map();
  const read = async path => {
    if (files.has(path)) return;
    files.set(path, '');
    const source = await text(path), inner = [];
    files.set(path, source.replace(imports, (_, before, to) => {
      inner.push(resolve(path, to));
      return `${before}'perdure/${inner.at(-1)}'`;
    }));
    await Promise.all(inner.map(read));
  };
  await read(entry);
  return files;
}

/** bytes of a text as base64, since data: addresses have no room for all characters. */
function base64(source) {
  let out = '';
  const bytes = new TextEncoder().encode(source);
  for (let i = 0; i < bytes.length; i += 8192) out += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(out);
}

/** inScript is JSON that can stand in a script element. */
export const inScript = value => JSON.stringify(value).replace(/[<>&\u2028\u2029]/g, c =>
  '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));

const sha = async source => `'sha256-${base64Of(await crypto.subtle.digest('SHA-256',
  new TextEncoder().encode(source)))}'`;
const base64Of = buffer => btoa(String.fromCharCode(...new Uint8Array(buffer)));

/** logOf reads the newest lines of a log. */
async function logOf(run, room) {
  const from = Math.max(0, run.last_seq - maxLines);
  let events = [], size = 0;
  for (let after = from; after < run.last_seq;) {
    const page = await get(`/runs/${run.run_id}/events`, { after: after || undefined, limit: pageLines });
    if (!page.events.length) break;
    events.push(...page.events);
    after = events.at(-1).seq;
  }
  let begin = events.length;
  while (begin > 0 && size < room) size += JSON.stringify(events[--begin].data ?? null).length + 80;
  events = events.slice(begin);
  return { events, size, left: run.last_seq - events.length };
}

/** journalOf reads a journal, with whole values as far as there is room. */
async function journalOf(id) {
  const entries = [], whole = {};
  let room = maxValues, cut = 0;
  for (let after = 0; ;) {
    const page = await get(`/runs/${id}/journal/entries`, { after: after || undefined, limit: pageEntries });
    entries.push(...page.entries);
    after = page.next_after;
    if (!after) break;
  }
  for (const e of entries) {
    if (e.preview === undefined) continue;
    if (e.size > maxValue || e.size > room) { cut++; continue; }
    whole[e.seq] = await get(`/runs/${id}/journal/entries/${e.seq}`);
    room -= e.size;
  }
  return { entries, whole, cut };
}

/** collect reads all that the page of a run shows. What can't be read is not in the file. */
async function collect(id) {
  const run = await get('/runs/' + id), root = run.root_run_id || id;
  const answers = { ['/runs/' + id]: run };
  const tree = await get(`/runs/${root}/tree`, { limit: 1000 });
  if (!tree.runs.some(r => r.run_id === id)) tree.runs.push(run);
  answers[`/runs/${root}/tree`] = tree;
  if (root !== id) answers['/runs/' + root] = tree.runs.find(r => r.run_id === root) ?? await get('/runs/' + root);
  const events = {}, left = [];
  let room = maxText;
  const own = tree.runs.filter(r => r.run_id === id), others = tree.runs.filter(r => r.run_id !== id);
  for (const r of [...own, ...others].slice(0, maxLogs)) {
    const log = await logOf(r, room);
    room -= log.size;
    events[r.run_id] = log.events;
    if (log.left) left.push(`${log.left} lines of ${r.run_id === id ? 'this run' : r.run_id}`);
  }
  if (others.length >= maxLogs) left.push(`the logs of ${tree.runs.length - maxLogs} runs`);
  const journal = await journalOf(id);
  if (journal.cut) left.push(`${journal.cut} large values of steps`);
  await Promise.all(['activity', 'artifacts', 'views', 'late-results', 'deliverable'].map(async what => {
    const path = `/runs/${id}/${what}`;
    try { answers[path] = await get(path); } catch { return; }
    for (const v of what === 'views' ? answers[path].views ?? [] : []) {
      const one = `${path}/${encodeURIComponent(v.name)}`;
      try { answers[one] = await get(one); } catch { /* it has gone */ }
    }
  }));
  try { answers[`/runs/${id}/inbox/items`] = await get(`/runs/${id}/inbox/items`,
    { limit: pageEntries }); } catch { /* */ }
  try { answers['/approvals'] = await get('/approvals', { run_id: id, state: 'all' }); } catch { /* */ }
  return { id, at: new Date().toISOString(), from: location.host, answers, events, journal: { entries: journal.entries,
    whole: journal.whole }, left };
}

/**
 * exported makes the file of a run.
 * @param {string} id
 */
export async function exported(id) {
  const [data, files, index] = await Promise.all([collect(id), modules('still.js'), text('index.html')]);
  const sheets = [...index.matchAll(/rel="stylesheet" href="\.\/([^"]+)"/g)];
  const css = (await Promise.all(sheets.map(m => text(m[1])))).join('');
  const map = JSON.parse(/<script type="importmap">([^<]*)<\/script>/.exec(index)?.[1] ?? '{}').imports;
  const all = {};
  for (const [name, path] of Object.entries(map)) {
    all[name] = 'data:text/javascript;base64,' + base64(await text(path));
  }
  for (const [path, source] of files) all['perdure/' + path] = 'data:text/javascript;base64,' + base64(source);
  const table = JSON.stringify({ imports: all });
  const begin = 'import \'perdure/still.js\';';
  const policy = `default-src 'none'; script-src ${await sha(table)} ${await sha(begin)} data:; `
    + `style-src ${await sha(css)}; ` + 'img-src data:; base-uri \'none\'; form-action \'none\'';
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<title>Run ${id.replace(/[^0-9a-f-]/g, '')}, ${instant(data.at)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<style>${css}</style>
<script type="importmap">${table}</script>
<script type="application/json" id="data">${inScript(data)}</script>
<script type="module">${begin}</script>
</head><body><div id="app"></div></body></html>
`;
}
