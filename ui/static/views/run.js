// One run: what it is and does, its timeline, its log, and what it was given and has made.
import { html, useMemo, cls } from '../lib.js';
import { href, go, change, withQuery } from '../router.js';
import { can } from '../api.js';
import { useTree } from '../tree.js';
import { useJournal } from '../journal.js';
import { stepRows, totalOf } from '../steps.js';
import { ended, short, instant, ms, stateNames, count } from '../format.js';
import { Page, Card, Facts, State, Ago, Until, Tabs, Trouble, Loading, Empty, RunLink, Took, CopyButton,
  statusOf } from '../parts.js';
import { Safe, visible } from '../safe.js';
import { Timeline } from '../timeline/timeline.js';
import { Log } from './run-log.js';
import { Steps, Forms, usageText } from './run-steps.js';
import { Pane } from './run-pane.js';
import { Actions } from './run-actions.js';
import { Next, again, canRetry } from './run-next.js';
import { Data, Waits, Children } from './run-parts.js';
import { Terminal } from './run-terminal.js';
import { Journal, Inbox } from './run-journal.js';
import { useWaits, whyOf } from './waiting.js';

/** keysOf are the steps that a retry can begin before. */
const keysOf = rows => rows.filter(r => r.entry && !r.entry.key.startsWith('_')).map(r => r.entry.key);

/** retryFrom is the button that begins a retry before the selected step. */
const retryFrom = (run, picked, rows) => picked?.run === run.run_id && picked.row?.entry && canRetry(run)
  && run.class !== 'process' && can('runs:create') && !picked.row.entry.key.startsWith('_')
  && html`<button type="button" onClick=${() => again(run, { verb: 'Retry', path: `/runs/${run.run_id}/retry`,
    keys: keysOf(rows), from: picked.row?.entry.key }, made => go('/runs/' + made))}>Retry from here</button>`;

