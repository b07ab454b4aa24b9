// One run: what it is and does, its timeline, its log, and what it was given and has made.
import { html, useState, useEffect, none } from '../lib.js';
import { go, href, withQuery } from '../router.js';
import { post, call, can } from '../api.js';
import { refresh } from '../live.js';
import { useTree } from '../tree.js';
import { ended, short, instant, stateNames } from '../format.js';
import { Page, Card, Facts, State, Ago, Until, Tabs, Trouble, Loading, Empty, Menu, RunLink, Json, Took, CopyButton,
  ask, act, copy, statusOf } from '../parts.js';
import { Safe, visible } from '../safe.js';
import { Timeline } from '../timeline/timeline.js';
import { Log } from './run-log.js';
import { Data, Waits, Children, Output } from './run-parts.js';
import { Journal, Inbox } from './run-journal.js';
import { Waiting, useWaiting } from './waiting.js';

// copies are ways to say the same elsewhere.
function copies(run) {
  const at = location.origin;
  return [
    { name: 'Copy as curl', act: () =>
      copy(`curl -s ${at}/api/v1/runs/${run.run_id} -H "Authorization: Bearer $PERDURE_KEY"`) },
    { name: 'Copy as CLI', act: () => copy(`PERDURE_URL=${at} perdure fg ${run.run_id}`) },
    { name: 'Copy as Go', act: () =>
      copy(`c := client.New(${JSON.stringify(at)}, os.Getenv("PERDURE_KEY"), client.Options{})\n`
        + `run, err := c.Get(ctx, ${JSON.stringify(run.run_id)})`) },
    { name: 'Copy the link', act: () => copy(location.href) },
    { name: 'Copy the id', act: () => copy(run.run_id) },
  ];
}

async function cancel(run) {
  const a = await ask({ title: 'Cancel this run?', yes: 'Cancel the run', danger: true,
      fields: [{ name: 'reason', label: 'Why (the agent is told)' }],
    text: 'It is asked to stop and may clean up first. Its children are asked too.' });
  if (a) await act('Asked to stop.', () => post(`/runs/${run.run_id}/cancel`, a.reason ? { reason: a.reason } : {}));
  refresh();
}

async function again(run, verb, path) {
  const a = await ask({ title: `${verb} this run?`, yes: verb,
      text: 'It becomes a new run with the same input. An agent goes on from what its journal has.' });
  if (!a) return;
  const made = await act('', () => post(path));
  if (made) go('/runs/' + (made.run_id ?? made.redriven_by_run_id));
}

async function signal(run) {
  const a = await ask({ title: 'Send a signal', yes: 'Send',
      text: 'A signal that nobody waits for is kept for the next wait of its name.',
    fields: [{ name: 'name', label: 'Name', value: 'start_task' },
      { name: 'data', label: 'Data (JSON)', value: '{}', area: true }] });
  if (a?.name) await act('Sent.', () => post(`/runs/${run.run_id}/signals/${encodeURIComponent(a.name)}`,
      { data: JSON.parse(a.data || 'null') }));
  refresh();
}

