// The timeline of a tree of runs: a canvas that can be zoomed and moved, with labels beside it.
import { html, useEffect, useRef, useState, useMemo, cls, none } from '../lib.js';
import { duration, short, stateNames } from '../format.js';
import { href } from '../router.js';
import { Shape, statusOf } from '../parts.js';
import { visible } from '../safe.js';
import { lanes as lanesOf } from './model.js';
import { draw, hit, heightOf, palette, axisHeight } from './draw.js';

const legend = [['queued', 'queued'], ['dispatched', 'dispatched'], ['running', 'running'], ['suspended', 'waiting'],
  ['lost', 'lost lease']];

/**
 * Timeline draws the tree below root.
 * @param {{tree: Map<string, any>, version: number, root: string, main: string, selected: any,
 *   select: (s: any) => void, waits?: string}} p waits says why the run waits that is now queued
 */
export function Timeline({ tree, version, root, main, selected, select, waits }) {
  const box = useRef(none), canvas = useRef(none), state = useRef(/** @type {any} */ ({}));
  const [width, setWidth] = useState(0), [view, setView] = useState(/** @type {any} */ (null)),
    [tip, setTip] = useState(/** @type {any} */ (null));
  const [tick, setTick] = useState(0);
  const live = [...tree.values()].some(e => !e.run.finished_at);
  const at = useMemo(() => Date.now(), [version, root, Math.floor(tick / 4)]);
  const lanes = useMemo(() => lanesOf(tree, root, at), [at]);
  const whole = useMemo(() => {
    const from = Math.min(...lanes.map(l => l.from)), to = Math.max(...lanes.map(l => l.to), from + 4);
    const deadline = Date.parse(lanes[0]?.run.deadline_at ?? '');
    const pad = (to - from) * 0.04;
    // A deadline that is near is shown ahead.
    const end = live && deadline - to < (to - from) * 1.5 && deadline > to ? deadline : to;
    return { from: from - pad / 2, to: end + pad };
  }, [lanes]);
  const shown = view ?? whole;
  const height = axisHeight + lanes.reduce((sum, l) => sum + heightOf(l, l.run.run_id === main), 0);
  state.current = { lanes, shown, whole, width, height };

  useEffect(() => {
    const o = new ResizeObserver(() => setWidth(canvas.current?.parentElement.clientWidth ?? 0));
    o.observe(canvas.current.parentElement);
    return () => o.disconnect();
  }, []);
  useEffect(() => {
    if (!live) return undefined;
    const timer = setInterval(() => { if (!document.hidden) setTick(n => n + 1); }, 250);
    return () => clearInterval(timer);
  }, [live]);
  useEffect(() => {
    if (!width) return;
    const c = canvas.current, ratio = devicePixelRatio || 1;
    if (c.width !== Math.round(width * ratio) || c.height !== Math.round(height * ratio)) {
      c.width = Math.round(width * ratio);
      c.height = Math.round(height * ratio);
      c.style.width = width + 'px';
      c.style.height = height + 'px';
    }
    const g = c.getContext('2d');
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw(g, lanes, shown, width, height, { main, now: at, colors: palette(), selected, hover: tip });
  });

  const zoom = (factor, at = 0.5) => {
    const { shown: s, whole: w } = state.current;
    const span = Math.max(2, Math.min((s.to - s.from) * factor, (w.to - w.from) * 1.2));
    const mid = s.from + (s.to - s.from) * at;
    const next = { from: mid - span * at, to: mid + span * (1 - at) };
    setView(span >= w.to - w.from ? null : next);
  };
  const move = part => {
    const { shown: s, whole: w } = state.current;
    const span = s.to - s.from;
    const from = Math.max(w.from - span * 0.5, Math.min(s.from + span * part, w.to - span * 0.5));
    setView({ from, to: from + span });
  };
  useEffect(() => {
    const c = canvas.current;
    const wheel = e => {
      if (e.ctrlKey || e.metaKey) { e.preventDefault();
        zoom(Math.exp(e.deltaY * 0.0025), e.offsetX / state.current.width); }
      else if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) { e.preventDefault();
        move((e.deltaX || e.deltaY) / state.current.width); }
    };
    c.addEventListener('wheel', wheel, { passive: false });
    return () => c.removeEventListener('wheel', wheel);
  }, []);
  const drag = useRef(none);
  const under = e => hit(lanes, shown, width, main, e.offsetX, e.offsetY, waits);
  const down = e => { drag.current = { x: e.clientX, view: shown, moved: false };
    e.currentTarget.setPointerCapture(e.pointerId); };
  const over = e => {
    const d = drag.current;
    if (d) {
      if (Math.abs(e.clientX - d.x) > 3) d.moved = true;
      if (d.moved) {
        const by = ((d.x - e.clientX) / width) * (d.view.to - d.view.from);
        setView({ from: d.view.from + by, to: d.view.to + by });
      }
      return;
    }
    const h = under(e);
    setTip(h && { ...h, x: e.offsetX, y: e.offsetY });
  };
  const up = e => {
    const d = drag.current;
    drag.current = null;
    if (d && !d.moved) { const h = under(e); select(h && { run: h.run, event: h.event }); }
  };
  const step = by => {
    const l = lanes.find(one => one.run.run_id === (selected?.run ?? main)) ?? lanes[0];
    const events = tree.get(l.run.run_id)?.events ?? [];
    const i = selected ? events.findIndex(e => e.seq === selected.event.seq) + by : by > 0 ? 0 : events.length - 1;
    if (events[i]) select({ run: l.run.run_id, event: events[i] });
  };
  const keys = e => {
    const done = { '+': () => zoom(0.6), '=': () => zoom(0.6), '-': () => zoom(1.6), '0': () => setView(null),
      ArrowLeft: () => move(-0.15),
      ArrowRight: () => move(0.15), ArrowDown: () => step(1), ArrowUp: () => step(-1) }[e.key];
    if (done) { e.preventDefault(); e.stopPropagation(); done(); }
  };
  const run = tree.get(main)?.run;
  const text = run && `Timeline of ${run.kind}: ${lanes.length} run${lanes.length === 1 ? ''
      : 's'}, ${tree.get(main).events.length} events, ${stateNames[run.state] ?? run.state}. `
    + 'Up and down go through the events, plus and minus zoom. The log below has the same as a table.';
  return html`<div class="timeline">
    <div class="timeline-tools"><div class="legend" aria-hidden="true">
        ${legend.map(([k, name]) => html`<span key=${k}><i class=${'swatch is-' + k}></i>${name}</span>`)}
      <span><i class="swatch is-beat"></i>sign of life</span><span><i class="swatch is-gap"></i>silence</span></div>
      <div class="actions"><button type="button" aria-label="Zoom in" onClick=${() => zoom(0.6)}>+</button>
        <button type="button" aria-label="Zoom out" onClick=${() => zoom(1.6)}>−</button>
      <button type="button" disabled=${!view} onClick=${() => setView(null)}>All</button></div></div>
    <div class="timeline-body" ref=${box}>
      <div class="timeline-labels"><div class="timeline-axis">${duration(shown.to - shown.from)} shown</div>
        ${lanes.map(l => html`<div key=${l.run.run_id}
            class=${cls('timeline-label', 'depth-' + Math.min(l.depth, 4), `h-${l.run.run_id === main ? l.rows : 0}`)}>
          <a href=${href('/runs/' + l.run.run_id)} aria-current=${l.run.run_id === main ? 'true' : undefined}
            title=${`${l.run.kind} ${l.run.run_id}`}>
            <span class=${'text-' + statusOf(l.run)}><${Shape} state=${statusOf(l.run)} /></span>
            <span class="name">${visible(l.run.kind).slice(0, 60)}</span>
            <span class="id">${short(l.run.run_id).slice(-4)}</span></a></div>`)}</div>
      <div class="timeline-canvas"><canvas ref=${canvas} tabindex="0" role="img" aria-label=${text}
          onPointerDown=${down} onPointerMove=${over} onPointerUp=${up}
          onPointerLeave=${() => setTip(null)} onDblClick=${e => zoom(0.5, e.offsetX / width)}
            onKeyDown=${keys}></canvas>
        ${tip && html`<div class="tip" style=${{ left: Math.min(tip.x + 12, Math.max(0, width - 260)) + 'px',
            top: tip.y + 16 + 'px' }}>${visible(tip.text).slice(0, 200)}<br />
              <span class="dim">+${duration(Date.parse(tip.event.at) - lanes[0].from)}</span></div>`}</div>
    </div></div>`;
}
