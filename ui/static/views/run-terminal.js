// The output of a process, as a terminal shows it, with its command as title.
import { html, useRef, useState, useMemo, useLayoutEffect, cls, none } from '../lib.js';
import { useGet } from '../live.js';
import { url, explain } from '../api.js';
import { allLines } from '../log.js';
import { size, count } from '../format.js';
import { Card, Empty, toast } from '../parts.js';
import { showHidden, visible } from '../safe.js';
import { useWindow } from '../window.js';
import { Screen, textOf } from '../terminal.js';
import { apart } from './run-log.js';

/** rowHeight is that of a line, in pixels, as run.css has it. */
const rowHeight = 18;

const bytesOf = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));

/** pieceOf is what an event writes: text, or a note in brackets about what can't be shown here. */
function pieceOf(e, decoders) {
  const d = e.data ?? {};
  switch (e.type) {
    case 'x:output': {
      if (apart(d)) return `\r\n[${size(d.size)} of output, too large for a line of the log]\r\n`;
      if (d.artifact) return `\r\n[${size(d.size ?? 0)} of output in the artifact ${d.artifact}]\r\n`;
      if (typeof d.base64 === 'string') {
        const stream = d.stream ?? '';
        if (!decoders.has(stream)) decoders.set(stream, new TextDecoder());
        try { return decoders.get(stream).decode(bytesOf(d.base64), { stream: true }); } catch { return '[redacted]'; }
      }
      return String(d.text ?? d.data ?? '');
    }
    case 'x:output_dropped': return `\r\n[${d.size ?? d.bytes ?? 'some'} bytes were not kept]\r\n`;
    case 'x:disk_full': case 'x:output_truncated': return `\r\n[${d.message ?? e.type.slice(2)}]\r\n`;
    case 'x:exit': return `\r\n[exit ${d.code ?? d.exit_code ?? ''}${d.signal ? ` signal ${d.signal}` : ''}]\r\n`;
  }
  return '';
}

/** A feed writes the lines of a log to a screen, each once. Lines that have gone from the log stay. */
class Feed {
  screen = new Screen();
  decoders = new Map();
  first = 0;
  last = 0;

  begin() { Object.assign(this, new Feed()); }

  take(events) {
    const first = events[0]?.seq ?? 0;
    // Older lines were read: the screen is made anew.
    if (this.first && first < this.first) this.begin();
    this.first ||= first;
    for (const e of events) {
      if (e.seq <= this.last) continue;
      const piece = pieceOf(e, this.decoders);
      // Output in a log ends its lines as files do.
      if (piece) this.screen.write(piece.replace(/(?<!\r)\n/g, '\r\n'));
      this.last = e.seq;
    }
    return this.screen.shown();
  }
}

/** shell writes a command as one would type it. */
const shell = command => (typeof command === 'string' ? command : (command ?? []).map(a =>
  (/^[\w@%+=:,./-]+$/.test(a) ? a : `'${String(a).replaceAll('\'', '\'\\\'\'')}'`)).join(' '));

/** commandOf is the command of a process, as its input has it. */
export const commandOf = input => (input && (Array.isArray(input.command) || typeof input.command === 'string')
  ? shell(input.command) : '');

/** saved gives all output of a run, also what the page does not have: of the log, and of artifacts. */
async function saved(run, going) {
  const parts = /** @type {any[]} */ ([]), decoders = new Map();
  const files = [];
  await allLines(run.run_id, events => {
    for (const e of events) {
      if (e.type === 'x:output' && e.data?.artifact) { files.push(parts.length); parts.push(e.data.artifact); }
      else if (e.type === 'x:output' && typeof e.data?.base64 === 'string') parts.push(bytesOf(e.data.base64));
      else parts.push(pieceOf(e, decoders).replaceAll('\r\n', '\n'));
    }
    return going();
  });
  for (const i of files) {
    const answer = await fetch(url(`/runs/${run.run_id}/artifacts/${encodeURIComponent(parts[i])}`));
    if (answer.ok) parts[i] = await answer.blob();
  }
  return new Blob(parts, { type: 'text/plain' });
}

