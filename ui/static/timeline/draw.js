// Drawing a timeline on a canvas. Only what is in view is drawn, and no more than one mark of a kind
// in a pixel, so that a log of 10 000 lines costs about as much as one of 1 000.
//
// Phases differ in height and pattern as well as in colour: queued is a thin line, dispatched has
// stripes, running is the full height, waiting is dashed, and a lost lease is hatched.
import { duration } from '../format.js';
import { visible } from '../safe.js';

export const barHeight = 20, laneHeight = 34, spanHeight = 17, axisHeight = 26, spansTop = 4;

/** heightOf is the height of a lane. The main one shows its spans. */
export const heightOf = (lane, main) => laneHeight + (main && lane.rows ? lane.rows * (spanHeight + 3) + spansTop : 0);

/** palette reads the colours from the stylesheet. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const of = name => style.getPropertyValue('--' + name).trim();
  const names = ['paper', 'card', 'sunk', 'line', 'line-strong', 'ink', 'ink-2', 'ink-3', 'accent', 'queued',
    'dispatched', 'running',
    'suspended', 'deferred', 'completed', 'failed', 'timeout', 'cancelled', 'held', 'bar-queued', 'bar-dispatched',
      'bar-running',
    'bar-suspended', 'bar-lost', 'bar-ink', 'completed-soft', 'failed-soft', 'timeout-soft', 'running-soft',
    'suspended-soft',
      'cancelled-soft'];
  return { ...Object.fromEntries(names.map(n => [n, of(n)])), sans: of('sans') };
}

// steps of the axis, in milliseconds
const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5,
  72e5, 144e5, 432e5, 864e5, 6048e5];

/** A Scale maps instants to pixels, and back. The view is in distances: see warp.js. */
export class Scale {
  /** @param {import('./warp.js').Warp} warp @param {{from: number, to: number}} view @param {number} width */
  constructor(warp, view, width) {
    this.warp = warp;
    this.view = view;
    this.width = width;
    this.per = width / (view.to - view.from);
    this.from = this.t(0);
    this.to = this.t(width);
    this.x = this.x.bind(this);
  }

  x(t) { return (this.warp.u(t) - this.view.from) * this.per; }
  t(x) { return this.warp.t(this.view.from + x / this.per); }
}

function pattern(g, color, kind) {
  const c = new OffscreenCanvas(8, 8), p = /** @type {any} */ (c.getContext('2d'));
  p.strokeStyle = color;
  p.lineWidth = kind === 'lost' ? 1.6 : 3;
  p.beginPath();
  p.moveTo(-2, 10); p.lineTo(10, -2); p.moveTo(-2, 2); p.lineTo(2, -2); p.moveTo(6, 10); p.lineTo(10, 6);
  if (kind === 'lost') { p.moveTo(-2, -2); p.lineTo(10, 10); }
  p.stroke();
  return g.createPattern(c, 'repeat');
}

/** drawAxis draws the times on top, counted from the beginning. */
export function drawAxis(g, scale, height, origin, colors, room) {
  const { x, width, warp } = scale;
  const step = steps.find(s => s * scale.per >= 90) ?? steps[steps.length - 1];
  g.font = `11px ${colors.sans}`;
  g.textBaseline = 'middle';
  g.lineWidth = 1;
  let last = -Infinity;
  for (let t = origin + Math.ceil((scale.from - origin) / step) * step; t <= scale.to;) {
    const gap = warp.breaks.find(b => t > b.from && t < b.to);
    if (gap) { t = origin + Math.ceil((gap.to - origin) / step) * step; continue; }
    const px = Math.round(x(t)) + 0.5;
    g.strokeStyle = colors.line;
    g.beginPath(); g.moveTo(px, axisHeight - 6); g.lineTo(px, height); g.stroke();
    const label = t === origin ? '0' : (t < origin ? '' : '+') + duration(t - origin);
    if (px - last > 64 && (room >= width || px <= room - 30)) {
      g.fillStyle = colors['ink-3'];
      g.textAlign = px > width - 40 ? 'right' : px < 10 ? 'left' : 'center';
      g.fillText(label, Math.min(Math.max(px, 1), width - 1), 11);
      last = px;
    }
    t += step;
  }
  g.textAlign = 'left';
}

