// Starting a run: a form, or an earlier run with its input changed.
import { html, useState, useEffect } from '../lib.js';
import { href } from '../router.js';
import { useList, useGet, useRuns } from '../live.js';
import { stateNames } from '../format.js';
import { Page, Card, Tabs, Trouble, CopyButton, RunLink, Shape, Ago, statusOf } from '../parts.js';
import { Safe } from '../safe.js';
import { StartForm } from './start-form.js';

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
  const kinds = useList('kinds', '/kinds', 'kinds', { limit: 200 });
  const [kind, setKind] = useState(query.get('kind') ?? ''), [body, setBody] = useState(/** @type {any} */ ({ kind }));
  const from = like.value;
  useEffect(() => { if (from) setKind(from.kind); }, [from]);
  return html`<${Page} title="Start a run" sub=${from
      ? html`Like <${RunLink} id=${from.run_id} />, with what you change.`
      : 'The run is stored before the server answers. It goes on whatever happens to this page.'}>
    <${Trouble} error=${like.error} />
    <div class="beside"><div class="card"><${StartForm} key=${from?.run_id ?? 'new'} kind=${kind} choose=${setKind}
        kinds=${kinds.items ?? []} known=${kinds.items?.find(k => k.kind === kind)} from=${from} written=${setBody} />
      </div><aside aria-label="Help with the form"><${Same} body=${body} />
      <${Recent} at=${from?.run_id} /></aside></div><//>`;
}
