// The search of the list of runs: what a person types, as filters of GET /runs, and what may come next.
import { count } from './format.js';

/** fields are the words that stand before a colon, and the parameters that they mean. */
export const fields = {
  kind: 'kind', queue: 'queue', status: 'status', thread: 'thread_id', tree: 'root_run_id', parent: 'parent_run_id',
  worker: 'worker_id', code: 'error_code', class: 'class', id: 'id_part', any: 'metadata_value',
  since: 'created_after', before: 'created_before', ended: 'finished_after', deadline: 'deadline_before',
};

/** what says what a field selects by. */
const what = { kind: 'of a kind; report* is a prefix', queue: 'of a queue', status: 'of a status',
  is: 'held or deferred',
  worker: 'that a worker has', code: 'that ended with an error code', id: 'with these letters in its id',
  any: 'with a value of metadata', since: 'created in the last 2h', before: 'created before',
    ended: 'ended in the last 1h',
  deadline: 'with a deadline in the next 10m', thread: 'of a thread', tree: 'of a tree', parent: 'of a parent',
  class: 'task, agent or process' };

/** names are what a chip says of a parameter. */
export const names = { kind_prefix: 'kind begins with', worker_id: 'worker', error_code: 'error', id_part: 'id has',
  metadata_value: 'any metadata', created_after: 'since', created_before: 'before', finished_after: 'ended since',
  deadline_before: 'deadline before', seen_before: 'silent since', thread_id: 'thread', root_run_id: 'tree',
  parent_run_id: 'parent', held: 'on hold', status: 'status', state: 'state' };

/** filters are the parameters that a list of runs takes. */
export const filters = ['kind', 'queue', 'state', 'thread_id', 'root_run_id', 'parent_run_id', 'created_after',
  'created_before', 'id_part', 'kind_prefix', 'metadata_value', 'worker_id', 'error_code', 'held', 'deadline_before',
  'finished_after', 'class', 'seen_before'];

const units = { s: 1e3, m: 6e4, h: 36e5, d: 864e5 };

/** instantOf reads 2h as two hours ago, or ahead. Everything else is a time as the server takes it. */
function instantOf(v, ahead) {
  const span = v.match(/^(\d+)([smhd])$/);
  return span ? new Date(Date.now() + (ahead ? 1 : -1) * span[1] * units[span[2]]).toISOString() : v;
}

/** words splits a text at spaces, but not within quotation marks. */
const words = text => [...text.matchAll(/(?:[^\s"]|"[^"]*")+/g)].map(m => m[0].replaceAll('"', ''));

/**
 * read reads what was typed. Several words are joined: a run has to match each. wrong says which word can't be read.
 * @param {string} text
 * @param {string[]} kinds  that are known: a word that none of them begins with is a value of metadata
 * @returns {{query: Record<string, string>, wrong: string}}
 */
export function read(text, kinds = []) {
  const query = /** @type {Record<string, string>} */ ({});
  let wrong = '';
  const put = (k, v, word) => {
    if (query[k] !== undefined && query[k] !== v) wrong ||= `Two words are the same field: ${word}.`;
    query[k] = v;
  };
  for (const word of words(text)) {
    const field = word.match(/^([a-z_]+):(.*)$/), meta = word.match(/^([^=:]+)=(.*)$/);
    if (field) {
      const [, name, v] = field;
      if (name === 'is') {
        if (v === 'held') put('held', 'true', word);
        else if (v === 'deferred') put('status', v, word);
        else wrong ||= `is:${v} is neither is:held nor is:deferred.`;
      } else if (!fields[name]) wrong ||= `There is no field ${name} to search in.`;
      else if (name === 'kind' && v.endsWith('*')) put('kind_prefix', v.slice(0, -1), word);
      else if (['since', 'before', 'ended', 'deadline'].includes(name)) {
        put(fields[name], instantOf(v, name === 'deadline'), word);
      } else put(fields[name], v, word);
    } else if (meta) put('metadata.' + meta[1], meta[2], word);
    else if (/^[0-9a-f-]{6,36}$/.test(word) && /\d/.test(word)) put('id_part', word, word);
    else if (!kinds.length || kinds.some(k => k.startsWith(word))) put('kind_prefix', word, word);
    else put('metadata_value', word, word);
  }
  return { query, wrong };
}

/** most bounds the suggestions. */
const most = 8;

/**
 * suggest gives what the last word may become, as texts with a reason each.
 * @param {string} text
 * @param {{kinds: Record<string, number>, queues: string[], workers?: string[]}} known
 * @returns {{text: string, why: string}[]}
 */
export function suggest(text, known) {
  const at = text.lastIndexOf(' ') + 1, word = text.slice(at), before = text.slice(0, at);
  if (!word) return [];
  const quote = v => (/\s/.test(v) ? `"${v}"` : v);
  const of = (name, list, why) => list.map(v => ({ text: `${before}${name}:${quote(v)} `, why }));
  const field = word.match(/^([a-z]+):(.*)$/);
  if (field) {
    const [, name, v] = field;
    const lists = { kind: Object.keys(known.kinds), queue: known.queues, is: ['held', 'deferred'],
      class: ['task', 'agent', 'process'], worker: known.workers ?? [],
      status: ['queued', 'running', 'suspended', 'deferred', 'completed', 'failed', 'timeout', 'cancelled'] };
    const list = (lists[name] ?? []).filter(x => x.startsWith(v) && x !== v);
    return of(name, list.slice(0, most), '');
  }
  if (word.includes('=')) return [];
  const out = [];
  for (const [k, n] of Object.entries(known.kinds)) {
    if (k.startsWith(word)) out.push({ text: `${before}kind:${quote(k)} `, why: `${count(n)} runs` });
  }
  for (const q of known.queues) if (q.startsWith(word)) out.push({ text: `${before}queue:${quote(q)} `,
    why: 'a queue' });
  for (const name of [...Object.keys(fields), 'is']) {
    if (name.startsWith(word)) out.push({ text: `${before}${name}:`, why: what[name] });
  }
  if (/^[0-9a-f-]{4,36}$/.test(word)) out.push({ text: `${before}id:${word} `, why: what.id });
  out.push({ text: `${before}kind:${word}* `, why: 'kinds that begin so' },
    { text: `${before}any:${quote(word)} `, why: what.any });
  return out.slice(0, most);
}
