// Markdown of agents. The parser gives tokens, and the tokens become elements here: no string is
// ever parsed as HTML, so there is nothing to sanitize. HTML in a text is shown as text, pictures as
// links, and links lead to the web or to a mail address only.
import { html } from './lib.js';
import { lexer } from 'marked';
import { Safe, showHidden, visible } from './safe.js';
import { CopyButton } from './parts.js';

/** maxMarkdown is how long a text may be to be read as Markdown. Longer ones are shown as they are. */
const maxMarkdown = 40_000, maxDepth = 12;

/** web tells whether a link may be followed. */
const web = to => { try { return ['http:', 'https:', 'mailto:'].includes(new URL(to).protocol); } catch { return false;
    } };

// entities of the few characters that the parser escapes.
const plain = text => visible(String(text ?? '').replace(/&lt;/g, '<').replace(/&gt;/g, '>').replace(/&quot;/g,
    '"').replace(/&#39;/g, "'").replace(/&amp;/g, '&'));

function inline(tokens, depth) {
  return (tokens ?? []).map(t => {
    if (depth > maxDepth) return plain(t.raw);
    const inner = () => inline(t.tokens, depth + 1);
    switch (t.type) {
      case 'strong': return html`<strong>${inner()}</strong>`;
      case 'em': return html`<em>${inner()}</em>`;
      case 'del': return html`<del>${inner()}</del>`;
      case 'codespan': return html`<code>${plain(t.text)}</code>`;
      case 'br': return html`<br />`;
      case 'link': return web(t.href) ? html`<a href=${t.href} target="_blank" rel="noopener noreferrer nofollow">
          ${inner()}</a>` : html`<span>${inner()} (${plain(t.href)})</span>`;
      case 'image': return web(t.href) ? html`<a href=${t.href} target="_blank" rel="noopener noreferrer nofollow">
          ${plain(t.text) || 'picture'}</a>` : plain(t.raw);
      case 'text': case 'escape': return t.tokens?.length ? inner() : showHidden(plain(t.text));
      default: return plain(t.raw);
    }
  });
}

function blocks(tokens, depth) {
  return (tokens ?? []).map(t => {
    if (depth > maxDepth) return html`<p>${plain(t.raw)}</p>`;
    switch (t.type) {
      case 'space': case 'def': return null;
      case 'heading': return t.depth <= 2 ? html`<h3>${inline(t.tokens, depth)}</h3>`
        : html`<p><strong>${inline(t.tokens, depth)}</strong></p>`;
      case 'paragraph': return html`<p>${inline(t.tokens, depth)}</p>`;
      case 'text': return t.tokens ? html`<p>${inline(t.tokens, depth)}</p>` : html`<p>${plain(t.text)}</p>`;
      case 'code': return html`<div class="code"><${CopyButton} text=${t.text} about="Copy the code" />
        <${Safe} text=${t.text} block /></div>`;
      case 'blockquote': return html`<blockquote>${blocks(t.tokens, depth + 1)}</blockquote>`;
      case 'hr': return html`<hr />`;
      case 'list': {
        const items = t.items.map(i => html`<li>
            ${i.task ? (i.checked ? '☑ ' : '☐ ') : ''}${i.tokens.length === 1 && i.tokens[0].type === 'text'
              ? inline(i.tokens[0].tokens ?? i.tokens, depth + 1) : blocks(i.tokens, depth + 1)}</li>`);
        return t.ordered ? html`<ol start=${t.start || 1}>${items}</ol>` : html`<ul>${items}</ul>`;
      }
      case 'table': return html`<table><thead>
          <tr>${t.header.map(c => html`<th>${inline(c.tokens, depth)}</th>`)}</tr></thead>
        <tbody>${t.rows.slice(0, 500).map(r =>
            html`<tr>${r.map(c => html`<td>${inline(c.tokens, depth)}</td>`)}</tr>`)}</tbody></table>`;
      default: return html`<p>${plain(t.raw)}</p>`;
    }
  });
}

/** Markdown shows a text of an agent. */
export function Markdown({ text }) {
  if (text.length > maxMarkdown || text.split('\n', 3000).some(line => line.length > 10_000)) return html`<${Safe}
      text=${text} block />`;
  let tokens;
  try {
    tokens = lexer(text.replace(/\x1b\[[0-9;:]*m/g, ''), { gfm: true, breaks: true });
  } catch {
    return html`<${Safe} text=${text} block />`;
  }
  return html`<div class="md" dir="auto">${blocks(tokens, 0)}</div>`;
}
