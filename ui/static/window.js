// Long lists have only those rows in the page that are in sight, and empty space for the others. All rows of such
// a list have one height.
import { html, useState } from './lib.js';

/** beyond is how many rows are in the page above and below those that are in sight. */
const beyond = 20;

/**
 * useWindow tells which rows of a list are in the page.
 * @param {number} count
 * @param {number} height of a row, in pixels
 * @param {number} few    a list with no more rows has all of them in the page
 */
export function useWindow(count, height, few = 300) {
  const [at, move] = useState({ top: 0, sight: 900 });
  const long = count > few;
  const first = long ? Math.max(0, Math.min(Math.floor(at.top / height) - beyond, count - 1)) : 0;
  const last = long ? Math.min(count, first + Math.ceil(at.sight / height) + 2 * beyond) : count;
  const space = rows => rows > 0 && html`<div style=${{ height: rows * height + 'px' }}></div>`;
  const look = e => {
    const top = e.scrollTop, sight = e.clientHeight || 900;
    // A row more or less is no reason to render.
    if (Math.abs(top - at.top) >= height || sight !== at.sight) move({ top, sight });
  };
  return { long, first, last, before: space(first), after: space(count - last), look };
}
