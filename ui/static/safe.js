// Text from agents is made harmless here, before it is shown. It reaches the page as text nodes
// only, so markup in it does nothing. What is left are control characters, characters that reverse
// or hide text, and lines of megabytes.
import { html, useState, cls } from './lib.js';

/** maxShown is how many characters of a text are shown before "show all". */
export const maxShown = 4000;
/** inLine is how long a text may be to be cut without a button. */
const inLine = 240;
/** maxAll bounds what "show all" puts into the page. The rest can be copied. */
const maxAll = 400_000;

// Escape sequences of terminals: colours (SGR), other CSI sequences, OSC (titles, links), and single ones.
const ansi = new RegExp([
  /\x1b\[([0-9;:]*)m/, /\x1b\[[0-?]*[ -/]*[@-~]/, /\x1b\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?/,
  /\x1b[PX^_][^\x1b]{0,4096}\x1b\\/, /\x1b./,
].map(r => r.source).join('|'), 'g');

// Characters that can't be seen, or change how others are seen: controls, bidi, zero width, tags. The joiner U+200D
// and the selector U+FE0F are parts of emoji that are made of several characters, and hidden anywhere else.
const hidden = new RegExp([
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e]/u,
  /[\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffb]/u,
  /[\u{e0000}-\u{e0fff}]/u,
  /\u200d(?<![\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f]\u200d)|\u200d(?!\p{Extended_Pictographic})/u,
  /\ufe0f(?<![\p{Emoji}\p{Extended_Pictographic}]\ufe0f)/u,
].map(r => r.source).join('|'), 'gu');

/** usual is a text with nothing to hide, as most are. */
const usual = /^[\t\n\x20-\x7e]*$/;

/** codepoint writes a character as U+202E. */
const codepoint = c => 'U+' + c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0');

/** visible is a text in one string, with hidden characters written out and escape sequences left out. */
export function visible(text) {
  const all = String(text);
  if (usual.test(all)) return all;
  return all.replace(ansi, '').replace(hidden, c => (c === '\r' ? '' : `⟨${codepoint(c)}⟩`));
}

/** showHidden splits a text into plain parts and marks for hidden characters. */
export function showHidden(text) {
  if (usual.test(text)) return [text];
  const out = [];
  let from = 0;
  hidden.lastIndex = 0;
  for (const m of text.matchAll(hidden)) {
    if (m[0] === '\r') {
      out.push(text.slice(from, m.index));
    } else {
      out.push(text.slice(from, m.index),
        html`<span class="hidden-char" title="A character that can't be seen, or changes the order of others">
            ${codepoint(m[0])}</span>`);
    }
    from = m.index + m[0].length;
  }
  out.push(text.slice(from));
  return out;
}

// styled gives the parts of a text with the colours that its escape sequences ask for.
function styled(text) {
  const out = [];
  let from = 0, style = { fg: '', bold: false };
  const push = end => {
    if (end <= from) return;
    const part = showHidden(text.slice(from, end));
    const name = cls(style.fg, style.bold && 'ansi-bold');
    out.push(name ? html`<span class=${name}>${part}</span>` : part);
  };
  for (const m of text.matchAll(ansi)) {
    push(m.index);
    from = m.index + m[0].length;
    if (m[1] === undefined) continue;
    for (const code of m[1].split(/[;:]/).map(Number)) {
      if (code === 0) style = { fg: '', bold: false };
      else if (code === 1) style = { ...style, bold: true };
      else if (code === 22) style = { ...style, bold: false };
      else if (code >= 30 && code <= 37) style = { ...style, fg: 'ansi-' + (code - 30) };
      else if (code >= 90 && code <= 97) style = { ...style, fg: 'ansi-' + (code - 90) };
      else if (code === 39) style = { ...style, fg: '' };
    }
  }
  push(text.length);
  return out;
}

/**
 * Safe shows a text of an agent. Long ones are cut: in a line of a list with an ellipsis, elsewhere
 * with a button that shows the rest.
 * @param {{text: any, max?: number, block?: boolean, color?: boolean}} p
 */
export function Safe({ text, max = maxShown, block = false, color = true }) {
  const [all, showAll] = useState(false);
  const whole = typeof text === 'string' ? text : String(text ?? '');
  const limit = all ? maxAll : max;
  const cut = whole.length > limit;
  const part = cut ? whole.slice(0, limit) : whole;
  const body = color ? styled(part) : showHidden(part.replace(ansi, ''));
  const more = cut && (max <= inLine && !block ? '…'
    : html` <button type="button" class="linkish" onClick=${e => { e.stopPropagation(); showAll(true); }}
    disabled=${all}>${all ? `… ${(whole.length - limit).toLocaleString('en')} more characters are left out`
    : `show all ${whole.length.toLocaleString('en')} characters`}</button>`);
  return block ? html`<pre class="text"><bdi>${body}</bdi>${more}</pre>` : html`<bdi class="safe">${body}${more}</bdi>`;
}
