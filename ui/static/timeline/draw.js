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

/** scale maps instants to pixels. */
export const scale = (from, to, width) => t => ((t - from) / (to - from)) * width;

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
export function drawAxis(g, view, width, height, origin, colors, room = width) {
  const x = scale(view.from, view.to, width);
  const step = steps.find(s => (s / (view.to - view.from)) * width >= 90) ?? steps[steps.length - 1];
  g.font = `11px ${colors.sans}`;
  g.textBaseline = 'middle';
  g.lineWidth = 1;
  for (let t = origin + Math.ceil((view.from - origin) / step) * step; t <= view.to; t += step) {
    const px = Math.round(x(t)) + 0.5;
    g.strokeStyle = colors.line;
    g.beginPath(); g.moveTo(px, axisHeight - 6); g.lineTo(px, height); g.stroke();
    if (room < width && px > room - 30) continue;
    g.fillStyle = colors['ink-3'];
    const label = t === origin ? '0' : (t < origin ? '' : '+') + duration(t - origin);
    g.textAlign = px > width - 40 ? 'right' : px < 10 ? 'left' : 'center';
    g.fillText(label, Math.min(Math.max(px, 1), width - 1), 11);
  }
  g.textAlign = 'left';
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
function laterDeadline(lanes, view, main) {
  const lane = lanes.find(l => l.run.run_id === main), at = Date.parse(lane?.run.deadline_at);
  return lane?.live && at > view.to ? at : 0;
}

/**
 * draw draws all lanes.
 * @param {CanvasRenderingContext2D} g
 * @param {import('./model.js').Lane[]} lanes
 * @param {{from: number, to: number}} view
 */
export function draw(g, lanes, view, width, height, { main, now, colors, selected, hover }) {
  g.clearRect(0, 0, width, height);
  if (!lanes.length) return;
  const x = scale(view.from, view.to, width);
  const patterns = { dispatched: pattern(g, colors['bar-dispatched'], 'dispatched'),
    lost: pattern(g, colors['bar-lost'], 'lost') };
  const ahead = laterDeadline(lanes, view, main);
  drawAxis(g, view, width, height, lanes[0].from, colors, ahead ? width - 150 : width);
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
      if (p.to < view.from || p.from > view.to) continue;
      phaseBar(g, p, Math.max(-2, x(p.from)), Math.min(width + 2, x(p.to)), top, colors, patterns);
    }
    for (const gap of lane.gaps) {
      if (gap.to < view.from || gap.from > view.to) continue;
      const x1 = Math.max(0, x(gap.from)), x2 = Math.min(width, x(gap.to));
      g.strokeStyle = colors.timeout;
      g.setLineDash([2, 3]);
      g.lineWidth = 2;
      g.beginPath(); g.moveTo(x1, top + barHeight + 3); g.lineTo(x2, top + barHeight + 3); g.stroke();
      g.setLineDash([]);
    }
    if (big) drawSpans(g, lane, view, x, width, top + barHeight + 8, colors);
    // Marks: at most one of a kind in a pixel.
    const last = {};
    for (let i = lower(lane.marks, view.from, m => m.at); i < lane.marks.length && lane.marks[i].at <= view.to; i++) {
      const m = lane.marks[i], px = Math.round(x(m.at));
      if (last[m.kind] !== undefined && px - last[m.kind] < (m.kind === 'beat' ? 1 : 4)) continue;
      last[m.kind] = px;
      mark(g, m.kind, px, top, colors);
    }
    for (const one of [hover, selected]) {
      if (!one || one.run !== lane.run.run_id) continue;
      const px = x(Date.parse(one.event.at));
      g.strokeStyle = colors.accent;
      g.lineWidth = one === selected ? 2 : 1;
      g.beginPath(); g.moveTo(px, y + 1); g.lineTo(px, y + heightOf(lane, big) - 1); g.stroke();
    }
    const deadline = Date.parse(lane.run.deadline_at);
    if (lane.live && deadline >= view.from && deadline <= view.to) {
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
  if (now >= view.from && now <= view.to && lanes.some(l => l.live)) {
    const px = Math.round(x(now)) + 0.5;
    g.strokeStyle = colors.accent;
    g.beginPath(); g.moveTo(px, axisHeight - 6); g.lineTo(px, height); g.stroke();
  }
}

function drawSpans(g, lane, view, x, width, y, colors) {
  g.font = `11px ${colors.sans}`;
  g.textBaseline = 'middle';
  const ends = [];
  for (const s of lane.spans) {
    if (s.to < view.from || s.from > view.to) continue;
    const x1 = Math.max(-2, x(s.from)), x2 = Math.min(width + 2, x(s.to)), w = Math.max(2, x2 - x1);
    if (ends[s.row] !== undefined && x2 < ends[s.row] + 1) continue; // below a pixel
    ends[s.row] = x2;
    const top = y + s.row * (spanHeight + 3);
    g.fillStyle = colors[`${s.kind === 'wait' && s.state === 'completed' ? 'suspended' : s.state}-soft`] ?? colors.sunk;
    g.strokeStyle = colors[s.kind === 'wait' && s.state === 'completed' ? 'suspended' : s.state] ?? colors.queued;
    g.lineWidth = 1;
    if (s.kind === 'wait') g.setLineDash([3, 2]);
    g.beginPath(); g.roundRect(x1 + 0.5, top + 0.5, Math.max(1, w - 1), spanHeight - 1, Math.min(3, w / 2)); g.fill();
      g.stroke();
    g.setLineDash([]);
    if (w > 28) {
      g.fillStyle = colors.ink;
      g.fillText(fitted(g, s.name, w - 8), Math.max(4, x1 + 5), top + spanHeight / 2 + 0.5);
    }
  }
}

/**
 * hit finds what is at a point: a span, a mark or a phase. waits says why the main run waits that is now queued.
 * @returns {{run: string, event: any, text: string}|null}
 */
export function hit(lanes, view, width, main, px, py, waits = '') {
  const t = view.from + (px / width) * (view.to - view.from);
  const near = ((view.to - view.from) / width) * 6;
  let y = axisHeight;
  for (const lane of lanes) {
    const big = lane.run.run_id === main, h = heightOf(lane, big);
    if (py >= y && py < y + h) {
      const inSpans = big && py > y + laneHeight;
      if (inSpans) {
        const row = Math.floor((py - y - laneHeight - 2) / (spanHeight + 3));
        const s = lane.spans.find(one => one.row === row && t >= one.from - near && t <= one.to + near);
        if (s) return { run: lane.run.run_id, event: s.event,
          text: `${s.name} · ${s.kind === 'wait' ? 'wait' : 'tool'}, ${s.state} · ${duration(s.to - s.from)}` };
      }
      const from = lower(lane.marks, t - near, m => m.at);
      let best = null;
      for (let i = from; i < lane.marks.length && lane.marks[i].at <= t + near; i++) {
        const m = lane.marks[i];
        const better = !best || (best.kind === 'beat' && m.kind !== 'beat') ||
          (m.kind !== 'beat' && Math.abs(m.at - t) < Math.abs(best.at - t));
        if (better) best = m;
      }
      if (best) return { run: lane.run.run_id, event: best.event, text: best.event.type };
      const p = lane.phases.find(one => t >= one.from && t <= one.to);
      if (p) {
        const what = { queued: 'queued', dispatched: 'dispatched, not heard from yet', running: 'running',
          suspended: 'waiting', lost: 'lost lease: nobody was heard from' }[p.phase];
        const why = p.phase === 'queued' && waits && lane.run.run_id === main && p === lane.phases.at(-1)
          ? `: ${waits}` : '';
        return { run: lane.run.run_id, event: p.event,
          text: `${what}${why} · ${duration(p.to - p.from)} · attempt ${p.attempt}${p.worker
            ? ` · ${p.worker}` : ''}` };
      }
      return null;
    }
    y += h;
  }
  return null;
}
