// One place for what the views import of the libraries.
import { h, render, Fragment, Component } from 'preact';
import htm from 'htm';
import { signal } from '@preact/signals';

export { render, h, Fragment, Component };
export { useState, useEffect, useLayoutEffect, useRef, useMemo, useCallback, useId } from 'preact/hooks';
export { signal, computed, effect, batch } from '@preact/signals';

/** html`<p>…</p>` makes elements. Values in it become text, never markup. */
export const html = htm.bind(h);

/** cls joins class names, leaving out what is false. */
export const cls = (...names) => names.filter(Boolean).join(' ');

/** painted is the theme of the page. What is drawn on a canvas is drawn anew when it changes. */
export const painted = signal('');
const root = document.documentElement;
new MutationObserver(() => { painted.value = root.dataset.theme ?? ''; })
  .observe(root, { attributes: true, attributeFilter: ['data-theme'] });

/** none is null where a value of any type comes later, such as an element that is not in the page yet. */
export const none = /** @type {any} */ (null);