function Header({ run, why, waits, below, used }) {
  const live = !ended(run.state);
  return html`<${Card}>
    ${run.error && html`<p class="trouble" role="alert">
        <span><code>${run.error.code}</code> <${Safe} text=${run.error.message ?? ''} max=${1500} /></span></p>`}
    <${Next} run=${run} why=${why} waits=${waits} children=${below} />
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
      ['Used', usageText(used)],
      ['Created', html`<${Ago} at=${run.created_at} />`],
      ['Queue', run.priority ? `${run.queue}, priority ${run.priority}` : run.queue],
      ['Class', run.class],
      ['Conversation', run.thread_id && html`<a href=${href('/threads/' + run.thread_id)}>${short(run.thread_id)}</a>`],
      ['Parent', run.parent_run_id && html`<${RunLink} id=${run.parent_run_id} />`],
      ['Retry of', run.retry_of_run_id && html`<${RunLink} id=${run.retry_of_run_id} />`],
      ['Continues', run.continuation_of_run_id && html`<${RunLink} id=${run.continuation_of_run_id} />`],
      ['Schedule', run.schedule_name && html`<a href=${href('/schedules/' + encodeURIComponent(run.schedule_name))}>
        ${run.schedule_name}</a>${run.scheduled_for && html`, for ${instant(run.scheduled_for)}`}`],
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

/** idOf is how the address names what is selected: a row or a line, of this run or of another one of its tree. */
const idOf = (picked, main) => (picked.run === main ? '' : picked.run + '~') + picked.id;

/**
 * selectedIn finds what the address has selected, among rows and lines.
 * @param {string} sel
 * @param {any} tree
 * @param {string} main
 * @param {(id: string) => any[]} rowsOf
 */
function selectedIn(sel, tree, main, rowsOf) {
  if (!sel) return null;
  const cut = sel.indexOf('~'), run = cut < 0 ? main : sel.slice(0, cut), id = sel.slice(cut + 1);
  if (!tree.has(run)) return null;
  const seq = id.startsWith('line:') ? Number(id.slice(5)) : 0;
  const row = rowsOf(run).find(r => r.id === id || (seq && (r.event?.seq === seq || r.last?.seq === seq)));
  const event = seq ? tree.get(run).events.find(e => e.seq === seq) : row?.event;
  return row || event ? { run, id, row, event, at: seq ? ms(event?.at) : row.to } : null;
}

export default function Run({ parts: [id], query }) {
  const { run, root, tree, version, error, loading, cut, deleted } = useTree(id);
  const journal = useJournal(id);
  const waits = useWaits(run, run?.state === 'queued' || run?.state === 'suspended');
  const why = whyOf(run, waits.value);
  const tab = query.get('tab') ?? 'log', sel = query.get('sel') ?? '', lines = query.get('form') === 'lines';
  const at = useMemo(() => Date.now(), [version, journal.entries]);
  const runOf = one => tree.get(one)?.run;
  const rows = useMemo(() => (run ? stepRows(run, tree.get(id)?.events ?? [], journal.entries, at, runOf) : []),
    [version, journal.entries]);
  const rowsOf = one => (one === id ? rows : stepRows(runOf(one), tree.get(one)?.events ?? [], [], at, runOf));
  const picked = useMemo(() => selectedIn(sel, tree, id, rowsOf), [sel, rows]);
  const pick = p => change({ sel: p ? idOf(p, id) : '' });
  if (!run || deleted) {
    return html`<${Page} title="Run">${deleted || error?.status === 404
      ? html`<${Empty} title="There is no such run">It was deleted, is older than the server keeps runs, or belongs to
          another tenant. <a href=${href('/runs')}>See all runs</a>.<//>`
      : error ? html`<${Trouble} error=${error} />` : loading && html`<${Loading} />`}<//>`;
  }
  const entry = tree.get(id), events = entry?.events ?? [];
  const below = [...tree.values()].filter(e => e.run.parent_run_id === id).map(e => e.run), children = below.length;
  const form = html`<${Forms} lines=${lines} to=${f => change({ form: f })} />`;
  const output = run.class === 'process' || events.some(e => e.type === 'x:output');
  const tabs = [{ id: 'log', name: 'Log', count: lines ? run.last_seq : undefined }, output && { id: 'output',
    name: 'Output' },
    { id: 'data', name: 'Input and result' },
    { id: 'waits', name: 'Waits' }, { id: 'inbox', name: 'Inbox' },
    { id: 'children', name: 'Children', count: children ? count(children) + (cut ? '+' : '') : undefined },
      { id: 'journal', name: 'Journal' }].filter(Boolean);
  return html`<${Page} crumbs=${html`<a href=${href('/runs')}>Runs</a> / <a
        href=${href('/runs', { kind: run.kind })}>${visible(run.kind).slice(0, 60)}</a>`}
      name=${`${visible(run.kind).slice(0, 60)} ${short(run.run_id)} · ${stateNames[statusOf(run)] ?? run.state}`}
      title=${html`<span class="run-head"><span>${visible(run.kind).slice(0, 120)}</span>
        <${State} state=${statusOf(run)} /></span>`}
      sub=${html`<span class="ids"><span class="id">${run.run_id}</span>
        <${CopyButton} text=${run.run_id} className="linkish" about="Copy the id" /></span>`}
      actions=${html`<${Actions} run=${run} events=${events} keys=${keysOf(rows)} />`}>
    <${Trouble} error=${error} />
    <${Header} run=${run} why=${why} waits=${waits.value?.waits ?? []} below=${below} used=${totalOf(rows)} />
    <${Card} title="Timeline"><${Timeline} tree=${tree} version=${version} root=${root || id} main=${id} rows=${rows}
        selected=${picked} select=${pick} waits=${why?.text} query=${query} /><//>
    <${Tabs} label="Parts of the run" at=${tab} to=${t => { location.hash = withQuery({ tab: t }); }} tabs=${tabs} />
    <div class=${cls('split', picked && 'has-pane')}><div class="split-main">
    ${tab === 'log' && (lines ? html`<${Log} key=${id} run=${run} log=${entry?.log} version=${entry?.log.version}
        picked=${picked} pick=${pick} form=${form} />`
      : html`<${Steps} key=${id} run=${run} rows=${rows} log=${entry?.log} form=${form}
          selected=${picked && picked.run === id ? picked.row?.id : ''} pick=${r => pick({ run: id, id: r.id })} />`)}
    ${tab === 'output' && html`<${Terminal} key=${id} run=${run} log=${entry?.log} version=${entry?.log.version} />`}
    ${tab === 'data' && html`<${Data} run=${run} />`}
    ${tab === 'waits' && html`<${Waits} run=${run} />`}
    ${tab === 'inbox' && html`<${Inbox} run=${run} />`}
    ${tab === 'children' && html`<${Children} id=${id} tree=${tree} cut=${cut} />`}
    ${tab === 'journal' && html`<${Journal} run=${run} />`}</div>
    ${picked && html`<${Pane} at=${picked} main=${id} close=${() => pick(null)}
        retry=${retryFrom(run, picked, rows)} />`}</div>
  <//>`;
}