function Actions({ run }) {
  const live = !ended(run.state), dead = run.state === 'failed' || run.state === 'timeout';
  const control = can('runs:control'), create = can('runs:create');
  return html`
    ${live && control && html`<button type="button" class="danger" onClick=${() => cancel(run)}
        disabled=${Boolean(run.cancel?.requested_at)}>${run.cancel?.requested_at ? 'Stopping' : 'Cancel'}</button>`}
    ${dead && control && html`<button type="button" class="primary" onClick=${() =>
        again(run, 'Redrive', `/dlq/${run.run_id}/redrive`)}>Redrive</button>`}
    ${!live && create && html`<button type="button" onClick=${() =>
        again(run, 'Retry', `/runs/${run.run_id}/retry`)}>Retry</button>`}
    <${Menu} label="More" items=${[
      live && control && { name: 'Send a signal', act: () => signal(run) },
      live && control && run.status !== 'deferred' &&
        { name: 'Leave it to itself (defer)', act: () =>
          act('Nobody waits for it now. It goes on.', () =>
            call('POST', `/runs/${run.run_id}/defer`, { body: {} })).then(refresh) },
      run.hold && control && { name: 'End its hold', act: () =>
        act('Any worker may take it now.', () => post(`/runs/${run.run_id}/release-hold`)).then(refresh) },
      create && { name: 'Start one like this', act: () => go('/start', { like: run.run_id }) },
      ...copies(run),
      !live && control && { name: 'Delete', danger: true, act: async () => {
        if (await ask({ title: 'Delete this run?', yes: 'Delete', danger: true,
            text: 'The run, its log, its result and its artifacts are removed. This can\'t be taken back.' })
          && await act('Deleted.', () => call('DELETE', `/runs/${run.run_id}`))) go('/runs');
      } },
    ]} />`;
}

function Header({ run, why }) {
  const live = !ended(run.state);
  return html`<${Card}>
    ${run.error && html`<p class="trouble" role="alert">
        <span><code>${run.error.code}</code> <${Safe} text=${run.error.message ?? ''} max=${1500} /></span></p>`}
    ${run.hold && html`<p class="trouble">
        <span>On hold since <${Ago} at=${run.hold.since} />: <code>${run.hold.code}</code> <${Safe}
            text=${run.hold.message ?? ''} /></span></p>`}
    ${why?.reason !== 'held' && html`<${Waiting} run=${run} why=${why} />`}
    <${Facts} of=${[
      ['Work', run.status !== run.state && stateNames[run.state]?.toLowerCase()],
      ['Attempt', `${run.attempt} of ${run.max_attempts}`],
      ['Worker', live ? run.worker_id && html`<${Safe} text=${run.worker_id} />` : run.worker_id],
      ['Last sign of life', live && run.seen_at &&
        html`<span class=${'life is-' + run.tier}><${Ago} at=${run.seen_at} />
            ${run.tier ? ` · ${run.tier}` : ''}</span>`],
      ['Doing', live && run.activity && html`<${Safe} text=${run.activity} max=${200} />`],
      ['Progress', live && typeof run.progress?.done === 'number' && run.progress.done <= 1 &&
        html`${Math.round(run.progress.done * 100)} %<span class="bar">
            <i style=${{ width: `${run.progress.done * 100}%` }}></i></span>`],
      ['Who waits', live && (run.deferred_at ? html`nobody, since <${Ago} at=${run.deferred_at} />` : null)],
      ['Deadline', live ? html`<${Until} at=${run.deadline_at} />` : instant(run.deadline_at)],
      [live ? 'Running for' : 'Took', html`<${Took} run=${run} />`],
      ['Created', html`<${Ago} at=${run.created_at} />`],
      ['Queue', run.priority ? `${run.queue}, priority ${run.priority}` : run.queue],
      ['Class', run.class],
      ['Conversation', run.thread_id && html`<a href=${href('/threads/' + run.thread_id)}>${short(run.thread_id)}</a>`],
      ['Parent', run.parent_run_id && html`<${RunLink} id=${run.parent_run_id} />`],
      ['Retry of', run.retry_of_run_id && html`<${RunLink} id=${run.retry_of_run_id} />`],
      ['Continues', run.continuation_of_run_id && html`<${RunLink} id=${run.continuation_of_run_id} />`],
      ['Continued by', run.continued_by_run_id && html`<${RunLink} id=${run.continued_by_run_id} />`],
      ['Cancel', run.cancel?.requested_at &&
        html`asked <${Ago} at=${run.cancel.requested_at} />${run.cancel.acknowledged_at ? ', acknowledged' : ''}`],
      ['Late results', run.late_results > 0 &&
        html`<a href=${withQuery({ tab: 'data' })}>${run.late_results} kept</a>`],
    ]} />${Object.keys(run.metadata ?? {}).length > 0 && html`<div class="metas" role="group" aria-label="Metadata">
      ${Object.entries(run.metadata).map(([k, v]) => html`<a class="meta" key=${k}
        href=${href('/runs', { ['metadata.' + k]: v })}>${visible(k)}=<${Safe} text=${v}
          max=${120} /></a>`)}</div>`}<//>`;
}

