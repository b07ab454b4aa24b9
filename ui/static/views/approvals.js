// Approvals: what runs want a person to decide, the exact action, and the form.
import { html, useState } from '../lib.js';
import { withQuery } from '../router.js';
import { call, can, session } from '../api.js';
import { useList, refresh } from '../live.js';
import { Page, Tabs, Empty, Trouble, Loading, Ago, Until, Json, RunLink, Shape, act, ask, Value } from '../parts.js';
import { Safe, visible } from '../safe.js';

const names = { open: 'Open', approved: 'Approved', rejected: 'Rejected', timed_out: 'Timed out', closed: 'Closed' };
const shapeOf = { open: 'suspended', approved: 'completed', rejected: 'failed', timed_out: 'timeout',
  closed: 'cancelled' };

/** answerOf reads the fields of an approval's form. */
function answerOf(form, data) {
  const out = {};
  for (const f of form ?? []) {
    const v = data.get('f:' + f.name);
    if (f.type === 'boolean') out[f.name] = v === 'on';
    else if (v === null || v === '') continue;
    else out[f.name] = f.type === 'number' ? Number(v) : v;
  }
  return out;
}

function Field({ field }) {
  const name = 'f:' + field.name, label = html`<span><${Safe} text=${field.label || field.name} />
      ${field.required ? html` <span class="dim">(required)</span>` : ''}</span>`;
  switch (field.type) {
    case 'boolean': return html`<label class="check"><input type="checkbox" name=${name} /> ${label}</label>`;
    case 'choice': return html`<label class="field">${label}
        <select name=${name} required=${field.required}><option value="">Choose one</option>
          ${(field.options ?? []).map(o => html`<option key=${o} value=${o}>${o}</option>`)}</select></label>`;
    case 'text': return html`<label class="field">${label}
        <textarea name=${name} rows="3" required=${field.required}></textarea></label>`;
    default: return html`<label class="field">${label}
        <input name=${name} type=${field.type === 'number' ? 'number' : 'text'} step="any"
          required=${field.required} /></label>`;
  }
}

// The card of a decision leaves the list. The focus goes to the next one that is open, or to the view.
function focusNext(card) {
  const open = [...document.querySelectorAll('.approval')].filter(c => c !== card && c.querySelector('form'));
  /** @type {HTMLElement|null} */ (open[0] ?? document.getElementById('main'))?.focus();
}

/** Decision is one approval: the action, and two buttons while it is open. */
export function Decision({ approval: a, decided }) {
  const [busy, setBusy] = useState(false);
  const decide = async (form, decision) => {
    if (decision === 'approve' && !form.reportValidity()) return;
    const data = new FormData(form), body = { decision, action_hash: a.action_hash };
    if (data.get('comment')) body.comment = data.get('comment');
    if (decision === 'approve' && a.form?.length) body.answer = answerOf(a.form, data);
    const verb = decision === 'approve' ? 'Approve' : 'Reject';
    const sure = await ask({ title: `${verb}: ${visible(a.title || a.name).slice(0, 120)}`, yes: verb,
      danger: decision !== 'approve', text: 'The run goes on with your decision at once. It can\'t be taken back.' });
    if (!sure) return;
    setBusy(true);
    const done = await act(decision === 'approve' ? 'Approved.' : 'Rejected.', () =>
      call('POST', `/approvals/${a.approval_id}`, { body }));
    setBusy(false);
    refresh();
    if (done) { decided?.(done); focusNext(form.closest('.approval')); }
  };
  const open = a.state === 'open';
  const others = a.approvers === 'platform' && !session.value?.platform;
  const may = can('runs:approve') && !others;
  return html`<article class="card approval" data-row tabindex="-1" aria-label=${a.title || a.name}>
    <header class="card-head"><h2><${Safe} text=${a.title || a.name} max=${400} /></h2>
      <span class=${`state is-${a.state}`}><${Shape} state=${shapeOf[a.state]} />
        ${names[a.state] ?? a.state}</span></header>
    <p class="sub"><b><${Safe} text=${a.kind} max=${60} /></b> <${RunLink} id=${a.run_id} /> asked <${Ago}
        at=${a.opened_at} />${open && (a.expires_by === 'deadline'
            ? html`. Its run reaches its deadline <${Until} at=${a.expires_at} />, and ends then.`
      : html`. Without an answer it counts as ${a.default === 'approve' ? 'approved' : 'rejected'} <${Until}
          at=${a.expires_at} />.`)}</p>
    <h3>Exactly this would be done</h3>
    <${Json} value=${a.action} max=${64_000} label="The action" />
    <p class="hash dim mono" title=${`The answer is bound to this action: ${a.action_hash}`}>${a.action_hash}</p>
    ${open ? html`<form class="stack" onSubmit=${e => e.preventDefault()}>
        ${(a.form ?? []).map(f => html`<${Field} key=${f.name} field=${f} />`)}
      <label class="field"><span>Comment</span>
        <input name="comment" maxlength="4000" autocomplete="off" placeholder="Recorded with your decision" /></label>
      <div class="actions"><button type="button" class="primary" disabled=${busy || !may} onClick=${e =>
          decide(e.currentTarget.form, 'approve')}>Approve</button>
        <button type="button" class="danger" disabled=${busy || !may} onClick=${e =>
          decide(e.currentTarget.form, 'reject')}>Reject</button>
        ${others && html`<span
            class="dim">The platform decides about this: it touches the server's own machine.</span>`}
        ${!others && !may && html`<span
            class="dim">This login may not decide: it needs the scope runs:approve.</span>`}</div></form>`
    : html`<p class="sub">${names[a.state] ?? a.state}${a.decided_by &&
        html` by <b><${Safe} text=${a.decided_by.name} /></b>`} ${a.decided_at &&
          html`<${Ago} at=${a.decided_at} />`}${a.comment && html`: <${Safe} text=${a.comment} />`}</p>
      ${a.answer !== undefined && html`<${Value} value=${a.answer} />`}`}</article>`;
}

export default function Approvals({ query }) {
  const state = query.get('state') ?? 'open';
  const { items, error, next } = useList('approvals', '/approvals', 'approvals', state === 'open' ? { limit: 100 }
    : { state, limit: 50, cursor: query.get('cursor') ?? '' });
  return html`<${Page} title="Approvals"
      sub="A run states the exact action and waits for a person. Meanwhile it holds no worker.">
    <${Tabs} label="Approvals" at=${state} to=${s =>
      { location.hash = withQuery({ state: s === 'open' ? '' : s, cursor: '' }); }}
      tabs=${Object.keys(names).map(s => ({ id: s, name: names[s], state: shapeOf[s], count: s === 'open' &&
          state === 'open' ? items?.length : undefined }))} />
    <${Trouble} error=${error} />
    ${items === null ? !error && html`<${Loading} />` : items.length === 0
      ? html`<${Empty} title=${state === 'open' ? 'Nothing waits for you' : 'None'}>
      <p>An agent asks with <code>agent.Approve</code>, or with a wait of type <code>approval</code>. The answer is
        bound to the action that you see, by its hash.</p><//>`
    : html`<div class="grid-2">${items.map(a => html`<${Decision} key=${a.approval_id} approval=${a} />`)}</div>`}
    ${next && html`<div class="pager"><a href=${withQuery({ cursor: next })}>More</a></div>`}<//>`;
}
