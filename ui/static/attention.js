// Lines that may need a person: one watch, and one list of lines that the home shows and the menu counts.
import { signal } from './lib.js';
import { useList } from './live.js';
import { can } from './api.js';
import { href } from './router.js';
import { count } from './format.js';

/** The lines that may need a person, null until they are known. view is where the menu counts it. */
export const lines = signal(/** @type {any} */ (null));

/** number writes a count, which may be bounded. */
const number = c => count(c.count) + (c.at_least ? '+' : '');
const runs = n => (n === 1 ? 'run' : 'runs');

/** linesOf makes the lines of an answer. A line of nothing is left out. */
export function linesOf(a, webhooks) {
  const failing = webhooks.filter(w => w.failing_at && !w.disabled);
  return [
    { id: 'approvals', view: 'approvals', state: 'suspended', of: a.approvals, to: href('/approvals'),
      text: a.approvals.count === 1 ? 'approval waits for a decision' : 'approvals wait for a decision' },
    { id: 'failed', view: 'runs', state: 'failed', of: a.failed,
      to: href('/runs', { status: 'failed,timeout', finished_after: a.since }),
        text: `${runs(a.failed.count)} failed in the last hour`,
      more: a.causes.map(c => ({ code: c.code, count: number(c), text: c.kinds.join(', '), why: c.message,
        to: href('/runs', { error_code: c.code, finished_after: a.since }) })) },
    ...a.unserved.map(u => ({ id: `unserved ${u.queue} ${u.kind}`, view: 'workers', state: 'queued', of: u,
      to: href('/runs', { state: 'queued', queue: u.queue, kind: u.kind }),
      text: `queued ${runs(u.count)} of kind ${u.kind} on queue ${u.queue}: no worker polls for ${u.count === 1 ? 'it'
        : 'them'}` })),
    { id: 'held', view: 'runs', state: 'held', of: a.held, to: href('/runs', { held: 'true' }),
      text: `${runs(a.held.count)} on hold because of a defect of the code` },
    { id: 'webhooks', view: 'webhooks', state: 'failed', of: { count: failing.length },
      to: href(failing.length === 1 ? '/webhooks/' + failing[0].webhook_id : '/webhooks'),
      text: failing.length === 1 ? 'webhook fails' : 'webhooks fail' },
    { id: 'silent', view: 'runs', state: 'timeout', of: a.silent,
      to: href('/runs', { class: 'process', seen_before: a.silent_before }),
      text: `${a.silent.count === 1 ? 'process gives' : 'processes give'} no sign of life` },
    { id: 'ending', view: 'runs', state: 'timeout', of: a.ending,
      to: href('/runs', { deadline_before: a.ending_at, created_before: a.ending_created }),
      text: `${runs(a.ending.count)} will reach the deadline within 5 minutes` },
  ].filter(l => l.of.count > 0).map(({ of, ...l }) => ({ ...l, n: of.count, count: number(of) }));
}

/** useAttention watches. The frame calls it once, and everything else reads lines. */
export function useAttention() {
  const a = useList('attention', '/attention', '').items;
  const hooks = useList('webhooks', can('webhooks:admin') ? '/webhooks' : '', 'webhooks', { limit: 200 });
  const answer = Array.isArray(a) ? a[0] : a; // a list of one over the socket
  const now = answer && (hooks.items || !can('webhooks:admin') || hooks.error)
    ? linesOf(answer, hooks.items ?? []) : null;
  const key = JSON.stringify(now);
  if (key !== JSON.stringify(lines.peek())) queueMicrotask(() => { lines.value = now; });
}
