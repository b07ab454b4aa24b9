// Starting a run: a form, or an earlier run with its input changed.
import { html, useState, useEffect, useRef, none } from '../lib.js';
import { go, href } from '../router.js';
import { post, can, parse } from '../api.js';
import { useList, useGet, useRuns } from '../live.js';
import { json, stateNames } from '../format.js';
import { Page, Card, Tabs, Trouble, CopyButton, RunLink, Shape, Ago, statusOf } from '../parts.js';
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

const shell = text => (/^[\w./:-]+$/.test(text) ? text : `'${text.replace(/'/g, `'\\''`)}'`);

// The same call in other words. Each takes the body of POST /runs.
const ways = {
  cli: ['Command', b => (b.metadata // has no flag
    ? `echo ${shell(JSON.stringify(b))} |\n  perdure run --batch -`
    : [`perdure run ${shell(b.kind || 'KIND')}`, b.input !== undefined && `--input ${shell(JSON.stringify(b.input))}`,
      ...['queue', 'timeout', 'delay', 'class', 'priority', 'max_attempts'].map(k =>
        b[k] && `--${k.replace('_', '-')} ${shell(String(b[k]))}`)].filter(Boolean).join(' \\\n  '))],
  curl: ['curl', b => `curl ${location.origin}/api/v1/runs \\\n  -H "Authorization: Bearer $PERDURE_KEY" \\
  -H 'Content-Type: application/json' \\\n  -d ${shell(JSON.stringify(b))}`],
  go: ['Go', b => `c := client.New(${JSON.stringify(location.origin)}, os.Getenv("PERDURE_KEY"), client.Options{})
run, err := c.Start(ctx, perdure.Submission{
	Kind:  ${JSON.stringify(b.kind || 'KIND')},
	Input: json.RawMessage(${JSON.stringify(JSON.stringify(b.input ?? null))}),${b.queue
      ? `\n\tQueue: ${JSON.stringify(b.queue)},` : ''}${b.metadata
      ? `\n\tMetadata: map[string]string{${Object.entries(b.metadata).map(([k, v]) =>
        `${JSON.stringify(k)}: ${JSON.stringify(v)}`).join(', ')}},` : ''}
})`],
};

/** Same shows a run that is being written as a command, a curl call and a line of Go. */
function Same({ body }) {
  const [way, setWay] = useState('cli');
  const text = ways[way][1](body);
  return html`<${Card} title="The same elsewhere"><div class="stack">
    <${Tabs} label="The same elsewhere" at=${way} to=${setWay}
      tabs=${Object.entries(ways).map(([id, [name]]) => ({ id, name }))} />
    <pre class="text" tabindex="0">${text}</pre>
    <div class="actions"><${CopyButton} text=${text} className=""
      about=${`Copy as ${ways[way][0]}`} /></div></div><//>`;
}

/** Recent lists the last runs, to start another one like them. */
function Recent({ at }) {
  const { rows } = useRuns({}, { limit: 6 });
  return rows && rows.length > 0 && html`<${Card} title="Like an earlier run"><ul class="tree">${rows.map(r =>
    html`<li key=${r.run_id}><div class="one"><span class=${'text-' + statusOf(r)} title=${stateNames[statusOf(r)]}>
      <${Shape} state=${statusOf(r)} /></span><a href=${href('/start', { like: r.run_id })}
        aria-current=${r.run_id === at ? 'true' : undefined}><${Safe} text=${r.kind} max=${40} /></a>
      <span class="dim"><${Ago} at=${r.created_at} /></span></div></li>`)}</ul><//>`;
}

export default function Start({ query }) {
  const like = useGet(query.get('like') ? '/runs/' + query.get('like') : '', {});
  const kinds = useList('', '/kinds', 'kinds', { limit: 200 });
  const [error, setError] = useState(none), [busy, setBusy] = useState(false),
    [kind, setKind] = useState(query.get('kind') ?? ''), [body, setBody] = useState(/** @type {any} */ ({ kind }));
  const form = useRef(none), from = like.value;
  // The form is shown as a command beside it, as far as it is valid.
  const written = () => {
    try { setBody(bodyOf(form.current)); setError(null); } catch { /* until it is JSON again */ }
  };
  useEffect(() => { if (from) setKind(from.kind); }, [from]);
  useEffect(() => { if (form.current) written(); }, [from, kind]);
  const known = kinds.items?.find(k => k.kind === kind);
  const submit = async e => {
    e.preventDefault();
    let made;
    try { made = bodyOf(e.currentTarget); } catch (problem) {
      setError({ code: '', field: '', message: `The input is no JSON: ${problem.message}` });
      return;
    }
    setBusy(true);
    setError(null);
    try { go('/runs/' + (await post('/runs', made)).run_id); } catch (problem) { setError(problem); }
    setBusy(false);
  };
  return html`<${Page} title="Start a run" sub=${from
      ? html`Like <${RunLink} id=${from.run_id} />, with what you change.`
      : 'The run is stored before the server answers. It goes on whatever happens to this page.'}>
    <${Trouble} error=${error ?? like.error} />
    <div class="beside"><form class="card start" key=${from?.run_id ?? 'new'} ref=${form} onSubmit=${submit}
        onInput=${written}>
      <label class="field"><span>Kind</span>
        <input name="kind" required list="kinds" value=${kind} onInput=${e => setKind(e.currentTarget.value)}
          autocomplete="off" placeholder="report" />
        <datalist id="kinds">${(kinds.items ?? []).map(k =>
            html`<option key=${k.kind} value=${k.kind}></option>`)}</datalist>
        <small>${known?.description ? html`<${Safe} text=${known.description} max=${200} />`
            : 'What is to be done. A worker that polls for this kind takes it.'}</small></label>
      <label class="field"><span>Input</span>
        <textarea name="input" rows="8" spellcheck="false" placeholder='{"host": "cube"}'>
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
        ${!can('runs:create') && html`<span class="dim">This login may not start runs.</span>`}</div>
    </form><aside aria-label="Help with the form"><${Same} body=${body} />
      <${Recent} at=${from?.run_id} /></aside></div><//>`;
}
