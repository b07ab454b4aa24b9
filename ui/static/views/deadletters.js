// Dead letters: runs that can't go on, grouped by cause, and made anew (redriven).
import { html, useState, none } from '../lib.js';
import { go, withQuery } from '../router.js';
import { post, call, can } from '../api.js';
import { useList, useReread, refresh } from '../live.js';
import { count } from '../format.js';
import { Page, Table, Empty, Trouble, Loading, Ago, Until, RunLink, ask, act, toast } from '../parts.js';
import { Safe } from '../safe.js';

/** redriveAll redrives a group, 100 at a time, and tells how far it is. */
async function redriveAll(group, tell) {
  let done = 0, refused = 0, first = '';
  for (let round = 0; round < 1000; round++) {
    const out = await post('/dlq/redrive', { cause: group.cause, kind: group.kind, limit: 100 });
    done += out.done;
    for (const r of out.results) if (r.error) { refused++; first ||= r.error.detail ?? r.error.code; }
    tell({ done, refused, of: group.count - group.redriven });
    if (out.done === 0) break;
  }
  toast(refused ? `${done} redriven, ${refused} refused: ${first}` : `${done} redriven.`, refused > 0);
  tell(null);
  refresh();
}

function Cause({ group }) {
  const [progress, tell] = useState(none);
  const left = group.count - group.redriven;
  const redrive = async () => {
    if (await ask({ title: `Redrive ${count(left)} dead letter${left === 1 ? '' : 's'}?`, yes: `Redrive ${count(left)}`,
      text: html`Each of kind <b>${group.kind}</b> that ended with <code>
          ${group.cause}</code> becomes a new run with the same input. Has the cause been mended?` })) {
      await act('', () => redriveAll(group, tell));
    }
  };
  return html`<div class="card cause" data-row tabindex="-1">
      <div class="row spread"><div class="cause-what"><h2><code>${group.cause}</code></h2>
          <p class="sub"><a href=${withQuery({ kind: group.kind, cause: group.cause })}>
              <${Safe} text=${group.kind} max=${60} /></a> · newest <${Ago} at=${group.newest_at} /></p></div>
    <p class="big" title=${`${group.redriven} of them were redriven`}>${count(left)}</p></div>
    ${group.example_message && html`<p class="why">
        <${Safe} text=${group.example_message} max=${180} /> <${RunLink} id=${group.example_run_id} /></p>`}
    ${progress ? html`<div class="row"><progress max=${Math.max(1, progress.of)}
        value=${progress.done + progress.refused} aria-label="Progress"></progress>
          <span class="dim">${progress.done} of ${progress.of}</span></div>`
    : html`<div class="row"><button type="button" onClick=${redrive} disabled=${!left ||
        !can('runs:control')}>Redrive ${left === 1 ? 'it' : 'all'}</button>
      ${group.redriven > 0 && html`<span class="dim">${count(group.redriven)} redriven before</span>`}</div>`}</div>`;
}

export default function DeadLetters({ query }) {
  const filter = { cause: query.get('cause') ?? '', kind: query.get('kind') ?? '' };
  const { items, next, error } = useList('dead_letters', '/dlq', 'dead_letters',
    { ...filter, limit: 50, cursor: query.get('cursor') ?? '' });
  // A cause whose letters were all redriven needs nothing any more.
  const causes = (useReread('/dlq/causes', { limit: 50 }, [items]).value?.causes ?? [])
    .filter(c => c.count > c.redriven);
  const one = async (d, verb) => {
    if (!await ask(verb === 'redrive' ? { title: 'Redrive it?', yes: 'Redrive',
        text: 'It becomes a new run with the same input.' }
      : { title: 'Discard it?', yes: 'Discard', danger: true,
        text: 'The letter is gone. The run stays until the server removes it.' })) return;
    const made = await act(verb === 'redrive' ? '' : 'Discarded.', () =>
      (verb === 'redrive' ? post(`/dlq/${d.run_id}/redrive`) : call('DELETE', `/dlq/${d.run_id}`)));
    if (made?.run_id) go('/runs/' + made.run_id);
    refresh();
  };
  const none = items?.length === 0 && !filter.cause && !filter.kind;
  return html`<${Page} title="Dead letters"
      sub="Runs that can't go on by themselves. Mend the cause, then redrive them: each becomes a new run with the
        same input.">
    <${Trouble} error=${error} />
    ${none ? html`<${Empty}
        title="No dead letters">A run that has used up its attempts, was refused by its worker, or was lost would
          be here, with its story.<//>`
          : html`
    ${causes.length > 0 && html`<div class="cards">
        ${causes.map(c => html`<${Cause} key=${c.cause + ' ' + c.kind} group=${c} />`)}</div>`}
    ${(filter.cause || filter.kind) && html`<div class="filters">
        ${Object.entries(filter).filter(([, v]) => v).map(([k, v]) =>
            html`<span class="chip" key=${k}>
                <b>${k}</b> ${v} <a href=${withQuery({ [k]: '', cursor: '' })}
                  aria-label=${`Remove the filter ${k}`}>×</a></span>`)}</div>`}
    ${items === null ? !error && html`<${Loading} />`
      : html`<${Table} label="Dead letters" rows=${items} keyOf=${d => d.run_id} open=${d => go('/runs/' + d.run_id)}
          columns=${[
      { name: 'Kind', className: 'fit', cell: d => html`<b><${Safe} text=${d.kind} max=${60} /></b>` },
      { name: 'Cause', className: 'grow', cell: d =>
        html`<code>${d.cause}</code> <span class="why"><${Safe} text=${d.message ?? ''} max=${140} /></span>` },
      { name: 'Run', className: 'fit', cell: d => html`<${RunLink} id=${d.run_id} />` },
      { name: 'Since', className: 'fit', cell: d => html`<${Ago} at=${d.at} />` },
      { name: 'Kept', className: 'fit wide-only', cell: d => html`<${Until} at=${d.expires_at} />` },
      { name: '', className: 'fit', cell: d =>
        (d.redriven_by_run_id ? html`<span class="dim">redriven: <${RunLink} id=${d.redriven_by_run_id} /></span>`
        : can('runs:control') && html`<span class="actions">
            <button type="button" onClick=${() => one(d, 'redrive')}>Redrive</button>
            <button type="button" onClick=${() => one(d, 'discard')}>Discard</button></span>`) }]} />`}
    ${next && html`<div class="pager"><a href=${withQuery({ cursor: next })}>Older</a></div>`}`}<//>`;
}