function TermLine({ line, hit, at }) {
  return html`<div class=${cls('term-line', hit && 'hit', at && 'at')}>${line.map(([t, name]) => (name
    ? html`<span class=${name}>${showHidden(t)}</span>` : showHidden(t)))}</div>`;
}

/** Terminal shows the output of a run. */
export function Terminal({ run, log, version }) {
  const feed = useRef(/** @type {Feed} */ (none)), box = useRef(none);
  feed.current ??= new Feed();
  const lines = useMemo(() => [...feed.current.take(log?.events ?? [])], [log, version]);
  const [follow, setFollow] = useState(true), [text, setText] = useState(''), [nth, setNth] = useState(0);
  const [busy, setBusy] = useState(false);
  const whole = useGet('/runs/' + run.run_id, {});
  const command = commandOf(whole.value?.input);
  const win = useWindow(lines.length, rowHeight, 500);
  useLayoutEffect(() => { const e = box.current; if (e && follow) e.scrollTop = e.scrollHeight; }, [lines, follow]);
  const hits = useMemo(() => {
    if (!text) return [];
    const low = text.toLowerCase(), out = [];
    for (let i = 0; i < lines.length; i++) if (textOf(lines[i]).toLowerCase().includes(low)) out.push(i);
    return out;
  }, [lines, text]);
  const marked = useMemo(() => new Set(hits), [hits]);
  const at = hits.length ? hits[((nth % hits.length) + hits.length) % hits.length] : -1;
  useLayoutEffect(() => {
    const e = box.current;
    if (e && at >= 0) { setFollow(false); e.scrollTop = Math.max(0, at * rowHeight - e.clientHeight / 3); }
  }, [at]);
  const download = async () => {
    setBusy(true);
    try {
      const a = document.createElement('a');
      a.href = URL.createObjectURL(await saved(run, () => Boolean(box.current)));
      a.download = `${run.run_id}.log`;
      a.click();
      setTimeout(() => URL.revokeObjectURL(a.href), 60_000);
    } catch (e) { toast(`The output could not be read: ${explain(e)}`, true); }
    setBusy(false);
  };
  const title = html`<span class="command">${command ? html`<span class="dim">$ </span>${visible(command).slice(0,
    400)}`
    : 'Output'}</span>`;
  const dropped = feed.current.screen.dropped;
  return html`<${Card} title=${title} className="terminal-card">
    <div class="filters"><form role="search" onSubmit=${e => { e.preventDefault(); setNth(nth + 1); }}>
        <input type="search" aria-label="Search the output" placeholder="Search the output" value=${text} onInput=${e =>
          { setNth(0); setText(e.currentTarget.value); }} onKeyDown=${e => { if (e.key === 'Enter' && e.shiftKey) {
            e.preventDefault(); setNth(nth - 1); } }} /></form>
      ${text && html`<span class="sub" role="status">${hits.length ? `${count(hits.indexOf(at)
        + 1)} of ${count(hits.length)}`
        : 'not found'}</span>`}
      <button type="button" aria-pressed=${follow} onClick=${() => setFollow(!follow)}>Follow</button>
      <button type="button" disabled=${busy} onClick=${download}>${busy ? 'Reading' : 'Download'}</button></div>
    ${(dropped > 0 || (log && log.events.length > 0 && !log.whole)) && html`<p
      class="sub">The end of the output is shown.
      ${log && !log.whole && html` <button type="button" class="linkish" onClick=${() => log.older()}>Read older
        lines</button>, or`} download has all.</p>`}
    ${lines.length === 0 ? html`<${Empty} title="No output yet">What the command writes to its standard output and error
        is here.<//>` : html`<div class="terminal-box" ref=${box} tabindex="0" role="log" aria-label="Output"
      onScroll=${e => {
        const b = e.currentTarget;
        if (win.long) win.look(b);
        // Scrolling up stops following, and reaching the end starts it again.
        const end = b.scrollHeight - b.scrollTop - b.clientHeight < rowHeight * 2;
        if (end !== follow && !text) setFollow(end);
      }}>${win.before}${lines.slice(win.first, win.last).map((line, i) => html`<${TermLine} key=${win.first + i}
        line=${line} hit=${marked.has(win.first + i)} at=${win.first + i === at} />`)}${win.after}</div>
      <p class="sub">${count(lines.length + dropped)} lines</p>`}<//>`;
}
