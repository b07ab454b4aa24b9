// Where an exported run begins: the page of the run, with what the server had answered when the file was made.
// Nothing is asked of a server, and nothing can be changed.
import { html, render } from './lib.js';
import { parse, session, answerFrom, Problem } from './api.js';
import { route, href } from './router.js';
import { instant } from './format.js';
import { Toasts, Dialogs } from './parts.js';
import Run from './views/run.js';

const data = parse(document.getElementById('data')?.textContent ?? '{}');

/** page is a part of a list behind a number. */
const page = (list, after, limit) => list.filter(e => e.seq > after).slice(0, limit);

/** answer gives what the server has answered to a call. */
function answer(path, query) {
  const after = Number(query?.after ?? 0), limit = Number(query?.limit ?? 100);
  const log = /^\/runs\/([^/]+)\/events$/.exec(path);
  if (log) {
    const all = data.events[log[1]] ?? [], events = page(all, after, limit), first = all[0]?.seq ?? 1;
    return { events, next_after: events.at(-1)?.seq ?? after, ended: true,
      gap: first > 1 && after < first - 1 ? { from: 1, to: first - 1 } : undefined };
  }
  const steps = /^\/runs\/([^/]+)\/journal\/entries(?:\/(\d+))?$/.exec(path);
  if (steps && steps[1] === data.id) {
    if (steps[2]) return data.journal.whole[steps[2]];
    const entries = page(data.journal.entries, after, limit);
    return { entries, next_after: entries.length === limit ? entries.at(-1).seq : 0 };
  }
  return data.answers[path];
}

answerFrom((path, query) => {
  const found = answer(path, query);
  if (found === undefined) throw new Problem(404, { code: 'not_in_file', detail: 'This is not in the file.' });
  return found;
});
session.value = { name: 'file', scopes: ['runs:read'], read_only: true };
const dark = matchMedia('(prefers-color-scheme: dark)');
const paint = () => { document.documentElement.dataset.theme = dark.matches ? 'dark' : 'light'; };
dark.addEventListener('change', paint);
paint();
if (!location.hash.startsWith('#/runs/')) location.replace(href('/runs/' + data.id));

function Still() {
  const { parts, query } = route.value, id = parts[0] === 'runs' && parts[1] ? parts[1] : data.id;
  return html`<div class="still"><p class="still-note" role="note">A copy of ${data.from},
    made ${instant(data.at)}. It does
      not change.${data.left.length > 0 && ` It leaves out ${data.left.join(', ')}.`}${id !== data.id &&
      html` <a href=${href('/runs/' + data.id)}>Back to the run of this file</a>`}</p>
    <main id="main" tabindex="-1"><${Run}
      key=${id} parts=${[id]} query=${query} /></main><${Toasts} /><${Dialogs} /></div>`;
}
render(html`<${Still} />`, /** @type {any} */ (document.getElementById('app')));