/** Picked shows the event that was clicked in the timeline. */
function Picked({ picked, main, close }) {
  if (!picked) return null;
  const e = picked.event;
  return html`<div class="picked" aria-live="polite">
      <div class="row"><b class="mono">${visible(e.type)}</b>
        <span class="dim">line ${e.seq} · ${instant(e.at)} · attempt ${e.attempt}</span>
    ${picked.run !== main && html`<span class="dim">of <${RunLink} id=${picked.run} /></span>`}
    <button type="button" class="linkish" onClick=${close}>close</button></div>
    <${Json} value=${e.data} max=${4000} label="Data of the event" /></div>`;
}

export default function Run({ parts: [id], query }) {
  const { run, root, tree, version, error, loading } = useTree(id);
  const [picked, pick] = useState(none);
  const why = useWaiting(run);
  const tab = query.get('tab') ?? 'log';
  useEffect(() => pick(null), [id]);
  if (!run) {
    return html`<${Page} title="Run">${error
        ? (error.status === 404 ? html`<${Empty}
            title="There is no such run">It was deleted, is older than the server keeps runs, or belongs to another
              tenant. <a
                href=${href('/runs')}>See all runs</a>.<//>`
      : html`<${Trouble} error=${error} />`) : loading && html`<${Loading} />`}<//>`;
  }
  const entry = tree.get(id), events = entry?.events ?? [];
  const children = [...tree.values()].filter(e => e.run.parent_run_id === id).length;
  const output = run.class === 'process' || events.some(e => e.type === 'x:output');
  const tabs = [{ id: 'log', name: 'Log', count: run.last_seq }, output && { id: 'output', name: 'Output' },
    { id: 'data', name: 'Input and result' },
    { id: 'waits', name: 'Waits' }, { id: 'inbox', name: 'Inbox' },
    { id: 'children', name: 'Children', count: children || undefined },
      { id: 'journal', name: 'Journal' }].filter(Boolean);
  return html`<${Page} crumbs=${html`<a href=${href('/runs')}>Runs</a> / <a
        href=${href('/runs', { kind: run.kind })}>${visible(run.kind).slice(0, 60)}</a>`}
      title=${html`<span class="run-head"><span>${visible(run.kind).slice(0, 120)}</span>
        <${State} state=${statusOf(run)} /></span>`}
      sub=${html`<span class="ids"><span class="id">${run.run_id}</span>
        <${CopyButton} text=${run.run_id} className="linkish" about="Copy the id" /></span>`}
      actions=${html`<${Actions} run=${run} />`}>
    <${Trouble} error=${error} />
    <${Header} run=${run} why=${why} />
    <${Card} title="Timeline"><${Timeline} tree=${tree} version=${version} root=${root || id} main=${id}
        selected=${picked} select=${pick} waits=${why?.text} />
      <${Picked} picked=${picked} main=${id} close=${() => pick(null)} /><//>
    <${Tabs} label="Parts of the run" at=${tab} to=${t => { location.hash = withQuery({ tab: t }); }} tabs=${tabs} />
    ${tab === 'log' && html`<${Log} run=${run} events=${events} cut=${entry?.cut} picked=${picked} pick=${pick} />`}
    ${tab === 'output' && html`<${Output} events=${events} />`}
    ${tab === 'data' && html`<${Data} run=${run} />`}
    ${tab === 'waits' && html`<${Waits} run=${run} />`}
    ${tab === 'inbox' && html`<${Inbox} run=${run} />`}
    ${tab === 'children' && html`<${Children} id=${id} tree=${tree} />`}
    ${tab === 'journal' && html`<${Journal} run=${run} />`}
  <//>`;
}
