// Lines over time, drawn on a canvas. The legend has the newest values, and those below the pointer while there is one.
import { html, useState, useEffect, useRef, none, painted } from './lib.js';
import { count } from './format.js';
import { Card } from './parts.js';

/** Sizes in pixels: of the plot, and of the room for the labels of the axes. */
const height = 180, left = 46, bottom = 24, top = 8, right = 8;

/** incrs are the distances between two lines of an axis: whole numbers, so that labels are exact. */
const incrs = Array.from({ length: 12 }, (_, i) => [1, 2, 5].map(n => n * 10 ** i)).flat();
/** ticks are the distances between two times of an axis, in seconds. */
const ticks = [60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800];

/** clockOf writes a time of an axis: the time of day, or the day where the axis has several. */
const clockOf = (t, times) => new Date(t * 1000).toLocaleString('en-GB', times.at(-1) - times[0] > 172_800
  ? { day: '2-digit', month: 'short' } : { hour: '2-digit', minute: '2-digit' });

/** lineOf draws one line, with a gap where nothing is known. */
function lineOf(g, values, x, y, color, { dash, fill, points }) {
  g.strokeStyle = color;
  g.lineWidth = 1.75;
  g.setLineDash(dash ?? []);
  g.beginPath();
  let begun = -1;
  const area = to => {
    if (!fill || begun < 0) return;
    const under = new Path2D();
    under.moveTo(x(begun), y(0));
    for (let i = begun; i <= to; i++) under.lineTo(x(i), y(values[i]));
    under.lineTo(x(to), y(0));
    g.fillStyle = color + '1f';
    g.fill(under);
  };
  values.forEach((v, i) => {
    if (v === null || v === undefined) { area(i - 1); begun = -1; return; }
    if (begun < 0) { g.moveTo(x(i), y(v)); begun = i; } else g.lineTo(x(i), y(v));
  });
  area(values.length - 1);
  g.stroke();
  g.setLineDash([]);
  // A value between two gaps has no line.
  values.forEach((v, i) => {
    if (v === null || v === undefined || (!points && (values[i - 1] ?? values[i + 1] ?? null) !== null)) return;
    g.fillStyle = color;
    g.beginPath(); g.arc(x(i), y(v), 2, 0, 7); g.fill();
  });
}

/** drawPlot draws all lines, and the axes. at is the number of the time below the pointer, or negative. */
function drawPlot(c, { times, lines, format, at }) {
  const width = c.parentElement.clientWidth, ratio = devicePixelRatio || 1;
  c.width = Math.round(width * ratio);
  c.height = Math.round(height * ratio);
  const g = c.getContext('2d'), style = getComputedStyle(document.documentElement);
  const of = name => style.getPropertyValue('--' + name).trim();
  g.scale(ratio, ratio);
  const most = Math.max(0, ...lines.flatMap(l => l.values.filter(v => v !== null && v !== undefined)));
  const upper = Math.max(format === count ? 4 : 10, most * 1.1), span = Math.max(1, times.at(-1) - times[0]);
  const tx = t => left + ((t - times[0]) / span) * (width - left - right), x = i => tx(times[i]);
  const y = v => top + (1 - v / upper) * (height - top - bottom);
  g.font = `11px ${of('sans')}`;
  g.textBaseline = 'middle';
  g.textAlign = 'right';
  const by = incrs.find(n => upper / n <= 5) ?? incrs[incrs.length - 1];
  for (let v = 0; v <= upper; v += by) {
    g.fillStyle = of('line');
    g.fillRect(left, Math.round(y(v)), width - left - right, 1);
    g.fillStyle = of('ink-3');
    g.fillText(format(v), left - 6, y(v));
  }
  g.textAlign = 'center';
  const step = ticks.find(n => (n / span) * (width - left) >= 64) ?? ticks[ticks.length - 1];
  const zone = new Date(times[0] * 1000).getTimezoneOffset() * 60;
  for (let t = Math.ceil((times[0] - zone) / step) * step + zone; t <= times.at(-1); t += step) {
    g.fillStyle = of('line');
    g.fillRect(Math.round(tx(t)), top, 1, height - top - bottom);
    g.fillStyle = of('ink-3');
    if (tx(t) > left + 14 && tx(t) < width - 16) g.fillText(clockOf(t, times), tx(t), height - bottom / 2);
  }
  for (const l of lines) lineOf(g, l.values, x, y, of(l.color), l);
  if (at < 0) return;
  g.fillStyle = of('ink-3');
  g.fillRect(Math.round(x(at)), top, 1, height - top - bottom);
  for (const l of lines) {
    if (l.values[at] === null || l.values[at] === undefined) continue;
    g.fillStyle = of(l.color);
    g.beginPath(); g.arc(x(at), y(l.values[at]), 3, 0, 7); g.fill();
  }
}

/**
 * Plot is a card with lines over time.
 * @param {{title: string, times: number[], lines: {name: string, color: string, values: (number|null)[],
 *   dash?: number[],
 *   fill?: boolean, points?: boolean}[], format?: (v: number) => string}} p
 */
export function Plot({ title, times, lines, format = count }) {
  const canvas = useRef(none), [at, setAt] = useState(-1), [size, resized] = useState(0);
  useEffect(() => {
    const watcher = new ResizeObserver(() => resized(canvas.current?.parentElement.clientWidth ?? 0));
    watcher.observe(canvas.current.parentElement);
    return () => watcher.disconnect();
  }, []);
  useEffect(() => { if (times.length) drawPlot(canvas.current, { times, lines, format, at }); },
    [times, at, size, painted.value]);
  const over = e => {
    const part = (e.offsetX - left) / (e.currentTarget.clientWidth - left - right);
    setAt(Math.max(0, Math.min(times.length - 1, Math.round(part * (times.length - 1)))));
  };
  const i = at >= 0 && at < times.length ? at : times.length - 1;
  const value = l => (l.values[i] === null || l.values[i] === undefined ? '–' : format(l.values[i]));
  return html`<${Card}><div class="plot-head"><div class="row spread"><h2>${title}</h2>
      <span class="dim sub">${at >= 0 ? clockOf(times[i], times) : 'newest'}</span></div>
    <div class="lines">${lines.map(l => html`<span key=${l.name}><svg width="18" height="8" aria-hidden="true">
      <line x1="0" x2="18" y1="4" y2="4" stroke-width="2" class=${'stroke-' + l.color}
        stroke-dasharray=${l.dash?.join(' ')} /></svg>${l.name} <b>${value(l)}</b></span>`)}</div></div>
    <div class="plot" role="img" aria-label=${`${title}: ${lines.map(l =>
      `${l.name}, last ${format(l.values.at(-1) ?? 0)}`).join('; ')}`}><canvas ref=${canvas} class="plot-canvas"
        onPointerMove=${over} onPointerLeave=${() => setAt(-1)}></canvas></div><//>`;
}
