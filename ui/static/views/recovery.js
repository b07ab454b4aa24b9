// Recovery of processes: which live, what became of the others, and what was done at the start.
import { html } from '../lib.js';
import { call, can } from '../api.js';
import { useList, refresh } from '../live.js';
import { duration, clock, ms, instant } from '../format.js';
import { Page, Card, Table, Trouble, Loading, RunLink, Facts, ask, act } from '../parts.js';
import { Safe } from '../safe.js';

const at = '/api/admin/recovery/jobs/';

const Command = ({ of: j }) => html`<span class="command"><${Safe} text=${j.command ?? ''} max=${120}
  color=${false} /></span>`;

export default function Recovery() {
  const status = useList('', at + 'status', 'recovery');
  const beats = useList('', at + 'heartbeats', 'jobs', { limit: 100 });
  const sentinels = useList('', at + 'sentinels', 'sentinels', { limit: 100 });
  const failed = useList('', at + 'failed', 'failedJobs', { limit: 50 });
  const log = useList('', '/api/admin/startup-log', 'lines', { limit: 200 });
  const summary = beats.body?.summary, s = status.items, aside = sentinels.body?.setAside ?? [];
  const resume = async id => {
    if (await ask({ title: 'Resume this process?', yes: 'Resume',
        text: 'A live one is watched once more. A failed one becomes a new run.' })) {
      await act('Done.', () => call('POST', at + 'resume', { body: { jobIds: [id] } }));
      refresh();
    }
  };
  const may = can('platform:admin');
  return html`<${Page} title="Recovery"
      sub="Commands outlive the server. After a restart it finds them again by the files they leave: sentinels,
        results, output.">
    <${Trouble} error=${status.error} />
    <${Card} title="Since this node's start">
      ${s ? html`<${Facts} of=${[['State', s.state], ['Began', s.startedAt && instant(s.startedAt)],
          ['Finished', s.finishedAt && instant(s.finishedAt)], ['Watched', String(s.watched)],
            ['Re-attached', String(s.reattached)], ['Results taken', String(s.adopted)], ['Given up', String(s.dead)],
              ['Files set aside', String(s.setAside)]]} />` : html`<${Loading} />`}<//>
    <${Card} title="Live processes">${summary &&
        html`<p class="row tiers">${['fresh', 'stale', 'dead'].map(tier => html`<span key=${tier}
          class=${`state is-${summary[tier] ? tier : 'none'}`}>${summary[tier]} ${tier}</span>`)}</p>`}
      ${beats.items?.length ? html`<${Table} label="Live processes" rows=${beats.items} keyOf=${j => j.jobId}
          columns=${[
        { name: 'Tier', className: 'fit', cell: j => html`<span class=${'state is-' + j.status}>${j.status}</span>` },
          { name: 'Run', className: 'fit', cell: j => html`<${RunLink} id=${j.jobId} />` },
        { name: 'Command', className: 'grow', cell: j => html`<${Command} of=${j} /> <span
          class="dim">${j.agentEngine}</span>` },
          { name: 'Heartbeat', className: 'num', cell: j =>
            (j.ageSeconds < 1 ? 'now' : `${duration(j.ageSeconds * 1000)} ago`) },
        ...(may && beats.items.some(j => j.status !== 'fresh') ? [{ name: '', className: 'fit', cell: j =>
          j.status !== 'fresh' &&
            html`<button type="button" onClick=${() => resume(j.jobId)}>Watch again</button>` }] : [])]} />`
      : html`<p class="dim">None. <code>perdure exec -- command</code> starts one that outlives the server.</p>`}<//>
    ${failed.items?.length > 0 && html`<${Card} title="Lost processes">
        <${Table} label="Lost processes" rows=${failed.items} keyOf=${j => j.jobId} columns=${[
      { name: 'Run', className: 'fit', cell: j => html`<${RunLink} id=${j.jobId} />` },
        { name: 'Command', className: 'grow', cell: j => html`<${Command} of=${j} />` },
        { name: 'Why', className: 'grow', cell: j => html`<${Safe} text=${j.reason} />` },
          { name: 'When', className: 'fit', cell: j => instant(j.failedAt) },
      { name: '', className: 'fit', cell: j => may &&
        html`<button type="button" onClick=${() => resume(j.jobId)}>Resume</button>` }]} /><//>`}
    <${Card} title="Sentinels">${sentinels.items?.length
        ? html`<${Table} label="Sentinels" rows=${sentinels.items} keyOf=${x => x.jobId} columns=${[
      { name: 'Tier', className: 'fit', cell: x => html`<span class=${'state is-' + x.tier}>${x.tier}</span>` },
        { name: 'Run', className: 'fit', cell: x => html`<${RunLink} id=${x.jobId} />` },
      { name: 'Folder', className: 'grow', cell: x => html`<code>${x.workspacePath}</code>` },
        { name: 'Count', className: 'num', cell: x => x.counter },
          { name: 'Lock', className: 'fit', cell: x => (x.lockHeld ? 'held' : 'free') }]} />`
      : html`<p class="dim">No process of this node's workspace has a heartbeat file now.</p>`}
      ${aside.length > 0 && html`<h3 class="gap-top">Files that were set aside</h3>
          <${Table} label="Files set aside" rows=${aside} keyOf=${x => x.path}
            columns=${[{ name: 'File', className: 'grow', cell: x => html`<code>${x.path}</code>` },
                { name: 'Why', cell: x => html`<${Safe} text=${x.reason} />` }]} />`}<//>
    <${Card} title="Startup log">${log.items?.length
        ? html`<ol class="plain-log">${log.items.map((l, i) =>
            html`<li key=${i}><time class="dim">${clock(ms(l.at))}</time> ${l.jobId &&
                html`<${RunLink} id=${l.jobId} />`} <${Safe} text=${l.message} /></li>`)}</ol>`
                  : html`<p class="dim">Nothing was recorded.</p>`}<//><//>`;
}
