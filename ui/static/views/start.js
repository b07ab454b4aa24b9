// Starting a run: a form, or an earlier run with its input changed.
import { html, useState, useEffect, none } from '../lib.js';
import { go } from '../router.js';
import { post, can, parse } from '../api.js';
import { useList, useGet } from '../live.js';
import { json } from '../format.js';
import { Page, Trouble, copy, RunLink } from '../parts.js';
import { Safe } from '../safe.js';

/** bodyOf reads the form. */
function bodyOf(form) {
  const data = new FormData(form), f = name => String(data.get(name) ?? '').trim();
  /** @type {Record<string, any>} */
  const body = { kind: f('kind') };
  if (f('input')) body.input = parse(f('input'));
  for (const k of ['queue', 'timeout', 'delay', 'class']) if (f(k)) body[k] = f(k);
  for (const k of ['priority', 'max_attempts']) if (f(k)) body[k] = Number(f(k));
  const meta = f('metadata').split('\n').map(l => l.trim()).filter(Boolean);
  if (meta.length) body.metadata = Object.fromEntries(meta.map(l =>
      { const i = l.indexOf('='); return i < 0 ? [l, ''] : [l.slice(0, i), l.slice(i + 1)]; }));
  return body;
}

const shell = text => `'${text.replace(/'/g, `'\\''`)}'`;

export default function Start({ query }) {
  const like = useGet(query.get('like') ? '/runs/' + query.get('like') : '', {});
  const kinds = useList('', '/kinds', 'kinds', { limit: 200 });
  const [error, setError] = useState(none), [busy, setBusy] = useState(false),
    [kind, setKind] = useState(query.get('kind') ?? '');
  const from = like.value;
  useEffect(() => { if (from) setKind(from.kind); }, [from]);
  const known = kinds.items?.find(k => k.kind === kind);
  const read = form => {
    try { return bodyOf(form); } catch (e) { setError(Object.assign(new Error(`The input is no JSON: ${e.message}`),
        { code: '', field: '' })); return null; }
  };
  const submit = async e => {
    e.preventDefault();
    const body = read(e.currentTarget);
    if (!body) return;
    setBusy(true);
    setError(null);
    try { go('/runs/' + (await post('/runs', body)).run_id); } catch (problem) { setError(problem);
      } finally { setBusy(false); }
  };
  const copyAs = (e, how) => {
    const body = read(e.currentTarget.form);
    if (!body) return;
    if (how === 'curl') copy(`curl -s ${location.origin}/api/v1/runs -H "Authorization: Bearer $PERDURE_KEY" -H 'Content-Type: application/json' -d ${shell(JSON.stringify(body))}`);
    if (how === 'cli') copy(`PERDURE_URL=${location.origin} perdure run ${shell(body.kind)}${body.input !== undefined
        ? ` --input ${shell(JSON.stringify(body.input))}` : ''}${body.queue ? ` --queue ${shell(body.queue)}`
        : ''}${body.timeout ? ` --timeout ${body.timeout}` : ''}`);
    if (how === 'go') copy(`run, err := c.Start(ctx, api.StartRun{Submission: perdure.Submission{Kind: ${JSON.stringify(body.kind)}, Input: json.RawMessage(\`${JSON.stringify(body.input ?? null)}\`)}})`);
  };
  return html`<${Page} title="Start a run" sub=${from
      ? html`Like <${RunLink} id=${from.run_id} />, with what you change.`
      : 'The run is stored before the server answers. It goes on whatever happens to this page.'}>
    <${Trouble} error=${error ?? like.error} />
    <form class="card start" key=${from?.run_id ?? 'new'} onSubmit=${submit}>
      <label class="field"><span>Kind</span>
        <input name="kind" required list="kinds" value=${kind} onInput=${e => setKind(e.currentTarget.value)}
          autocomplete="off" placeholder="report" />
        <datalist id="kinds">${(kinds.items ?? []).map(k =>
            html`<option key=${k.kind} value=${k.kind}></option>`)}</datalist>
        <small>${known?.description ? html`<${Safe} text=${known.description} max=${200} />`
            : 'What is to be done. A worker that polls for this kind takes it.'}</small></label>
      <label class="field"><span>Input</span>
        <textarea name="input" rows="9" spellcheck="false" placeholder='{"host": "cube"}'>
          ${from?.input !== undefined ? json(from.input) : ''}</textarea><small>Any JSON, or nothing.</small></label>
      <div class="grid-3"><label class="field"><span>Queue</span>
          <input name="queue" value=${from?.queue ?? ''} placeholder="default" /></label>
        <label class="field"><span>Deadline after</span><input name="timeout" placeholder="1h" /></label>
        <label class="field"><span>Not before</span><input name="delay" placeholder="0s from now" /></label>
        <label class="field"><span>Priority</span>
          <input name="priority" type="number" min="-100" max="100" value=${from?.priority || ''}
            placeholder="0" /></label>
        <label class="field"><span>Attempts</span>
          <input name="max_attempts" type="number" min="1" max="100" placeholder="default" /></label>
        <label class="field"><span>Class</span>
          <select name="class" value=${from?.class ?? ''}><option value="">default</option>
            <option value="task">task</option><option value="agent">agent</option></select></label></div>
      <label class="field"><span>Metadata</span>
        <textarea name="metadata" rows="3" spellcheck="false" placeholder="host=cube">
          ${Object.entries(from?.metadata ?? {}).map(([k, v]) => `${k}=${v}`).join('\n')}</textarea>
          <small>A line each, name=value. Lists of runs can be filtered by it.</small></label>
      <div class="actions"><button type="submit" class="primary" disabled=${busy || !can('runs:create')}>Start</button>
        <button type="button" onClick=${e => copyAs(e, 'curl')}>Copy as curl</button>
        <button type="button" onClick=${e => copyAs(e, 'cli')}>Copy as CLI</button>
        <button type="button" onClick=${e => copyAs(e, 'go')}>Copy as Go</button></div>
    </form><//>`;
}