/** drawBreaks draws where idle time was left out: a torn band, with how long it was. */
function drawBreaks(g, scale, height, colors, room) {
  for (const b of scale.warp.breaks) {
    const x1 = scale.x(b.from), x2 = scale.x(b.to);
    if (x2 < 0 || x1 > scale.width) continue;
    g.fillStyle = colors.card;
    g.fillRect(x1, axisHeight - 6, x2 - x1, height);
    g.fillStyle = colors.sunk;
    g.globalAlpha = 0.8;
    g.fillRect(x1, axisHeight - 6, x2 - x1, height);
    g.globalAlpha = 1;
    g.strokeStyle = colors['line-strong'];
    g.lineWidth = 1;
    for (const px of [x1, x2]) {
      g.beginPath();
      for (let y = axisHeight - 6, i = 0; y < height; y += 5, i++) g.lineTo(px + (i % 2 ? 2.5 : -2.5), y);
      g.stroke();
    }
    const label = duration(b.to - b.from), mid = (x1 + x2) / 2;
    g.font = `11px ${colors.sans}`;
    if (g.measureText(label).width > x2 - x1 + 24) continue;
    const half = g.measureText(label).width / 2 + 4;
    if (mid + half > room) continue; // the deadline stands there
    g.fillStyle = colors.card;
    g.fillRect(mid - half, 3, 2 * half, 16);
    g.fillStyle = colors['ink-2'];
    g.textAlign = 'center';
    g.textBaseline = 'middle';
    g.fillText(label, mid, 11);
    g.textAlign = 'left';
  }
}

function phaseBar(g, p, x1, x2, y, colors, patterns) {
  const w = Math.max(1, x2 - x1);
  switch (p.phase) {
    case 'queued': g.fillStyle = colors['bar-queued']; g.fillRect(x1, y + barHeight / 2 - 2.5, w, 5); break;
    case 'suspended':
      g.fillStyle = colors['bar-suspended'];
      for (let dx = 0; dx < w; dx += 7) g.fillRect(x1 + dx, y + barHeight / 2 - 4, Math.min(5, w - dx), 8);
      break;
    case 'dispatched':
      g.fillStyle = patterns.dispatched; g.fillRect(x1, y + 3, w, barHeight - 6);
      g.strokeStyle = colors['bar-dispatched']; g.strokeRect(x1 + 0.5, y + 3.5, Math.max(0, w - 1), barHeight - 7);
      break;
    case 'lost':
      g.fillStyle = colors['failed-soft']; g.fillRect(x1, y, w, barHeight);
      g.fillStyle = patterns.lost; g.fillRect(x1, y, w, barHeight);
      g.strokeStyle = colors['bar-lost']; g.strokeRect(x1 + 0.5, y + 0.5, Math.max(0, w - 1), barHeight - 1);
      break;
    default:
      g.fillStyle = colors['bar-running'];
      g.beginPath(); g.roundRect(x1, y, w, barHeight, Math.min(4, w / 2)); g.fill();
      // The name of the worker, where there is room beside the marks at both ends.
      if (w > 60 && p.worker) {
        g.fillStyle = colors['bar-ink'];
        g.fillText(fitted(g, p.worker, w - 24), Math.max(8, x1 + 10), y + barHeight / 2 + 0.5);
      }
  }
}

/** fitted is as much of a text as has room, with an ellipsis; nothing, if that is less than three letters. */
function fitted(g, text, room) {
  text = visible(text).slice(0, 80);
  const width = g.measureText(text).width;
  if (width <= room) return text;
  const n = Math.floor((text.length * (room - 8)) / width);
  return n < 3 ? '' : text.slice(0, n) + '…';
}

