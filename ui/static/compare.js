// Two runs beside each other: their rows in pairs, and how each pair differs. Plain data in and out.
import { json } from './format.js';

/** slower is how much longer one of two may take before that counts as a difference, and by how much at least. */
const slower = 2, slowerBy = 1000;

/** nameOf is what makes a row the same in both runs: the key of a step, and the number of the use of all else. */
function nameOf(row, used) {
  if (row.entry) return 'step ' + row.entry.key;
  const base = row.kind === 'end' ? 'end' : row.kind === 'wait' ? `wait ${row.event?.data?.wait_id ?? row.name}`
    : row.kind === 'child' ? `child ${row.event?.data?.key ?? row.name}` : `${row.kind} ${row.name}`;
  const n = (used.get(base) ?? 0) + 1;
  used.set(base, n);
  return n > 1 ? `${base} ${n}` : base;
}

const named = rows => {
  const used = new Map();
  return new Map(rows.map(r => [nameOf(r, used), r]));
};

/** same tells whether two values are equal as JSON, whatever the order of their members. */
export function same(a, b) {
  if (a === b) return true;
  if (typeof a !== 'object' || typeof b !== 'object' || !a || !b || Array.isArray(a) !== Array.isArray(b)) {
    return json(a) === json(b);
  }
  const ka = Object.keys(a), kb = Object.keys(b);
  if (!ka.length && !kb.length) return json(a) === json(b);
  return ka.length === kb.length && ka.every(k => k in b && same(a[k], b[k]));
}

const lasting = r => r.to - r.from;
const valueOf = r => (r.entry?.preview ?? (r.kind === 'wait' || r.kind === 'child' ? r.value?.decision ?? null
  : r.value)) ?? null;

/** differs says how two rows differ, the most important first. */
export function differs(a, b) {
  if (!a) return ['only in the second'];
  if (!b) return ['only in the first'];
  const out = [];
  if (a.state !== b.state) out.push('state');
  if ((a.error?.code ?? '') !== (b.error?.code ?? '') || (a.error?.message ?? '') !== (b.error?.message ?? '')) {
    out.push('error');
  }
  if (!a.error && !b.error && (!same(valueOf(a), valueOf(b)) || (a.entry && b.entry
    && a.entry.size !== b.entry.size))) {
    out.push('value');
  }
  if ((a.tries ?? 1) !== (b.tries ?? 1)) out.push('tries');
  const [x, y] = [lasting(a), lasting(b)];
  if (Math.abs(x - y) >= slowerBy && Math.max(x, y) >= slower * Math.min(x, y)) out.push('time');
  return out;
}

/**
 * pairs puts the rows of two runs beside each other, in the order of the first, with those that only the second has
 * behind the one that they follow there.
 * @param {import('./steps.js').Row[]} first
 * @param {import('./steps.js').Row[]} second
 */
export function pairs(first, second) {
  const a = named(first), b = named(second), out = [];
  const extra = new Map();
  let before = '';
  for (const [name, row] of b) {
    if (a.has(name)) { before = name; continue; }
    if (!extra.has(before)) extra.set(before, []);
    extra.get(before).push({ name, a: null, b: row });
  }
  out.push(...extra.get('') ?? []);
  for (const [name, row] of a) {
    out.push({ name, a: row, b: b.get(name) ?? null });
    out.push(...extra.get(name) ?? []);
  }
  return out.map(p => ({ ...p, how: differs(p.a, p.b) }));
}
