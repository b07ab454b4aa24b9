// Conversations: the list, and the chat of one. Answers that take longer than one wants to wait are
// deferred: they go on, and come into the conversation when they are there.
import { html, useState, useEffect, useLayoutEffect, useRef, useCallback, cls, none, signal } from '../lib.js';
import { go, href, withQuery } from '../router.js';
import { get, post, call, can, newKey } from '../api.js';
import { useList, watch, refresh, connection } from '../live.js';
import { useTree } from '../tree.js';
import { RunRows } from '../rows.js';
import { duration, now, ms, ended, textOf, short } from '../format.js';
import { Page, Empty, Trouble, Loading, Ago, State, RunLink, Shape, CopyButton, act, ask, toast, copy,
  statusOf } from '../parts.js';
import { Safe } from '../safe.js';
import { Markdown } from '../markdown.js';
import { Workers, Asks } from './chat-workers.js';
import { useWaiting } from './waiting.js';

/** patience is how long this page waits for an answer before it leaves the run to itself. */
const patience = new URLSearchParams(location.search).get('patience') ?? '60s';

// Runs that this page waits for, by id. The server counts each as a waiter while its call is open.
const attached = new Map();

/** attach waits for a run. It is deferred when the time has passed, and goes on. */
function attach(run, done) {
  if (attached.has(run)) return;
  const abort = new AbortController();
  attached.set(run, abort);
  get(`/runs/${run}/join`, { timeout: patience }, { signal: abort.signal }).catch(() => {}).finally(() =>
    { attached.delete(run); done(); });
}

/** useThread follows the messages and the runs of a conversation. */
function useThread(id) {
  const [state, set] = useState({ messages: /** @type {any[]|null} */ (null), runs: /** @type {any[]} */ ([]),
      error: null });
  const last = useRef(0), list = useRef(/** @type {any[]} */ ([])), busy = useRef(false), again = useRef(false);
  const read = useCallback(async () => {
    if (busy.current) { again.current = true; return; }
    busy.current = true;
    try {
      do {
        again.current = false;
        for (;;) {
          const page = await get(`/threads/${id}/messages`, { after: last.current, limit: 200 });
          const fresh = page.messages.filter(m => m.seq > last.current);
          if (!fresh.length) break;
          list.current = [...list.current, ...fresh].slice(-2000);
          last.current = fresh.at(-1).seq;
        }
        set(s => ({ ...s, messages: list.current, error: null }));
      } while (again.current);
    } catch (error) {
      set(s => ({ ...s, error }));
    } finally { busy.current = false; }
  }, [id]);
  useEffect(() => {
    last.current = 0;
    list.current = [];
    set({ messages: null, runs: [], error: null });
    const runs = new RunRows();
    let states = '';
    const stop = watch({
      of: 'runs', filter: { thread_id: id }, limit: 20, events: false,
      poll: async () => [{ type: 'snapshot', ...await get('/runs', { thread_id: id, limit: 20 }) }],
      on(messages) {
        for (const m of messages) if (m.type !== 'error') runs.take(m);
        runs.keep(20);
        const list = runs.list().reverse(), now = list.map(r => r.run_id + r.status).join();
        set(s => ({ ...s, runs: list }));
        // A run that comes, ends or waits may have said something. Answers that grow tell by themselves.
        if (now !== states || messages.some(m => m.polled)) read();
        states = now;
      },
    });
    read();
    return stop;
  }, [id]);
  return { ...state, read };
}

/** streamed is the text that a live run has told since its last message, without parts that it began again. */
export function streamed(events) {
  let parts = [];
  for (const e of events) {
    if (e.type === 'message:appended') { parts = []; continue; }
    if (e.type !== 'llm:delta') continue;
    const d = typeof e.data === 'string' ? { text: e.data } : e.data ?? {};
    if (d.channel === 'reasoning') continue;
    const step = d.step ?? '', n = d.try ?? 0;
    const before = parts.filter(p => p.step === step);
    if (before.some(p => p.try > n)) continue;
    if (before.some(p => p.try < n)) parts = parts.filter(p => p.step !== step);
    parts.push({ step, try: n, text: d.text ?? '' });
  }
  return parts.map(p => p.text).join('');
}

