// The workers of a conversation while it goes on: a card for each, which unfolds to its own log, and what they and
// the agent ask.
import { html, useState, useMemo } from '../lib.js';
import { href } from '../router.js';
import { useList } from '../live.js';
import { stepRows, folded } from '../steps.js';
import { duration, now, ms, ended, count, stateNames } from '../format.js';
import { Shape, Ago, statusOf } from '../parts.js';
import { Safe } from '../safe.js';
import { Markdown } from '../markdown.js';
import { Decision } from './approvals.js';
import { shapeOf, told } from './run-steps.js';

/** newest is how many steps a card shows: the last ones. */
const newest = 30;

/** Own is the log of a worker: its last steps, and what it is writing. */
function Own({ entry, text }) {
  const { run, log } = entry;
  const rows = useMemo(() => folded(stepRows(run, entry.events, [], Date.now())).filter(r => r.kind !== 'end'),
    [log?.version, run]);
  return html`${rows.length > newest && html`<p class="sub">The last ${newest} of ${count(rows.length)} steps.</p>`}
    <ol class="worker-log">${rows.slice(-newest).map(r => html`<li key=${r.id}><span class=${'text-'
      + shapeOf(r.state)}>
      <${Shape} state=${shapeOf(r.state)} /></span> <b>${r.n ? `${count(r.n)} × ` : ''}<${Safe} text=${r.name}
        max=${60} /></b>
      <span class="dim"><${Safe} text=${told(r).slice(0, 400)} max=${160} /></span></li>`)}</ol>
    ${text && html`<${Markdown} text=${text} />`}
    <p class="row"><a href=${href('/runs/' + run.run_id)}>Its run</a>${run.thread_id && html`<a
        href=${href('/threads/' + run.thread_id)}>Its conversation</a>`}</p>`;
}

/** Worker is the card of one worker. Its log is made when it is unfolded. */
function Worker({ entry, streamed }) {
  const { run: r } = entry, live = !ended(r.state);
  const [open, setOpen] = useState(false);
  return html`<details class="worker" open=${open} onToggle=${e => setOpen(e.currentTarget.open)}>
    <summary><span class=${'text-' + statusOf(r)}><${Shape} state=${statusOf(r)} /></span>
      <b><${Safe} text=${r.kind} max=${50} /></b> <span class="dim">${stateNames[statusOf(r)]}${live && r.activity
        ? html`: <${Safe} text=${r.activity} max=${90} />` : ''} · ${live ? duration(now.value - ms(r.created_at))
        : duration(r.duration_ms)}${live && r.seen_at ? html` · heard from <${Ago} at=${r.seen_at} />`
          : ''}</span></summary>
    ${open && html`<${Own} entry=${entry} text=${live ? streamed(entry.events) : ''} />`}</details>`;
}

/** Workers are the cards of the runs below an answer. */
export const Workers = ({ entries, streamed }) => html`<div class="workers" role="group" aria-label="Workers">
  ${entries.map(e => html`<${Worker} key=${e.run.run_id} entry=${e} streamed=${streamed} />`)}</div>`;

/** Asks are the open approvals of one run, in place. */
export function Asks({ run, decided }) {
  const approvals = useList('approvals', '/approvals', 'approvals', { run_id: run.run_id, limit: 20 });
  return html`${(approvals.items ?? []).filter(a => a.state === 'open').map(a => html`<${Decision} key=${a.approval_id}
      approval=${a} decided=${decided} />`)}`;
}
