// The search field of the list of runs, with suggestions while one types.
import { html, useState, useRef, useId } from '../lib.js';
import { suggest } from '../search.js';

/** @param {{counts: any, search: (text: string, kinds: string[]) => void}} p */
export function Search({ counts, search }) {
  const [text, setText] = useState(''), [at, setAt] = useState(-1), [open, setOpen] = useState(false), id = useId();
  const sum = of => Object.fromEntries(Object.entries(of ?? {}).filter(([k]) => k !== 'other').map(([k, byStatus]) =>
    [k, Object.values(byStatus).reduce((n, m) => n + m, 0)]));
  // The counts are those of the filter. Kinds that it leaves out are kinds all the same.
  const known = useRef({}), kinds = known.current = { ...known.current, ...sum(counts?.kind) };
  const list = open ? suggest(text, { kinds, queues: Object.keys(sum(counts?.queue)) }) : [];
  const take = s => { setText(s.text); setAt(-1); };
  // The text of the field counts: a key may come before the page has drawn the last one.
  const submit = e => {
    const typed = e.currentTarget.elements.q.value;
    if (typed.trim()) { search(typed, Object.keys(kinds)); setText(''); }
    setOpen(false);
    setAt(-1);
  };
  const keys = e => {
    if (e.key === 'ArrowDown' || e.key === 'ArrowUp') {
      if (!list.length) return;
      setAt((at + (e.key === 'ArrowDown' ? 1 : list.length + (at < 0 ? 0 : -1))) % list.length);
    } else if (e.key === 'Enter' && at >= 0 && list[at]) take(list[at]);
    else if (e.key === 'Escape' && list.length) setOpen(false);
    else return;
    e.preventDefault();
  };
  return html`<form role="search" class="search" onSubmit=${e => { e.preventDefault(); submit(e); }}>
    <input type="search" name="q" aria-label="Filter runs" role="combobox" aria-expanded=${list.length > 0}
      aria-controls=${id} aria-autocomplete="list" aria-activedescendant=${at >= 0 ? `${id}-${at}` : undefined}
      autocomplete="off" spellcheck="false" value=${text} onKeyDown=${keys}
      onInput=${e => { setText(e.currentTarget.value); setOpen(true); setAt(-1); }} onFocus=${() => setOpen(true)}
      onBlur=${() => setTimeout(() => setOpen(false), 150)}
      placeholder="kind:report  code:timeout  host=cube  is:held  since:2h  or a run's id" />
    <ul class="suggestions" role="listbox" id=${id} aria-label="Suggestions" hidden=${!list.length}>
      ${list.map((s, i) => html`<li role="option" key=${s.text} id=${`${id}-${i}`} aria-selected=${i === at}
        onMouseDown=${e => e.preventDefault()} onClick=${() => take(s)}><b>${s.text.trim()}</b>
        <span class="dim">${s.why}</span></li>`)}</ul></form>`;
}
