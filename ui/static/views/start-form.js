// The form that starts a run. A kind with a schema has a field for each property of its input.
import { html, useState, useEffect, useRef, none } from '../lib.js';
import { go } from '../router.js';
import { post, can, parse, newKey } from '../api.js';
import { json } from '../format.js';
import { Trouble } from '../parts.js';
import { Safe } from '../safe.js';
import { canForm, readForm, SchemaFields } from '../schema-form.js';

/** bodyOf reads the form. errors has what is wrong with fields of the schema. */
function bodyOf(form, kind, schema) {
  const data = new FormData(form), f = name => String(data.get(name) ?? '').trim();
  /** @type {Record<string, any>} */
  const body = { kind: data.has('kind') ? f('kind') : kind };
  let errors = {};
  if (schema) ({ input: body.input, errors } = readForm(schema, data));
  else if (f('input')) body.input = parse(f('input'));
  for (const k of ['queue', 'timeout', 'delay', 'class']) if (f(k)) body[k] = f(k);
  for (const k of ['priority', 'max_attempts']) if (f(k)) body[k] = Number(f(k));
  const meta = f('metadata').split('\n').map(l => l.trim()).filter(Boolean);
  if (meta.length) body.metadata = Object.fromEntries(meta.map(l =>
      { const i = l.indexOf('='); return i < 0 ? [l, ''] : [l.slice(0, i), l.slice(i + 1)]; }));
  return { body, errors };
}

/**
 * @param {{kind: string, choose?: (kind: string) => void, kinds?: any[], known?: any, from?: any, short?: boolean,
 *   written?: (body: any) => void}} p  from is an earlier run to begin with; short leaves out what has defaults
 */
export function StartForm({ kind, choose, kinds = [], known, from, short = false, written }) {
  const [error, setError] = useState(none), [bad, setBad] = useState({}), [busy, setBusy] = useState(false);
  const [raw, setRaw] = useState(false), form = useRef(none), sent = useRef({ text: '', key: '' });
  const possible = canForm(known?.input_schema), schema = possible && !raw ? known.input_schema : null;
  // The form is shown as a command beside it, as far as it is valid.
  const tell = () => {
    try { written?.(bodyOf(form.current, kind, schema).body); setError(null); } catch { /* until it is JSON again */ }
  };
  useEffect(() => { if (form.current) tell(); }, [from, kind, schema]);
  const submit = async e => {
    e.preventDefault();
    let made;
    try { made = bodyOf(e.currentTarget, kind, schema); } catch (problem) {
      setError({ code: '', field: '', message: `The input is no JSON: ${problem.message}` });
      return;
    }
    setBad(made.errors);
    const [first] = Object.keys(made.errors);
    if (first) { form.current.elements.namedItem('in:' + first)?.focus(); return; }
    setBusy(true);
    setError(null);
    // The same form that is sent again, because there was no answer, starts one run.
    const text = JSON.stringify(made.body);
    if (sent.current.text !== text) sent.current = { text, key: newKey() };
    try {
      go('/runs/' + (await post('/runs', made.body, { once: sent.current.key })).run_id);
      sent.current.text = '';
    } catch (problem) { setError(problem); }
    setBusy(false);
  };
  return html`<form class="start" ref=${form} onSubmit=${submit} onInput=${tell}>
    <${Trouble} error=${error} />
    ${choose && html`<label class="field"><span>Kind</span>
      <input name="kind" required list="kinds" value=${kind} onInput=${e => choose(e.currentTarget.value)}
        autocomplete="off" placeholder="report" />
      <datalist id="kinds">${kinds.map(k => html`<option key=${k.kind} value=${k.kind}></option>`)}</datalist>
      <small>${known?.description ? html`<${Safe} text=${known.description} max=${200} />`
          : 'What is to be done. A worker that polls for this kind takes it.'}</small></label>`}
    ${schema ? html`<${SchemaFields} schema=${schema} value=${from?.input} errors=${bad} />`
      : html`<label class="field"><span>Input</span>
        <textarea name="input" rows=${short ? 5 : 8} spellcheck="false" placeholder='{"host": "cube"}'>
          ${from?.input !== undefined ? json(from.input) : ''}</textarea><small>Any JSON, or nothing.</small></label>`}
    ${possible && html`<div><button type="button" class="linkish" onClick=${() => setRaw(!raw)}>${raw
      ? 'A field for each property' : 'Write it as JSON'}</button></div>`}
    ${!short && html`<div class="grid-3"><label class="field"><span>Queue</span>
        <input name="queue" defaultValue=${from?.queue ?? ''} placeholder="default" /></label>
      <label class="field"><span>Deadline after</span><input name="timeout" placeholder=${known?.timeout ?? '1h'} />
        </label>
      <label class="field"><span>Not before</span><input name="delay" placeholder="0s from now" /></label>
      <label class="field"><span>Priority</span>
        <input name="priority" type="number" min="-100" max="100" defaultValue=${from?.priority || ''}
          placeholder="0" /></label>
      <label class="field"><span>Attempts</span>
        <input name="max_attempts" type="number" min="1" max="100" placeholder="default" /></label>
      <label class="field"><span>Class</span>
        <select name="class"><option value="">default</option>${['task', 'agent', 'process'].map(c =>
          html`<option key=${c} value=${c} selected=${from?.class === c}>${c}</option>`)}</select></label></div>
    <label class="field"><span>Metadata</span>
      <textarea name="metadata" rows="3" spellcheck="false" placeholder="host=cube">
        ${Object.entries(from?.metadata ?? {}).map(([k, v]) => `${k}=${v}`).join('\n')}</textarea>
        <small>A line each, name=value. Lists of runs can be filtered by it.</small></label>`}
    <div class="actions"><button type="submit" class="primary" disabled=${busy || !can('runs:create')}>Start</button>
      ${!can('runs:create') && html`<span class="dim">This login may not start runs.</span>`}</div></form>`;
}
