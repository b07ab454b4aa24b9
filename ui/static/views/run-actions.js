// The actions on a run, beside its title.
import { html } from '../lib.js';
import { go, href } from '../router.js';
import { post, call, can, explain, isStill } from '../api.js';
import { refresh, useGet } from '../live.js';
import { mayHaveLetter, canRedrive } from '../letters.js';
import { ended } from '../format.js';
import { Menu, ask, act, copy, toast } from '../parts.js';
import { again, canRetry } from './run-next.js';

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

async function signal(run) {
  const a = await ask({ title: 'Send a signal', yes: 'Send',
      text: 'A signal that nobody waits for is kept for the next wait of its name.',
    fields: [{ name: 'name', label: 'Name', value: 'start_task' },
      { name: 'data', label: 'Data (JSON)', value: '{}', area: true }],
    run: async given => {
      let data;
      try { data = JSON.parse(given.data || 'null'); } catch { throw new Error('The data is no JSON.'); }
      if (!given.name) throw new Error('A signal has a name.');
      return post(`/runs/${run.run_id}/signals/${encodeURIComponent(given.name)}`, { data });
    } });
  if (a) toast('Sent.');
  refresh();
}

/** compareWith shows this run beside another one. */
async function compareWith(run) {
  const a = await ask({ title: 'Compare with another run', yes: 'Compare',
    fields: [{ name: 'id', label: 'The id of the other run', value: run.retry_of_run_id ?? '' }],
    run: async given => {
      const id = given.id.trim();
      if (!/^[0-9a-f-]{36}$/.test(id)) throw new Error('This is no id of a run.');
      return { id };
    } });
  if (a) go('/compare', { a: a.id, b: run.run_id });
}

/** save makes the file of a run and gives it to the person. */
async function save(run) {
  toast('Reading the run.');
  try {
    const { exported } = await import('../export.js');
    const a = document.createElement('a');
    a.href = URL.createObjectURL(new Blob([await exported(run.run_id)], { type: 'text/html' }));
    a.download = `${run.run_id}.html`;
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 60_000);
  } catch (e) { toast(`The run could not be exported: ${explain(e)}`, true); }
}

const toRun = id => go('/runs/' + id);

/** lettered tells whether there is a dead letter of a run that can be redriven. */
function useLetter(run, events) {
  // The log tells of a letter. Whether it is still there, and not redriven, is asked once.
  const lettered = mayHaveLetter(run) && events.some(e => e.type === 'run:dead_lettered');
  return canRedrive(useGet(lettered ? `/dlq/${run.run_id}` : '', {}).value);
}

/**
 * Actions are the buttons of a run, and a menu. The first one is what its state asks for.
 * @param {{run: any, events: any[], keys: string[]}} p keys are the steps that a retry can begin before
 */
export function Actions({ run, events, keys }) {
  const live = !ended(run.state), dead = useLetter(run, events);
  const control = can('runs:control'), create = can('runs:create');
  if (isStill()) return null;
  const failed = !live && run.state !== 'completed';
  return html`
    ${live && control && html`<button type="button" class="danger" onClick=${() => cancel(run)}
        disabled=${Boolean(run.cancel?.requested_at)}>${run.cancel?.requested_at ? 'Stopping' : 'Cancel'}</button>`}
    ${dead && control && html`<button type="button" class="primary" onClick=${() =>
        again(run, { verb: 'Redrive', path: `/dlq/${run.run_id}/redrive`, keys }, toRun)}>Redrive</button>`}
    ${canRetry(run) && create && html`<button type="button" class=${failed && !(dead && control) ? 'primary' : ''}
        onClick=${() => again(run, { verb: 'Retry', path: `/runs/${run.run_id}/retry`, keys }, toRun)}>Retry</button>`}
    ${run.retry_of_run_id && html`<a class="button" href=${href('/compare', { a: run.retry_of_run_id, b: run.run_id })}>
        Compare</a>`}
    <${Menu} label="More" items=${[
      live && control && { name: 'Send a signal', act: () => signal(run) },
      live && control && run.status !== 'deferred' &&
        { name: 'Leave it to itself (defer)', act: () =>
          act('Nobody waits for it now. It goes on.', () =>
            call('POST', `/runs/${run.run_id}/defer`, { body: {} })).then(refresh) },
      create && { name: 'Start one like this', act: () => go('/start', { like: run.run_id }) },
      { name: 'Compare with another run', act: () => compareWith(run) },
      { name: 'Export as one file', act: () => save(run) },
      ...copies(run),
      !live && control && { name: 'Delete', danger: true, act: async () => {
        if (await ask({ title: 'Delete this run?', yes: 'Delete', danger: true,
            text: 'The run, its log, its result and its artifacts are removed. This can\'t be taken back.' })
          && await act('Deleted.', () => call('DELETE', `/runs/${run.run_id}`))) go('/runs');
      } },
    ]} />`;
}