// Marks: a shape and a colour for each kind.
function mark(g, kind, x, y, colors) {
  const mid = y + barHeight / 2;
  g.lineWidth = 1.5;
  const dot = (color, draw) => { g.fillStyle = color; g.strokeStyle = color; g.beginPath(); draw(); };
  switch (kind) {
    case 'beat': g.fillStyle = colors.ink; g.globalAlpha = 0.38; g.fillRect(x, y + barHeight + 1, 1, 4);
      g.globalAlpha = 1; return;
    case 'deferred': dot(colors.deferred, () =>
      { g.arc(x, mid, 5, 0.6, 5.2); g.quadraticCurveTo(x - 1, mid, x + 4.1, mid + 2.8); }); break;
    case 'attached': dot(colors.deferred, () =>
      { g.moveTo(x - 5, mid); g.lineTo(x + 3, mid - 5); g.lineTo(x + 3, mid + 5); g.closePath(); }); break;
    case 'retry': case 'reclaimed': case 'held': dot(colors.failed, () =>
      { g.moveTo(x, mid - 6); g.lineTo(x + 6, mid + 5); g.lineTo(x - 6, mid + 5); g.closePath(); }); break;
    case 'slow': dot(colors.timeout, () => { g.rect(x - 1.5, y - 3, 3, 3 + barHeight); }); break;
    case 'cancel': case 'cancelled': dot(colors.cancelled, () => { g.rect(x - 4, mid - 4, 8, 8); }); break;
    case 'completed': dot(colors.completed, () => { g.arc(x, mid, 5, 0, 7); }); break;
    case 'failed': case 'timeout': dot(colors[kind], () =>
      { g.moveTo(x - 4, mid - 4); g.lineTo(x + 4, mid + 4); g.moveTo(x + 4, mid - 4); g.lineTo(x - 4, mid + 4); });
        g.lineWidth = 2.5; g.stroke(); return;
    case 'child': dot(colors.dispatched, () =>
      { g.moveTo(x, y - 2); g.lineTo(x + 4, y + 3); g.lineTo(x, y + 8); g.lineTo(x - 4, y + 3); g.closePath(); });
        break;
    case 'signal': case 'message': case 'late': dot(colors.suspended, () =>
      { g.moveTo(x - 5, y - 1); g.lineTo(x + 5, y - 1); g.lineTo(x, y + 6); g.closePath(); }); break;
  }
  g.fill();
  g.strokeStyle = colors.card;
  g.lineWidth = 1;
  g.stroke();
}

/** first index of a sorted list whose value is not below. */
export function lower(list, value, at) {
  let a = 0, b = list.length;
  while (a < b) {
    const m = (a + b) >> 1;
    if (at(list[m]) < value) a = m + 1; else b = m;
  }
  return a;
}

/** laterDeadline is the deadline of the main run, if it is live and that lies behind the right edge; else zero. */
function laterDeadline(lanes, scale, main) {
  const lane = lanes.find(l => l.run.run_id === main), at = Date.parse(lane?.run.deadline_at);
  return lane?.live && at > scale.to ? at : 0;
}

/**
 * draw draws all lanes.
 * @param {CanvasRenderingContext2D} g
 * @param {import('./model.js').Lane[]} lanes
 * @param {Scale} scale
 */
