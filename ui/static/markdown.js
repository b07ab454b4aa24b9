// Markdown of agents. It becomes elements here: no string is ever parsed as HTML, so there is nothing to sanitize.
// HTML in a text is shown as text, pictures as links, and links lead to the web or to a mail address only.
//
// A text is read a line at a time into blocks (paragraphs, lists, code, tables), and the text of a block a mark at a
// time (inline.js). Each takes time in proportion to the text, whatever an agent writes: blocks are nested to a depth.
// It reads CommonMark with tables, tasks, and line breaks as they are written. Left out are references of
// links, which are shown as text, and all HTML.
import { html } from './lib.js';
import { inline, plain } from './inline.js';
import { Safe } from './safe.js';
import { CopyButton } from './parts.js';

/** maxMarkdown is how long a text may be to be read as Markdown. Longer ones are shown as they are. */
const maxMarkdown = 40_000, maxDepth = 12, maxCells = 5000;

const blank = /^\s*$/, fence = /^( {0,3})(`{3,}|~{3,})[^`]*$/, heading = /^ {0,3}(#{1,6})(?=\s|$)/;
const rule = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/, quote = /^ {0,3}> ?/, indented = /^(?: {4}|\t)/;
const item = /^( {0,3})([-*+]|\d{1,9}[.)])(?:( {1,4})(?! )| (?= )|\t|$)/;
const under = /^ {0,3}(=+|-+)\s*$/, columns = /^\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?$/;

/** begins tells whether a line begins another block, also without an empty line before it. */
const begins = line => fence.test(line) || heading.test(line) || rule.test(line) || quote.test(line)
  || /^ {0,3}(?:[-*+]|1[.)])\s+\S/.test(line);

/** cellsOf are the cells of a row of a table. */
function cellsOf(line) {
  const cells = line.trim().replace(/^\|/, '').split('|');
  for (let i = cells.length - 2; i >= 0; i--) {
    if (/(?:^|[^\\])\\$/.test(cells[i])) cells.splice(i, 2, cells[i].slice(0, -1) + '|' + cells[i + 1]);
  }
  if (cells.length > 1 && !cells.at(-1)?.trim()) cells.pop();
  return cells.map(c => c.trim());
}

const isTable = (line, next) => line.includes('|') && next?.includes('-') && columns.test(next.trim())
  && cellsOf(line).length === cellsOf(next).length;

// Lines are read from a place. Each reader gives its element and the place behind it, or nothing.

function code(lines, at) {
  const m = lines[at].match(fence);
  let end = at + 1;
  const text = [];
  if (m) {
    const closes = new RegExp(`^ {0,3}${m[2][0]}{${m[2].length},}\\s*$`), indent = new RegExp(`^ {0,${m[1].length}}`);
    while (end < lines.length && !closes.test(lines[end])) text.push(lines[end++].replace(indent, ''));
    end++;
  } else {
    if (!indented.test(lines[at])) return null;
    for (end = at; end < lines.length && (indented.test(lines[end]) || blank.test(lines[end])); end++) {
      text.push(lines[end].replace(indented, ''));
    }
    while (blank.test(text.at(-1) ?? 'x')) { text.pop(); end--; }
  }
  const all = text.join('\n');
  return { end, is: html`<div class="code"><${CopyButton} text=${all} about="Copy the code" /><${Safe} text=${all}
    block /></div>` };
}

function quoted(lines, at, depth) {
  let end = at;
  const inner = [];
  for (; end < lines.length && !blank.test(lines[end]) && (quote.test(lines[end]) || !begins(lines[end])); end++) {
    inner.push(lines[end].replace(quote, ''));
  }
  return { end, is: html`<blockquote>${blocks(inner, depth + 1)}</blockquote>` };
}

