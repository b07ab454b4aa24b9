// A form made from the JSON Schema of a kind's input, for the types that a form can show. A type
// that it can't show stays a field for JSON. The server does not check inputs against the schema,
// so the form does. An error stands at its field.
import { html } from './lib.js';
import { json } from './format.js';
import { parse } from './api.js';
import { Safe } from './safe.js';

/** deepest bounds the objects within one another that get fields of their own. */
const deepest = 3;

const typeOf = s => (Array.isArray(s?.type) ? s.type.find(t => t !== 'null') : s?.type) ?? (s?.enum ? 'enum'
  : s?.properties ? 'object' : '');

/** canForm tells whether a form can be made of a schema: an object with properties. */
export const canForm = schema => typeOf(schema) === 'object' && Object.keys(schema.properties ?? {}).length > 0;

/** fieldsOf lists the fields of a schema: a path of names each, with its schema. */
export function fieldsOf(schema, at = []) {
  return Object.entries(schema.properties ?? {}).flatMap(([name, s]) => {
    const path = [...at, name], required = (schema.required ?? []).includes(name);
    return canForm(s) && path.length < deepest ? fieldsOf(s, path).map(f => ({ ...f, required: required
      && f.required }))
      : [{ path, name: path.join('.'), schema: s, required }];
  });
}

/** problem says what is wrong with a value, or nothing. */
function problem(s, v) {
  const n = typeof v === 'number' || typeof v === 'object' ? Number(v) : NaN;
  switch (typeOf(s)) {
    case 'integer': case 'number':
      if (typeOf(s) === 'integer' && !Number.isInteger(n)) return 'Give a whole number.';
      if (Number.isNaN(n)) return 'Give a number.';
      if (n < s.minimum) return `Give at least ${s.minimum}.`;
      if (n > s.maximum) return `Give at most ${s.maximum}.`;
      return '';
    case 'string':
      if (v.length < s.minLength) return `Give at least ${s.minLength} characters.`;
      if (v.length > s.maxLength) return `Give at most ${s.maxLength} characters.`;
      if (s.pattern) { try { if (!new RegExp(s.pattern, 'u').test(v)) return `It has to match ${s.pattern}.`; } catch {
        /* a pattern that this browser can't read */ } }
  }
  return '';
}

/** valueOf reads one field, or throws what is wrong with it. */
function valueOf({ schema: s, required }, text) {
  if (typeOf(s) === 'boolean') return text === 'true' ? true : text === 'false' ? false : undefined;
  if (text === '') { if (required) throw new Error('It is required.'); return undefined; }
  if (s.enum) return s.enum.find(v => json(v) === text);
  if (typeOf(s) === 'string') { const bad = problem(s, text); if (bad) throw new Error(bad); return text; }
  let v;
  try { v = parse(text); } catch { throw new Error(/^(number|integer)$/.test(typeOf(s)) ? 'Give a number.'
    : 'It is no JSON.'); }
  const bad = problem(s, v);
  if (bad) throw new Error(bad);
  return v;
}

/**
 * readForm reads the fields as an input. errors has what is wrong, by the name of the field.
 * @param {any} schema
 * @param {FormData} data
 * @returns {{input: any, errors: Record<string, string>}}
 */
export function readForm(schema, data) {
  const input = {}, errors = /** @type {Record<string, string>} */ ({});
  for (const f of fieldsOf(schema)) {
    let v;
    try { v = valueOf(f, String(data.get('in:' + f.name) ?? '')); } catch (e) { errors[f.name] = e.message; continue; }
    if (v === undefined) continue;
    let at = input;
    for (const name of f.path.slice(0, -1)) at = at[name] ??= {};
    at[f.path.at(-1)] = v;
  }
  return { input, errors };
}

function Control({ field: { schema: s, name }, value, bad, id }) {
  const p = { name: 'in:' + name, 'aria-invalid': bad ? 'true' : undefined, 'aria-describedby': id };
  const given = value ?? s.default, type = typeOf(s);
  if (s.enum || type === 'boolean') {
    const options = s.enum ?? [true, false];
    return html`<select ...${p}><option value="">${'–'}</option>${options.map(o => html`<option key=${json(o)}
      value=${json(o)} selected=${given !== undefined && json(given) === json(o)}>${String(o)}</option>`)}</select>`;
  }
  if (type === 'number' || type === 'integer') {
    return html`<input ...${p} inputmode="decimal" defaultValue=${given ?? ''} placeholder=${s.examples?.[0] ?? ''} />`;
  }
  if (type === 'string' && !(s.maxLength > 200)) {
    return html`<input ...${p} defaultValue=${given ?? ''} placeholder=${s.examples?.[0] ?? ''} />`;
  }
  return html`<textarea ...${p} rows="4" spellcheck="false" placeholder=${type === 'array' ? '[]' : ''}
    defaultValue=${given === undefined ? '' : type === 'string' ? given : json(given)}></textarea>`;
}

/** SchemaFields are the fields of a schema. */
export function SchemaFields({ schema, value, errors }) {
  return html`<div class="grid-form">${fieldsOf(schema).map(f => {
    const bad = errors[f.name], id = 'about:' + f.name;
    return html`<label class="field" key=${f.name}><span><${Safe} text=${f.schema.title ?? f.name} max=${80} />${
      f.required && html` <span class="dim">(required)</span>`}</span>
      <${Control} field=${f} bad=${bad} id=${id} value=${f.path.reduce((v, name) => v?.[name], value)} />
      <small id=${id} class=${bad ? 'bad' : ''} role=${bad ? 'alert' : undefined}>${bad ?? html`<${Safe}
        text=${f.schema.description ?? ''} max=${160} />`}</small></label>`;
  })}</div>`;
}