export function draw(g, lanes, scale, height, { main, now, colors, selected, hover }) {
  const { x, width } = scale;
  g.clearRect(0, 0, width, height);
  if (!lanes.length) return;
  const patterns = { dispatched: pattern(g, colors['bar-dispatched'], 'dispatched'),
    lost: pattern(g, colors['bar-lost'], 'lost') };
  const ahead = laterDeadline(lanes, scale, main);
  drawAxis(g, scale, height, lanes[0].from, colors, ahead ? width - 150 : width);
  if (ahead) {
    g.fillStyle = colors.timeout;
    g.textAlign = 'right';
    g.fillText(`deadline in ${duration(ahead - now)} ▸`, width - 4, 11);
    g.textAlign = 'left';
  }
  let y = axisHeight;
  for (const lane of lanes) {
    const big = lane.run.run_id === main, top = y + 6;
    if (big) { g.fillStyle = colors.sunk; g.globalAlpha = 0.5; g.fillRect(0, y, width, heightOf(lane, true));
      g.globalAlpha = 1; }
    for (const p of lane.phases) {
      if (p.to < scale.from || p.from > scale.to) continue;
      phaseBar(g, p, Math.max(-2, x(p.from)), Math.min(width + 2, x(p.to)), top, colors, patterns);
    }
    for (const gap of lane.gaps) {
      if (gap.to < scale.from || gap.from > scale.to) continue;
      const x1 = Math.max(0, x(gap.from)), x2 = Math.min(width, x(gap.to));
      g.strokeStyle = colors.timeout;
      g.setLineDash([2, 3]);
      g.lineWidth = 2;
      g.beginPath(); g.moveTo(x1, top + barHeight + 3); g.lineTo(x2, top + barHeight + 3); g.stroke();
      g.setLineDash([]);
    }
    if (big) drawSpans(g, lane, scale, top + barHeight + 8, colors, selected?.run === main ? selected.row?.id : '');
    // Marks: at most one of a kind in a pixel.
    const last = {};
    for (let i = lower(lane.marks, scale.from, m => m.at); i < lane.marks.length && lane.marks[i].at <= scale.to; i++) {
      const m = lane.marks[i], px = Math.round(x(m.at));
      if (last[m.kind] !== undefined && px - last[m.kind] < (m.kind === 'beat' ? 1 : 4)) continue;
      last[m.kind] = px;
      mark(g, m.kind, px, top, colors);
    }
    for (const one of [hover, selected]) {
      if (!one || one.run !== lane.run.run_id) continue;
      const px = x(one.at);
      g.strokeStyle = colors.accent;
      g.lineWidth = one === selected ? 2 : 1;
      g.beginPath(); g.moveTo(px, y + 1); g.lineTo(px, y + heightOf(lane, big) - 1); g.stroke();
    }
    const deadline = Date.parse(lane.run.deadline_at);
    if (lane.live && deadline >= scale.from && deadline <= scale.to) {
      const px = Math.round(x(deadline)) + 0.5;
      g.strokeStyle = colors.timeout;
      g.setLineDash([4, 3]); g.lineWidth = 1.5;
      g.beginPath(); g.moveTo(px, y + 2); g.lineTo(px, y + laneHeight - 2); g.stroke();
      g.setLineDash([]);
      g.fillStyle = colors.timeout;
      g.font = `11px ${colors.sans}`;
      g.textAlign = px > width - 70 ? 'right' : 'left';
      g.fillText('deadline', px + (px > width - 70 ? -5 : 5), y + laneHeight / 2);
      g.textAlign = 'left';
    }
    y += heightOf(lane, big);
    g.strokeStyle = colors.line;
    g.lineWidth = 1;
    g.beginPath(); g.moveTo(0, y - 0.5); g.lineTo(width, y - 0.5); g.stroke();
  }
  drawBreaks(g, scale, height, colors, ahead ? width - 150 : width);
  if (now >= scale.from && now <= scale.to && lanes.some(l => l.live)) {
    const px = Math.round(x(now)) + 0.5;
    g.strokeStyle = colors.accent;
    g.beginPath(); g.moveTo(px, axisHeight - 6); g.lineTo(px, height); g.stroke();
  }
}

function drawSpans(g, lane, scale, y, colors, chosen) {
  const { x, width } = scale;
  g.font = `11px ${colors.sans}`;
  g.textBaseline = 'middle';
  const ends = [];
  for (const s of lane.spans) {
    if (s.to < scale.from || s.from > scale.to) continue;
    const x1 = Math.max(-2, x(s.from)), x2 = Math.min(width + 2, x(s.to)), w = Math.max(2, x2 - x1);
    if (ends[s.row] !== undefined && x2 < ends[s.row] + 1) continue; // below a pixel
    ends[s.row] = x2;
    const top = y + s.row * (spanHeight + 3);
    g.fillStyle = colors[`${s.kind === 'wait' && s.state === 'completed' ? 'suspended' : s.state}-soft`] ?? colors.sunk;
    g.strokeStyle = colors[s.kind === 'wait' && s.state === 'completed' ? 'suspended' : s.state] ?? colors.queued;
    g.lineWidth = 1;
    if (s.kind === 'wait') g.setLineDash([3, 2]);
    if (s.id === chosen) { g.lineWidth = 2; g.strokeStyle = colors.accent; }
    g.beginPath(); g.roundRect(x1 + 0.5, top + 0.5, Math.max(1, w - 1), spanHeight - 1, Math.min(3, w / 2)); g.fill();
      g.stroke();
    g.setLineDash([]);
    if (w > 28) {
      g.fillStyle = colors.ink;
      g.fillText(fitted(g, s.name, w - 8), Math.max(4, x1 + 5), top + spanHeight / 2 + 0.5);
    }
  }
}