const noticeOf = m => (m.role === 'system' || m.role === 'assistant') && m.metadata?.run_id &&
  (m.metadata.notice || m.metadata.status) ? m.metadata : null;

function Message({ message: m, runs, thread, led }) {
  const notice = noticeOf(m), run = runs.find(r => r.run_id === (notice?.run_id ?? m.run_id));
  const text = textOf(m.content);
  const who = { user: 'You', assistant: 'Agent', system: 'Perdure', tool: 'Tool' }[m.role] ?? m.role;
  const deferred = notice?.status === 'deferred', live = run && !ended(run.state);
  const link = href('/threads/' + thread, { message: m.seq });
  return html`<article class=${cls('message', 'by-' + m.role, notice && 'is-notice', led && 'is-led')} aria-label=${who}
      data-message=${m.seq}>
    <header><b>${who}</b> <${Ago} at=${m.at} />
      ${(m.run_id || notice) && html` <${RunLink} id=${notice?.run_id ?? m.run_id} />`}
      <span class="message-tools"><${CopyButton} text=${text} className="linkish" about="Copy the message" />
        <a href=${link} onClick=${() => copy(new URL(link, location.href).href)}
          aria-label="Link to this message">Link</a>
      </span></header>
    ${m.role === 'tool' ? html`<details><summary class="dim">Result of a tool</summary>
        <${Safe} text=${text} block /></details>` : html`<${Markdown} text=${text} />`}
    ${deferred && run && html`<div class="row"><${State} state=${statusOf(run)} />
        <span class="dim">${live ? 'It goes on below.' : 'It has ended since.'}</span></div>`}</article>`;
}

