// The page of keys, shown with ?.
import { html, useEffect, useRef, none } from '../lib.js';

export function Help({ views, close }) {
  const box = useRef(none);
  useEffect(() => box.current.showModal(), []);
  const keys = [['j k', 'next and previous row'], ['Enter', 'open the row'], ['x', 'select the row'], ['/', 'search'],
    ['p', 'pause and go on with live changes'], ['u', 'up, to the list'], ['?', 'this page'], ['Esc', 'close'],
    ...views.map(v => [`g ${v.key}`, v.name])];
  return html`<dialog ref=${box} class="dialog" aria-label="Keys" onClose=${close}><h2>Keys</h2>
    <dl class="keys">${keys.map(([k, what]) =>
        html`<div key=${k}><dt>${k.split(' ').map(one => html`<kbd>${one}</kbd> `)}</dt><dd>${what}</dd></div>`)}</dl>
    <p class="sub">On a timeline: <kbd>+</kbd> <kbd>−</kbd> zoom, <kbd>←</kbd> <kbd>→</kbd> move,
      ${' '}<kbd>0</kbd> shows all.</p>
    <div class="actions"><button type="button" class="primary" onClick=${() =>
        box.current.close()}>Close</button></div></dialog>`;
}