/** reach is how far from a mark or a narrow span a point may be, in pixels. */
const reach = 6;

const words = { queued: 'queued', dispatched: 'dispatched, not heard from yet', running: 'running',
  suspended: 'waiting',
  lost: 'lost lease: nobody was heard from' };

/**
 * hit finds what is at a point: a span, a mark or a phase. waits says why the main run waits that is now queued.
 * @param {Scale} scale
 * @returns {{run: string, id: string, at: number, text: string, lane: any}|null}
 */
export function hit(lanes, scale, main, px, py, waits = '') {
  const t = scale.t(px), from = scale.t(px - reach), to = scale.t(px + reach);
  let y = axisHeight;
  for (const lane of lanes) {
    const run = lane.run.run_id, big = run === main, h = heightOf(lane, big);
    if (py >= y && py < y + h) {
      if (lane.n) return { run, id: '', at: lane.from, lane, text: `${lane.n} × ${lane.run.kind}` };
      if (big && py > y + laneHeight) {
        const row = Math.floor((py - y - laneHeight - 2) / (spanHeight + 3));
        const s = lane.spans.find(one => one.row === row && to >= one.from && from <= one.to);
        if (s) return { run, id: s.id, at: s.from, lane,
          text: `${s.name} · ${s.kind}, ${s.state} · ${s.upTo ? 'at most ' : ''}${duration(s.to - s.from)}` };
      }
      let best = null;
      for (let i = lower(lane.marks, from, m => m.at); i < lane.marks.length && lane.marks[i].at <= to; i++) {
        const m = lane.marks[i];
        const better = !best || (best.kind === 'beat' && m.kind !== 'beat') ||
          (m.kind !== 'beat' && Math.abs(m.at - t) < Math.abs(best.at - t));
        if (better) best = m;
      }
      if (best) return { run, id: 'line:' + best.event.seq, at: best.at, text: best.event.type, lane };
      const p = lane.phases.find(one => t >= one.from && t <= one.to);
      if (!p) return null;
      const why = p.phase === 'queued' && waits && big && p === lane.phases.at(-1) ? `: ${waits}` : '';
      return { run, id: 'line:' + p.event.seq, at: Date.parse(p.event.at), lane, text: `${words[p.phase]}${why} · ${
        duration(p.to - p.from)} · attempt ${p.attempt}${p.worker ? ` · ${p.worker}` : ''}` };
    }
    y += h;
  }
  return null;
}

/** drawMap draws all lanes small, and the part of them that is in view. */
export function drawMap(g, lanes, scale, height, colors, view) {
  g.clearRect(0, 0, scale.width, height);
  const each = Math.max(1, Math.min(6, (height - 4) / lanes.length));
  lanes.forEach((lane, i) => {
    const y = 2 + i * each;
    if (y > height - 2) return;
    for (const p of lane.phases) {
      g.fillStyle = colors['bar-' + p.phase];
      const x1 = scale.x(p.from), thin = p.phase === 'queued' || p.phase === 'suspended';
      g.fillRect(x1, y + (thin ? each * 0.35 : 0), Math.max(1, scale.x(p.to) - x1), thin ? each * 0.3 : each * 0.8);
    }
  });
  const x1 = (view.from - scale.view.from) * scale.per, x2 = (view.to - scale.view.from) * scale.per;
  g.fillStyle = colors.ink;
  g.globalAlpha = 0.12;
  g.fillRect(0, 0, x1, height);
  g.fillRect(x2, 0, scale.width - x2, height);
  g.globalAlpha = 1;
  g.strokeStyle = colors.accent;
  g.lineWidth = 1.5;
  g.strokeRect(x1 + 1, 1, Math.max(4, x2 - x1 - 2), height - 2);
}
