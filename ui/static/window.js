// Long lists have only those rows in the page that are in sight, and empty space for the others. All rows of such
// a list have one height.
import { html, signal, useState } from './lib.js';

/** beyond is how many rows are in the page above and below those that are in sight. */
const beyond = 20;

/** onPaper is how many rows of a list are printed. */
const onPaper = 2000;
const printing = signal(false);
addEventListener('beforeprint', () => { printing.value = true; });
addEventListener('afterprint', () => { printing.value = false; });

/**
 * useWindow tells which rows of a list are in the page.
 * @param {number} count
 * @param {number} height of a row, in pixels
 * @param {number} few    a list with no more rows has all of them in the page
 */
export function useWindow(count, height, few = 300) {
  const [at, move] = useState({ top: 0, sight: 900 });
  const long = count > few, paper = printing.value;
  const first = long && !paper ? Math.max(0, Math.min(Math.floor(at.top / height) - beyond, count - 1)) : 0;
  const rows = Math.ceil(at.sight / height) + 2 * beyond;
  const last = Math.min(count, paper ? onPaper : long ? first + rows : count);
  const rest = count - last;
  const space = n => n > 0 && html`<div style=${{ height: n * height + 'px' }}></div>`;
  const look = e => {
    const top = e.scrollTop, sight = e.clientHeight || 900;
    // A row more or less is no reason to render.
    if (Math.abs(top - at.top) >= height || sight !== at.sight) move({ top, sight });
  };
  const after = paper ? rest > 0 && html`<p>${rest} more are not printed.</p>` : space(rest);
  return { long, first, last, before: space(first), after, look };
}
