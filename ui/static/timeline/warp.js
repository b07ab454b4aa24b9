// Idle time of a timeline is drawn short. Where nothing runs in any of the runs, for longer than all work together
// needs a good part of, the time between is a break of a fixed width. Outside of breaks all is to scale.
//
// Instants (t) are milliseconds. Distances (u) are milliseconds too, but for breaks.

/** shortest is how long nothing happens at least where there is a break, in milliseconds. */
const shortest = 3000;
/** most is how many breaks there are at most: the longest ones. */
const most = 40;

/** @typedef {{from: number, to: number, u: number, width: number}} Break */

const idle = new Set(['queued', 'suspended']);

/** busyOf are the times in which something happens, merged and in order. */
function busyOf(lanes) {
  const all = [];
  for (const l of lanes) {
    for (const p of l.phases) if (!idle.has(p.phase)) all.push([p.from, p.to]);
    for (const s of l.spans) if (s.kind !== 'wait') all.push([s.from, s.to]);
    for (const m of l.marks) all.push([m.at, m.at]);
    all.push([l.from, l.from]);
  }
  all.sort((a, b) => a[0] - b[0]);
  const out = [];
  for (const [from, to] of all) {
    const last = out[out.length - 1];
    if (last && from <= last[1]) last[1] = Math.max(last[1], to); else out.push([from, to]);
  }
  return out;
}

/** A Warp maps instants to distances and back. */
export class Warp {
  /** @param {number} from @param {Break[]} breaks */
  constructor(from, breaks) {
    this.from = from;
    this.breaks = breaks;
  }

  u(t) {
    let u = t - this.from;
    for (const b of this.breaks) {
      if (t <= b.from) break;
      if (t < b.to) return b.u + ((t - b.from) / (b.to - b.from)) * b.width;
      u -= b.to - b.from - b.width;
    }
    return u;
  }

  t(u) {
    let t = u + this.from;
    for (const b of this.breaks) {
      if (u <= b.u) break;
      if (u < b.u + b.width) return b.from + ((u - b.u) / b.width) * (b.to - b.from);
      t += b.to - b.from - b.width;
    }
    return t;
  }
}

/**
 * warpOf finds the breaks of lanes between two instants.
 * @param {import('./model.js').Lane[]} lanes
 */
export function warpOf(lanes, from, to, whole = false) {
  if (whole) return new Warp(from, []);
  const busy = busyOf(lanes), work = busy.reduce((sum, [a, b]) => sum + b - a, 0);
  const least = Math.max(shortest, work * 0.5, (to - from) * 0.02), pad = Math.max(work * 0.03, (to - from) * 0.0005);
  let gaps = [];
  for (let i = 0; i < busy.length; i++) {
    const end = busy[i + 1]?.[0] ?? to;
    if (end - busy[i][1] > least + 2 * pad) gaps.push({ from: busy[i][1] + pad, to: end - (busy[i + 1] ? pad : 0) });
  }
  gaps = gaps.sort((a, b) => b.to - b.from - a.to + a.from).slice(0, most).sort((a, b) => a.from - b.from);
  const saved = gaps.reduce((sum, g) => sum + g.to - g.from, 0);
  if (saved < (to - from) * 0.3) return new Warp(from, []);
  const width = Math.max((to - from - saved) * 0.04, 20);
  let before = 0;
  const breaks = gaps.map(g => {
    const b = { ...g, u: g.from - from - before, width };
    before += g.to - g.from - width;
    return b;
  });
  return new Warp(from, breaks);
}
