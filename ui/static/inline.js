// The text of a block of Markdown: emphasis, code, links. It is read once, from left to right.
//
// Open elements are on a stack: marks of emphasis, and brackets of links. A mark that closes takes the nearest open one
// of its kind, and what is between them becomes an element. A mark that nothing closes is text, as everything else
// is, and all marks are while maxOpen of them are open: the work is in proportion to the text.
import { html } from './lib.js';
import { showHidden, visible } from './safe.js';

const maxDepth = 12, maxOpen = 100;

const named = { lt: '<', gt: '>', quot: '"', '#39': "'", amp: '&', nbsp: ' ' };
/** plain is a text without entities, in one string. */
export const plain = text => visible(text.replace(/&(lt|gt|quot|#39|amp|nbsp);/g, (_, name) => named[name]));

/** web tells whether a link may be followed. */
const web = to => { try { return ['http:', 'https:', 'mailto:'].includes(new URL(to).protocol); } catch { return false;
    } };

const anchor = (to, text) => html`<a href=${to} target="_blank" rel="noopener noreferrer nofollow">${text}</a>`;

const special = /[\\`*_~[\]!<\n]|https?:\/\//g;
const target = /\(\s{0,9}(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\([^\s()]*\))*))(?:\s{1,9}(?:"[^"]*"|'[^']*'))?\s{0,9}\)/y;
const angled = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/y, bare = /https?:\/\/[^\s<]+/y, ticks = /`+/y, run = /([*_~])\1*/y;

const word = /[\p{L}\p{N}]/u, space = /^\s?$/;

/** sticky matches a pattern at a place. */
const sticky = (pattern, text, at) => { pattern.lastIndex = at; return pattern.exec(text); };

/**
 * inline reads a text.
 * @param {string} text
 */
export function inline(text) {
  // Each part is a text, an element with its depth, or an open mark.
  /** @type {{text?: string, is?: any, depth?: number, mark?: string, n?: number, at?: number}[]} */
  const parts = [];
  /** @type {number[]} */
  const open = []; // places of open marks in parts
  const say = s => { if (s) parts.push({ text: s }); };
  // back is the last open mark, or bracket, unless another bracket is nearer. It is -1 if there is none.
  const back = mark => {
    for (let i = open.length - 1; i >= 0; i--) {
      const at = parts[open[i]].mark;
      if (at === mark) return i;
      if (at === '[') break;
    }
    return -1;
  };
  // wrap makes an element of the parts behind a place.
  const wrap = (from, make) => {
    const inner = parts.splice(from), depth = 1 + inner.reduce((d, p) => Math.max(d, p.depth ?? 0), 0);
    if (depth > maxDepth) { parts.push(...inner); return; }
    parts.push({ is: make(shown(inner)), depth });
  };

  // emphasis takes a run of marks at a place, and returns the place behind it.
  const emphasis = (mark, n, at) => {
    const before = text[at - 1] ?? '', after = text[at + n] ?? '';
    const inside = mark === '_' && word.test(before) && word.test(after);
    const opens = !inside && !space.test(after) && (word.test(after) || !word.test(before) || mark !== '_');
    const closes = !inside && !space.test(before);
    let left = n;
    while (closes && left && !(mark === '~' && left > 2)) {
      const i = back(mark), from = parts[open[i]];
      if (!from?.n || (mark === '~' && from.n !== left)) break;
      const both = Math.min(from.n, left, 2), place = open[i];
      open.length = i + 1;
      wrap(place + 1, inner => (mark === '~' ? html`<del>${inner}</del>` : both === 2
        ? html`<strong>${inner}</strong>` : html`<em>${inner}</em>`));
      left -= both;
      from.n -= both;
      if (!from.n) { parts.splice(place, 1); open.pop(); }
    }
    if (left && opens && open.length < maxOpen) open.push(parts.push({ mark, n: left }) - 1);
    else say(mark.repeat(left));
    return at + n;
  };

  // link ends the last open bracket, and returns the place behind it.
  const link = at => {
    const i = back('[');
    if (i < 0) { say(']'); return at + 1; }
    const place = open[i], from = parts[place], m = sticky(target, text, at + 1), end = target.lastIndex;
    open.length = i;
    if (!m) { from.text = from.n ? '![' : '['; delete from.mark; say(']'); return at + 1; }
    const to = (m[1] ?? m[2]).replace(/\\([!-/:-@[-`{-~])/g, '$1'), source = text.slice(from.at, end);
    wrap(place + 1, inner => (web(to) ? anchor(to, from.n && !inner.length ? 'picture' : inner)
      : from.n ? plain(source) : html`<span>${inner} (${plain(to)})</span>`));
    parts.splice(place, 1);
    // A link has none inside.
    if (!from.n) {
      for (const i of open) if (parts[i].mark === '[' && !parts[i].n) { parts[i].text = '['; delete parts[i].mark; }
      open.splice(0, open.length, ...open.filter(i => parts[i].mark));
    }
    return end;
  };

  const lengths = new Set(); // of runs of backticks that nothing closes
  for (let at = 0; at < text.length;) {
    special.lastIndex = at;
    const m = special.exec(text), c = m?.[0] ?? '', here = m?.index ?? text.length;
    say(text.slice(at, here));
    at = here + 1;
    if (!m) break;
    if (c === '\\') {
      if (text[at] === '\n') { parts.push({ is: html`<br />` }); at++; }
      else if (/[!-/:-@[-`{-~]/.test(text[at] ?? '')) say(text[at++]);
      else say(c);
    } else if (c === '\n') parts.push({ is: html`<br />` });
    else if (c === '`') {
      const n = sticky(ticks, text, here)?.[0].length ?? 1;
      at = here + n;
      let end = lengths.has(n) ? -1 : text.indexOf('`', at);
      for (let next; end >= 0 && (next = sticky(ticks, text, end)?.[0].length ?? 1) !== n;) {
        end = text.indexOf('`', end + next);
      }
      if (end < 0) { lengths.add(n); say('`'.repeat(n)); continue; }
      const inner = text.slice(at, end).replaceAll('\n', ' ');
      parts.push({ is: html`<code>${visible(/^ .*[^ ].* $/.test(inner) ? inner.slice(1, -1) : inner)}</code>` });
      at = end + n;
    } else if (open.length < maxOpen && (c === '[' || (c === '!' && text[at] === '['))) {
      open.push(parts.push({ mark: '[', n: c === '!' ? 1 : 0, at: here }) - 1);
      if (c === '!') at++;
    } else if (c === ']') at = link(here);
    else if (c === '<') {
      const to = sticky(angled, text, here)?.[1];
      if (to && web(to)) { parts.push({ is: anchor(to, visible(to)) }); at = angled.lastIndex; } else say(c);
    } else if (c === '!' || c === '[') say(c);
    else if (c[0] === 'h') {
      let to = sticky(bare, text, here)?.[0] ?? '';
      to = to.slice(0, to.search(/[.,:;"'\]!?*_~]*$/));
      let extra = to.split(')').length - to.split('(').length;
      for (; extra > 0 && to.endsWith(')'); extra--) to = to.slice(0, -1);
      if (web(to)) { parts.push({ is: anchor(to, visible(to)) }); at = here + to.length; } else { say(c); at = here
        + c.length; }
    } else at = emphasis(c, sticky(run, text, here)?.[0].length ?? 1, here);
  }
  return shown(parts);
}

/** shown turns parts into what is shown. A mark that was left open is text. */
function shown(parts) {
  const out = [];
  let text = '';
  const flush = () => { if (text) out.push(...showHidden(plain(text)).filter(Boolean)); text = ''; };
  for (const p of parts) {
    if (p.mark === '[') text += p.n ? '![' : '[';
    else if (p.mark) text += p.mark.repeat(p.n ?? 1);
    else if (p.is !== undefined) { flush(); out.push(p.is); } else text += p.text;
  }
  flush();
  return out;
}