/** Answer is the answer of a live run as it comes. */
function Answer({ id, read }) {
  const { run, tree } = useTree(id);
  const waiting = run?.state === 'suspended', why = useWaiting(run);
  const said = (tree.get(id)?.events ?? []).filter(e => e.type === 'message:appended').length;
  useEffect(() => { if (said) read(); }, [said]);
  if (!run || ended(run.state)) return null;
  const text = streamed(tree.get(id)?.events ?? []);
  const all = [...tree.values()].filter(e => e.run.run_id === id || e.run.root_run_id === run.root_run_id);
  const others = all.filter(e => e.run.run_id !== id).slice(-8);
  const asking = all.map(e => e.run).filter(r => r.state === 'suspended').slice(0, 6);
  return html`<article class="message by-assistant is-live" aria-label="The agent is answering" aria-busy="true">
    <header><b>Agent</b> <${State} state=${statusOf(run)} /> <span class="dim">
        ${duration(now.value - ms(run.created_at))}</span> <${RunLink} id=${id} /></header>
    ${text ? html`<${Markdown} text=${text} />`
      : html`<p class="dim">${waiting ? 'It waits, and holds no worker meanwhile.' : run.state === 'queued'
          ? html`<${Safe} text=${why ? `It waits: ${why.text}.` : 'It waits for a worker to take it.'} max=${300} />`
          : html`<span class="spinner" aria-hidden="true"></span> <${Safe} text=${run.activity || 'Working'}
              max=${120} />`}</p>`}
    ${others.length > 0 && html`<${Workers} entries=${others} streamed=${streamed} />`}
    ${asking.map(r => html`<${Asks} key=${r.run_id} run=${r} decided=${read} />`)}
    <div class="row">${run.status === 'deferred'
        ? html`<button type="button" onClick=${() => { attach(id, read); refresh(); }}
            disabled=${attached.has(id)}>Re-attach</button>
              <span class="dim">Nobody waits for it. It goes on, and the answer comes here.</span>`
      : can('runs:control') && html`<button type="button" onClick=${() =>
          act('It goes on without you.', () => call('POST', `/runs/${id}/defer`, { body: {} })).then(() =>
            { attached.get(id)?.abort(); refresh(); })}>Don't wait</button>`}
      ${can('runs:control') && html`<button type="button" class="danger" disabled=${Boolean(run.cancel?.requested_at)}
          onClick=${async () => { if (await ask({ title: 'Stop this answer?', yes: 'Stop it', danger: true,
              text: 'The agent and its workers are asked to stop.' })) { await act('Asked to stop.', () =>
                post(`/runs/${id}/cancel`)); refresh(); } }}>Stop</button>`}</div></article>`;
}

function Composer({ thread, read, live = false }) {
  const [busy, setBusy] = useState(false), [error, setError] = useState(none);
  const sent = useRef({ text: '', key: '' });
  const area = useRef(none), draft = 'perdure.draft.' + (thread ?? 'new');
  useEffect(() => { area.current.value = sessionStorage.getItem(draft) ?? ''; area.current.focus(); }, [thread]);
  const send = async e => {
    e?.preventDefault();
    const text = area.current.value.trim();
    if (!text || busy) return;
    setBusy(true);
    setError(null);
    try {
      const body = { message: text, foreground: true };
      if (thread) body.thread_id = thread;
      // A message that is sent again, because there was no answer, is the same message.
      if (sent.current.text !== text) sent.current = { text, key: newKey() };
      const a = await post('/chat', body, { once: sent.current.key });
      sent.current = { text: '', key: '' };
      area.current.value = '';
      sessionStorage.removeItem(draft);
      if (!a.started) toast('The agent reads it before its next step.');
      attach(a.run_id, read ?? (() => {}));
      if (!thread) go('/threads/' + a.thread_id);
      refresh();
      read?.();
    } catch (problem) { setError(problem); } finally { setBusy(false); area.current?.focus(); }
  };
  return html`<form class="composer" onSubmit=${send}><${Trouble} error=${error} />
    <label class="offscreen" for="say">Message</label>
    <textarea id="say" ref=${area} rows="2" placeholder=${live
        ? 'Steer it: the agent reads this before its next step.'
          : 'Say something. Enter sends, Shift+Enter begins a line.'}
      disabled=${!can('runs:create')}
      onInput=${e => sessionStorage.setItem(draft, e.currentTarget.value)} onKeyDown=${e =>
        { if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) send(e); }}></textarea>
    <button type="submit" class="primary" disabled=${busy || !can('runs:create')}>Send</button></form>`;
}

function Conversation({ id, to, newest }) {
  const { messages, runs, error, read } = useThread(id);
  // Not only runs say something: the list of conversations tells of each message.
  useEffect(() => { if (messages && newest > (messages.at(-1)?.seq ?? 0)) read(); }, [newest, messages?.length]);
  const end = useRef(none), live = runs.filter(r => !ended(r.state));
  const box = useRef(none), atEnd = useRef(true);
  // A link to a message shows that one, and keeps it in sight until somebody scrolls. Anything else shows the end.
  const led = useRef(0), leading = useRef(false);
  const settle = () => {
    const e = box.current, one = leading.current && e?.querySelector(`[data-message="${to}"]`);
    if (one) one.scrollIntoView({ block: 'center' });
    else if (e && atEnd.current) e.scrollTop = e.scrollHeight;
  };
  useLayoutEffect(() => {
    if (!to) { led.current = 0; leading.current = false; }
    if (led.current === to || !box.current?.querySelector(`[data-message="${to}"]`)) return;
    led.current = to;
    leading.current = true;
    atEnd.current = false;
  }, [messages?.length, to]);
  useLayoutEffect(() => {
    settle();
    if (!to) end.current?.scrollIntoView({ block: 'end' });
  }, [messages?.length, live.length, to]);
  // A live answer grows, and what is above a message may come late.
  useEffect(() => {
    const e = box.current;
    if (!e) return undefined;
    const grows = new MutationObserver(settle), sized = new ResizeObserver(settle);
    grows.observe(e, { childList: true, subtree: true, characterData: true });
    sized.observe(e);
    return () => { grows.disconnect(); sized.disconnect(); };
  }, [messages === null, to]);
  const free = () => { leading.current = false; };
  const scrolled = () => {
    const e = box.current;
    if (!leading.current) atEnd.current = e.scrollHeight - e.scrollTop - e.clientHeight < 40;
  };
  if (messages === null) return error ? html`<${Trouble} error=${error} />` : html`<${Loading} />`;
  return html`<div class="conversation"><div class="messages" role="log" aria-label="Conversation" aria-live="polite"
      tabindex="0" ref=${box} onScroll=${scrolled} onWheel=${free} onTouchStart=${free} onPointerDown=${free}
      onKeyDown=${free}>
      ${messages.length === 0 && html`<p class="dim">Nothing was said yet.</p>`}
      ${messages.map(m => html`<${Message} key=${m.seq} message=${m} runs=${runs} thread=${id} led=${m.seq === to} />`)}
      ${live.map(r => html`<${Answer} key=${r.run_id} id=${r.run_id} read=${read} />`)}
      <div ref=${end}></div></div>
    ${connection.value === 'silent' && html`<p class="sub"
        role="status">The live connection is silent: new messages are asked for every two seconds.</p>`}
    <${Composer} thread=${id} read=${read} live=${live.length > 0} /></div>`;
}

// Whether the list has the threads of workers too. The choice holds until the page is loaded again.
const workersToo = signal(false);

export default function Threads({ parts: [id], query }) {
  const cursor = query.get('cursor') ?? '';
  const { items, error, next } = useList('threads', '/threads', 'threads',
    { limit: 50, cursor, children: workersToo.value ? '' : 'false' });
  const at = href('/threads' + (id ? '/' + id : ''));
  return html`<${Page} title="Chat" actions=${id &&
      html`<a class="button" href=${href('/threads')}>New conversation</a>`}>
    <div class=${cls('chat', id && 'has-one')}><nav class="thread-list" aria-label="Conversations">
      <label class="check"><input type="checkbox" checked=${workersToo.value} onChange=${e => {
        workersToo.value = e.currentTarget.checked; location.hash = at; }} /> <span>Also those of workers</span></label>
      ${error && !items?.length && html`<${Trouble} error=${error} />`}
      ${(items ?? []).map(t => html`<a key=${t.thread_id} data-row href=${href('/threads/' + t.thread_id)}
          aria-current=${t.thread_id === id ? 'page' : undefined}>
        <span class="thread-title">${t.parent_run_id && html`<span class="tag first"
            title=${'Of run ' + t.parent_run_id}>worker</span> `}<${Safe} max=${70} color=${false}
              text=${t.title || 'Untitled ' + short(t.thread_id)} /></span>
        <span class="thread-last dim">${t.live_run
            ? html`<span class=${'text-' + t.live_run.state}><${Shape} state=${t.live_run.state} /></span> `
            : ''}${t.last_message ? html`<${Safe} text=${t.last_message.text} max=${80} color=${false} />`
            : 'nothing said'}</span>
        <span class="thread-age dim"><${Ago} at=${t.updated_at} suffix="" /></span></a>`)}
      ${(next || cursor) && html`<div class="pager">${cursor && html`<a href=${at}>Newest</a>`}
        ${next && html`<a href=${withQuery({ cursor: next })}>Older</a>`}</div>`}</nav>
      <div class="chat-main">${id ? html`<${Conversation} key=${id} id=${id}
        to=${Number(query.get('message')) || 0} newest=${items?.find(t => t.thread_id === id)?.last_seq ?? 0} />`
          : html`<div class="conversation"><${Empty} title="Begin a conversation">
        <p>An agent of kind <code>supervisor</code> answers. You can close this page at any time: the answer will
          be in the conversation when you come back.</p>
        <p>With <code>perdure dev</code>, try “check disk space”.</p><//><${Composer} /></div>`}</div></div><//>`;
}
