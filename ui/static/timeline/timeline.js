// The timeline of a tree of runs: a canvas that can be zoomed and moved, with labels beside it.
import { html, useEffect, useRef, useState, useMemo, cls, none, painted } from '../lib.js';
import { duration, short, stateNames, count } from '../format.js';
import { Shape, statusOf } from '../parts.js';
import { visible } from '../safe.js';
import { href, change } from '../router.js';
import { lanes as lanesOf, withSpans } from './model.js';
import { draw, drawMap, hit, heightOf, palette, axisHeight, Scale } from './draw.js';
import { warpOf } from './warp.js';

const legend = [['queued', 'queued'], ['dispatched', 'dispatched'], ['running', 'running'], ['suspended', 'waiting'],
  ['lost', 'lost lease']];

/** firstLanes is how many runs are drawn at first, and maxLanes the most: a canvas has a greatest height. */
const firstLanes = 60, maxLanes = 240;
/** mapHeight is the height of the map of all that is above a part, in pixels. */
const mapHeight = 26;

/** zoomIn is the part of the time that an address shows: milliseconds since the first run was created. */
const zoomIn = (text, origin) => {
  const m = /^(-?\d+)\.\.(\d+)$/.exec(text ?? '');
  return m && Number(m[2]) > Number(m[1]) ? { from: origin + Number(m[1]), to: origin + Number(m[2]) } : null;
};

/**
 * Timeline draws the tree below root.
 * @param {{tree: Map<string, any>, version: number, root: string, main: string, rows: any[], selected: any,
 *   select: (s: any) => void, waits?: string, query: URLSearchParams}} p
 * rows are those of the main run; waits says why it waits that is now queued
 */
