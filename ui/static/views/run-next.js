// The next action of a person on a run, for each state: end a hold or give up, retry, answer what it waits for, see
// to what holds it up. Nothing is offered that the server would refuse.
import { html, useState, useRef, none } from '../lib.js';
import { href } from '../router.js';
import { post, can, newKey } from '../api.js';
import { refresh, useList } from '../live.js';
import { ended, count, ms, now } from '../format.js';
import { Ago, Until, State, RunLink, Trouble, act, ask, toast, statusOf } from '../parts.js';
import { Safe, visible } from '../safe.js';
import { Decision } from './approvals.js';
import { Waiting } from './waiting.js';

/** givesUp ends a run that is on hold, as a dead letter. */
async function giveUp(run) {
  const a = await ask({ title: 'Give this run up?', yes: 'Give it up', danger: true,
    text: `It ends as failed with ${run.hold.code}, and becomes a dead letter. Its waiters and its parent are told.`,
    run: () => post(`/runs/${run.run_id}/dead-letter`) });
  if (a) toast('Given up.');
  refresh();
}

const endHold = run => act('Any worker may take it now.', () => post(`/runs/${run.run_id}/release-hold`)).then(refresh);

/** Held says what the defect was, which builds have it, and when the run is tried again. */
function Held({ run }) {
  const h = run.hold, builds = (h.builds ?? []).map(b => b || 'unknown');
  return html`<div class="next is-held"><p class="trouble"><span>On hold since <${Ago} at=${h.since} />:
      <code>${h.code}</code> <${Safe} text=${h.message ?? ''} max=${1500} /></span></p>
    <p class="sub">${count(h.count)} ${h.count === 1 ? 'defect' : 'defects'}, by build${builds.length === 1 ? ''
      : 's'}${' '}
      ${builds.map((b, i) => html`${i ? ', ' : ''}<code><${Safe} text=${b} max=${60} /></code>`)}.${' '}
      ${h.next_at && ms(h.next_at) > now.value ? html`It is tried again <${Until} at=${h.next_at} />,
        or as soon as a worker of another build polls.`
        : 'It may be tried at any time.'} Without progress it fails <${Until} at=${h.until} />.</p>
    ${can('runs:control') && html`<div class="row"><button type="button" class="primary" onClick=${() =>
        endHold(run)}>End its hold</button>
      <button type="button" class="danger" onClick=${() => giveUp(run)}>Give it up</button></div>`}</div>`;
}

/** Signal is the form for a signal that a run waits for. */
function Signal({ run, name }) {
  const [busy, setBusy] = useState(false), [error, setError] = useState(none);
  const sent = useRef({ text: '', key: '' });
  const send = async e => {
    e.preventDefault();
    const text = String(new FormData(e.currentTarget).get('data') ?? '').trim();
    let data;
    try { data = text ? JSON.parse(text) : null; } catch { setError({ message: 'The data is no JSON.' }); return; }
    setBusy(true);
    setError(null);
    // The same data that is sent again, because there was no answer, is one signal.
    if (sent.current.text !== text || !sent.current.key) sent.current = { text, key: newKey() };
    try {
      await post(`/runs/${run.run_id}/signals/${encodeURIComponent(name)}`, { data }, { once: sent.current.key });
      toast('Sent.');
      sent.current.key = '';
      refresh();
    } catch (problem) { setError(problem); }
    setBusy(false);
  };
  return html`<form class="next-form" onSubmit=${send}><label class="field"><span>Data of the signal
        <code>${visible(name)}</code> (JSON)</span>
      <textarea name="data" rows="2" spellcheck="false">{}</textarea></label>
    <${Trouble} error=${error} />
    <div class="row"><button type="submit" class="primary" disabled=${busy}>Send the signal</button></div></form>`;
}

const left = w => (w.timeout_at ? html` It times out <${Until} at=${w.timeout_at} />.` : '');