function table(lines, at) {
  const heads = cellsOf(lines[at]), rows = [];
  let end = at + 2;
  for (; end < lines.length && !blank.test(lines[end]) && !begins(lines[end]); end++) {
    const cells = rows.length * heads.length < maxCells && cellsOf(lines[end]);
    if (cells) rows.push(heads.map((_, i) => cells[i] ?? ''));
  }
  return { end, is: html`<table><thead><tr>${heads.map(c => html`<th>${inline(c)}</th>`)}</tr></thead>
    <tbody>${rows.map(r => html`<tr>${r.map(c => html`<td>${inline(c)}</td>`)}</tr>`)}</tbody></table>` };
}

/** list reads items with marks of one kind. What is indented below the text of an item belongs to it. */
function list(lines, at, depth) {
  const [, , mark] = /** @type {RegExpMatchArray} */ (lines[at].match(item)), kind = mark.at(-1);
  /** @type {string[][]} */
  const items = [];
  let end = at, within = 0, gap = false;
  for (; end < lines.length; end++) {
    const line = lines[end], m = rule.test(line) ? null : line.match(item), deep = line.search(/\S/);
    if (deep < 0) { gap = true; items.at(-1)?.push(''); continue; }
    if (items.length && (deep >= within || (deep > 1 && m))) {
      items.at(-1)?.push(line.slice(Math.min(deep, within)));
    } else if (m && m[2].at(-1) === kind) {
      within = m[0].length + (m[0].endsWith(m[2]) ? 1 : 0);
      items.push([line.slice(within)]);
    } else if (!gap && !m && items.length && !begins(line)) {
      items.at(-1)?.push(line.slice(deep));
    } else {
      break;
    }
    gap = false;
  }
  const made = items.map(lines => {
    const task = lines[0].match(/^\[([ xX])\]\s+/);
    if (task) lines[0] = lines[0].slice(task[0].length);
    const inner = blocks(lines, depth + 1), only = inner.length === 1 && inner[0].type === 'p';
    return html`<li>${task && (task[1] === ' ' ? '☐ ' : '☑ ')}${only ? inner[0].props.children : inner}</li>`;
  });
  return { end, is: kind === '.' || kind === ')' ? html`<ol start=${parseInt(mark, 10)}>${made}</ol>`
    : html`<ul>${made}</ul>` };
}

/** paragraph reads lines up to the next block. A line of = or - below them makes them a heading. */
function paragraph(lines, at) {
  let end = at + 1;
  const text = [lines[at].trim()];
  for (; end < lines.length && !blank.test(lines[end]); end++) {
    if (under.test(lines[end])) return { end: end + 1, is: html`<h3>${inline(text.join('\n'))}</h3>` };
    if (begins(lines[end]) || isTable(lines[end], lines[end + 1])) break;
    text.push(lines[end].trim());
  }
  return { end, is: html`<p>${inline(text.join('\n'))}</p>` };
}

function titled(line, large, at) {
  const text = inline(line.trim().replace(/(^|\s)#+$/, ''));
  return { end: at + 1, is: large ? html`<h3>${text}</h3>` : html`<p><strong>${text}</strong></p>` };
}

function blocks(lines, depth) {
  if (depth > maxDepth) return [html`<p>${plain(lines.join('\n'))}</p>`];
  const out = [];
  for (let at = 0; at < lines.length;) {
    const line = lines[at], head = line.match(heading);
    if (blank.test(line)) { at++; continue; }
    const block = code(lines, at) ?? (head ? titled(line.slice(head[0].length), head[1].length <= 2, at)
      : rule.test(line) ? { end: at + 1, is: html`<hr />` } : quote.test(line) ? quoted(lines, at, depth)
        : item.test(line) ? list(lines, at, depth)
          : isTable(line, lines[at + 1]) ? table(lines, at) : paragraph(lines, at));
    out.push(block.is);
    at = block.end;
  }
  return out;
}

/** Markdown shows a text of an agent. */
export function Markdown({ text }) {
  const lines = text.length > maxMarkdown ? [] : text.replace(/\x1b\[[0-9;:]*m|\r/g, '').split('\n');
  if (!lines.length || lines.length > 3000 || lines.some(line => line.length > 10_000)) return html`<${Safe}
      text=${text} block />`;
  return html`<div class="md" dir="auto">${blocks(lines, 0)}</div>`;
}