export function Timeline({ tree, version, root, main, rows, selected, select, waits, query }) {
  const box = useRef(none), canvas = useRef(none), map = useRef(none), state = useRef(/** @type {any} */ ({}));
  const [width, setWidth] = useState(0), [tip, setTip] = useState(/** @type {any} */ (null));
  const [tick, setTick] = useState(0), [open, setOpen] = useState(/** @type {Set<string>} */ (new Set()));
  const live = [...tree.values()].some(e => !e.run.finished_at);
  const at = useMemo(() => Date.now(), [version, root, Math.floor(tick / 4)]);
  const [most, setMost] = useState(firstLanes);
  const lanes = useMemo(() => lanesOf(tree, root, at, most, main, open).map(l =>
    (l.run.run_id === main ? withSpans(l, rows) : l)), [at, most, open, rows]);
  const origin = lanes[0]?.from ?? 0;
  // The part that is shown is kept in the address. null is all of it.
  const zoomed = query.get('zoom') ?? '';
  const [view, show] = useState(/** @type {any} */ (null)), wrote = useRef('');
  useEffect(() => { if (zoomed !== wrote.current && origin) { wrote.current = zoomed; show(zoomIn(zoomed, origin)); } },
    [zoomed, origin]);
  const setView = v => {
    show(v);
    clearTimeout(state.current.later);
    state.current.later = setTimeout(() => {
      wrote.current = v ? `${Math.round(v.from - origin)}..${Math.round(v.to - origin)}` : '';
      change({ zoom: wrote.current });
    }, 300);
  };
  useEffect(() => () => clearTimeout(state.current.later), []);
  const all = useMemo(() => {
    const from = Math.min(...lanes.map(l => l.from)), to = Math.max(...lanes.map(l => l.to), from + 4);
    const deadline = Date.parse(lanes[0]?.run.deadline_at ?? '');
    // A deadline that is near is shown ahead.
    return { from, to, end: live && deadline - to < (to - from) * 1.5 && deadline > to ? deadline : to };
  }, [lanes]);
  const idle = query.get('idle') === 'shown';
  const warp = useMemo(() => warpOf(lanes, all.from, all.end, idle), [lanes, idle]);
  const long = warp.u(all.end), whole = { from: -long * 0.02, to: long * 1.02 };
  const shown = view ? { from: warp.u(view.from), to: Math.max(warp.u(view.to), warp.u(view.from) + 2) } : whole;
  const scale = new Scale(warp, shown, width || 1), theme = painted.value;
  const colors = useMemo(palette, [theme]);
  const height = axisHeight + lanes.reduce((sum, l) => sum + heightOf(l, l.run.run_id === main), 0);
  Object.assign(state.current, { shown, whole, width, warp });

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
    const c = canvas.current, ratio = Math.min(devicePixelRatio || 1, 16_000 / height);
    if (c.width !== Math.round(width * ratio) || c.height !== Math.round(height * ratio)) {
      c.width = Math.round(width * ratio);
      c.height = Math.round(height * ratio);
      c.style.width = width + 'px';
      c.style.height = height + 'px';
    }
    if (map.current && map.current.width !== c.width) {
      map.current.width = c.width;
      map.current.height = Math.round(mapHeight * ratio);
    }
    const g = c.getContext('2d');
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw(g, lanes, scale, height, { main, now: at, colors, selected, hover: tip });
    if (!map.current) return;
    const m = map.current.getContext('2d');
    m.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawMap(m, lanes, new Scale(warp, whole, width), mapHeight, colors, shown);
  });

  // look shows a part, given in distances.
  const look = (from, to) => setView({ from: state.current.warp.t(from), to: state.current.warp.t(to) });
  const zoom = (factor, at = 0.5) => {
    const { shown: s, whole: w } = state.current;
    const span = Math.max(2, Math.min((s.to - s.from) * factor, (w.to - w.from) * 1.2));
    const mid = s.from + (s.to - s.from) * at;
    if (span >= w.to - w.from) setView(null); else look(mid - span * at, mid + span * (1 - at));
  };
  const move = part => {
    const { shown: s, whole: w } = state.current;
    const span = s.to - s.from;
    const from = Math.max(w.from - span * 0.5, Math.min(s.from + span * part, w.to - span * 0.5));
    look(from, from + span);
  };
  // fit shows the life of one run, or all again.
  const fit = lane => {
    const from = warp.u(lane.from), to = warp.u(lane.to), pad = Math.max((to - from) * 0.04, 1);
    if (view && Math.abs(shown.from - from + pad) < 1 && Math.abs(shown.to - to - pad) < 1) setView(null);
    else look(from - pad, to + pad);
  };
  const toggle = key => setOpen(o => { const s = new Set(o); s.has(key) ? s.delete(key) : s.add(key); return s; });
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
  const under = e => hit(lanes, scale, main, e.offsetX, e.offsetY, waits);
  const down = e => { drag.current = { x: e.clientX, view: shown, moved: false };
    e.currentTarget.setPointerCapture(e.pointerId); };
  const over = e => {
    const d = drag.current;
    if (d) {
      if (Math.abs(e.clientX - d.x) > 3) d.moved = true;
      if (d.moved) {
        const by = ((d.x - e.clientX) / width) * (d.view.to - d.view.from);
        look(d.view.from + by, d.view.to + by);
      }
      return;
    }
    const h = under(e);
    setTip(h && { ...h, x: e.offsetX, y: e.offsetY });
  };
  const up = e => {
    const d = drag.current;
    drag.current = null;
    if (!d || d.moved) return;
    const h = under(e);
    if (h?.lane.n) toggle(h.lane.key); else select(h && { run: h.run, id: h.id });
  };
  const step = by => {
    const l = lanes.find(one => one.run.run_id === (selected?.run ?? main)) ?? lanes[0];
    const events = tree.get(l.run.run_id)?.events ?? [];
    const seq = selected?.event?.seq;
    const i = seq ? events.findIndex(e => e.seq === seq) + by : by > 0 ? 0 : events.length - 1;
    if (events[i]) select({ run: l.run.run_id, id: 'line:' + events[i].seq });
  };
  // The map is dragged to where one wants to look.
  const onMap = e => {
    if (e.type === 'pointerdown') e.currentTarget.setPointerCapture(e.pointerId);
    else if (!e.buttons) return;
    const { shown: s, whole: w } = state.current, mid = w.from + (e.offsetX / width) * (w.to - w.from);
    look(mid - (s.to - s.from) / 2, mid + (s.to - s.from) / 2);
  };
  const keys = e => {
    const done = { '+': () => zoom(0.6), '=': () => zoom(0.6), '-': () => zoom(1.6), '0': () => setView(null),
      ArrowLeft: () => move(-0.15),
      ArrowRight: () => move(0.15), ArrowDown: () => step(1), ArrowUp: () => step(-1) }[e.key];
    if (done) { e.preventDefault(); e.stopPropagation(); done(); }
  };
  const run = tree.get(main)?.run, drawn = lanes.reduce((sum, l) => sum + (l.n ?? 1), 0);
  const text = run && `Timeline of ${run.kind}: ${drawn} run${drawn === 1 ? ''
      : 's'}, ${tree.get(main).events.length} events, ${stateNames[run.state] ?? run.state}. `
    + 'Up and down go through the events, plus and minus zoom. The log below has the same as a table.';
  return html`<div class="timeline">
    <div class="timeline-tools"><div class="legend" aria-hidden="true">
        ${legend.map(([k, name]) => html`<span key=${k}><i class=${'swatch is-' + k}></i>${name}</span>`)}
      <span><i class="swatch is-beat"></i>sign of life</span><span><i class="swatch is-gap"></i>silence</span></div>
      <div class="actions">${(warp.breaks.length > 0 || idle) && html`<button type="button" aria-pressed=${idle}
          onClick=${() => change({ idle: idle ? '' : 'shown' })}>Idle time</button>`}
        <button type="button" aria-label="Zoom in" onClick=${() => zoom(0.6)}>+</button>
        <button type="button" aria-label="Zoom out" onClick=${() => zoom(1.6)}>−</button>
      <button type="button" disabled=${!view} onClick=${() => setView(null)}>All</button></div></div>
    <div class="timeline-body" ref=${box}>
      <div class="timeline-labels"><div class="timeline-axis">${duration(scale.to - scale.from)} shown</div>
        ${lanes.map(l => (l.n ? html`<div key=${l.key} class=${cls('timeline-label', 'depth-' + Math.min(l.depth, 4))}>
          <button type="button" aria-expanded="false" title=${`Show each of the ${l.n} runs`} onClick=${() =>
            toggle(l.key)}><span class=${'text-' + statusOf(l.run)}><${Shape} state=${statusOf(l.run)} /></span>
            <span class="name">${count(l.n)} × ${visible(l.run.kind).slice(0, 60)}</span></button></div>`
        : html`<div key=${l.run.run_id}
            class=${cls('timeline-label', 'depth-' + Math.min(l.depth, 4), `h-${l.run.run_id === main ? l.rows : 0}`)}>
          <a href=${href('/runs/' + l.run.run_id)} aria-current=${l.run.run_id === main ? 'true' : undefined}
            title=${`${l.run.kind} ${l.run.run_id}`}>
            <span class=${'text-' + statusOf(l.run)}><${Shape} state=${statusOf(l.run)} /></span>
            <span class="name">${visible(l.run.kind).slice(0, 60)}</span>
            <span class="id">${short(l.run.run_id).slice(-4)}</span></a></div>`))}</div>
      <div class="timeline-canvas"><canvas ref=${canvas} tabindex="0" role="img" aria-label=${text}
          onPointerDown=${down} onPointerMove=${over} onPointerUp=${up}
          onPointerLeave=${() => setTip(null)} onDblClick=${e => {
            const h = under(e);
            if (h) fit(h.lane); else setView(null);
          }}
            onKeyDown=${keys}></canvas>
        ${tip && html`<div class="tip" style=${{ left: Math.min(tip.x + 12, Math.max(0, width - 260)) + 'px',
            top: tip.y + 16 + 'px' }}>${visible(tip.text).slice(0, 200)}<br />
              <span class="dim">+${duration(tip.at - origin)}</span></div>`}</div>
    </div>
    ${view && html`<canvas class="timeline-map" ref=${map} aria-hidden="true" onPointerDown=${onMap}
        onPointerMove=${onMap}></canvas>`}
    ${open.size > 0 && html`<p class="sub"><button type="button" class="linkish" onClick=${() =>
        setOpen(new Set())}>Fold equal runs</button></p>`}
    ${tree.size > drawn && html`<p class="sub">${count(drawn)} of ${count(tree.size)} runs are drawn; all are
      among the children. ${most < maxLanes && html`<button type="button" class="linkish"
        onClick=${() => setMost(maxLanes)}>Draw more</button>`}</p>`}</div>`;
}