function Wait({ run, wait: w, children }) {
  switch (w.type) {
    case 'signal': return html`<p>It waits for the signal <b><${Safe} text=${w.name || w.wait_id} max=${120} /></b>
        since <${Ago} at=${w.opened_at} />.${left(w)}</p>${can('runs:control') &&
        html`<${Signal} key=${w.wait_id} run=${run} name=${w.name || w.wait_id} />`}`;
    case 'children': {
      const live = children.filter(c => !ended(c.state));
      return html`<p>It waits for its children: ${count(w.ended ?? 0)} of ${count(w.children ?? 0)} have
          ended.${left(w)}</p>
        <ul class="next-runs">${live.slice(0, 5).map(c => html`<li key=${c.run_id}><${State} state=${statusOf(c)} />
            <b><${Safe} text=${c.kind} max=${60} /></b> <${RunLink} id=${c.run_id} /> <span class="dim"><${Safe}
                text=${c.error?.code ?? c.activity ?? ''} max=${80} /></span></li>`)}</ul>
        ${live.length > 5 && html`<p><a href=${href('/runs', { parent_run_id: run.run_id })}>All children</a></p>`}`;
    }
    case 'message': return html`<p>It waits for a message${run.thread_id ? html` in its
        <a href=${href('/threads/' + run.thread_id)}>conversation</a>` : ''}.${left(w)}</p>`;
    case 'callback': return html`<p>It waits for a callback from outside, by whoever has its token: <b><${Safe}
        text=${w.name || w.wait_id} max=${120} /></b>.${left(w)}</p>`;
    case 'timer': return html`<p>It sleeps${w.timeout_at ? html`, and goes on <${Until} at=${w.timeout_at} />`
      : ''}.</p>`;
    default: return null;
  }
}

/** Waits is what a suspended run waits for, with the forms that answer it. */
function Waits({ run, waits, children }) {
  const asked = waits.some(w => w.type === 'approval');
  const approvals = useList('approvals', asked ? '/approvals' : '', 'approvals', { run_id: run.run_id, limit: 20 });
  const others = waits.filter(w => w.type !== 'approval');
  if (!waits.length) return null;
  return html`<div class="next">${others.map(w => html`<${Wait} key=${w.wait_id} run=${run} wait=${w}
      children=${children} />`)}
    ${(asked && approvals.items ? approvals.items : []).filter(a => a.state === 'open').map(a => html`<${Decision}
        key=${a.approval_id} approval=${a} />`)}</div>`;
}

/** resume ends the pause of a queue. */
const resume = queue => act('Resumed.', () => post(`/queues/${encodeURIComponent(queue)}/resume`)).then(refresh);

/** Queued says why a queued run waits, with what can be done about it. */
const Queued = ({ run, why }) => html`<div class="next"><${Waiting} run=${run} why=${why} />
  ${why.reason === 'queue_paused' && can('runs:control') && html`<div class="row"><button type="button"
      class="primary" onClick=${() => resume(run.queue)}>Resume the queue</button></div>`}
  ${why.reason === 'unserved' && html`<p class="sub">
      Start a worker that serves this kind on this queue. The run is taken
      at once.</p>`}
  ${why.reason === 'thread_busy' && run.thread_id && html`<p class="sub"><a href=${href('/threads/' + run.thread_id)}>
      See its conversation</a>: another run of it goes first.</p>`}</div>`;

/** Next is the block at the top of a run's page. */
export function Next({ run, why, waits, children }) {
  if (run.hold) return html`<${Held} run=${run} />`;
  if (why) return html`<${Queued} run=${run} why=${why} />`;
  if (run.state === 'suspended') return html`<${Waits} run=${run} waits=${waits} children=${children} />`;
  return null;
}

/** localQueue is the queue of perdure exec: only a runner on its host may take such a run again. */
const localQueue = 'exec-local';

/** canRetry tells whether the server would start a run like this one again. */
export const canRetry = run => ended(run.state) && !(run.class === 'process' && run.queue === localQueue);

/**
 * again starts a run again. Where it begins is asked, if there is a choice.
 * @param {any} run
 * @param {{verb: string, path: string, keys: string[], from?: string}} o
 * @param {(id: string) => void} done
 */
export async function again(run, { verb, path, keys, from = '' }, done) {
  const agent = run.class === 'agent', cause = run.error?.cause_key;
  const options = /** @type {string[][]} */ ([['', agent ? (cause ? `before ${cause}, which has failed`
    : 'where it was: no recorded step is repeated')
    : 'from the start'],
  !agent && keys.length && !cause && ['journal', 'where it was: no recorded step is repeated'],
  agent && ['start', 'from the start: everything is executed again'],
  ...keys.map(k => [k, `before ${k}`])].filter(Boolean));
  const a = await ask({ title: `${verb} this run?`, yes: verb,
    text: 'It becomes a new run with the same input.',
    fields: run.class === 'process' || (options.length < 2) ? [] : [{ name: 'from', label: 'It begins', value: from,
      options }],
    run: given => post(path, given.from ? { from: given.from } : {}) });
  if (a) done(a.run_id ?? a.redriven_by_run_id);
}
