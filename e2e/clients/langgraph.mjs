// Uses the door for clients of the LangGraph Platform with its SDK, as its own documentation says, and
// prints one JSON line for each fact: node langgraph.mjs <1.12, 1.15 or 2.0> <address> <scenario> [more].
const [version, address, scenario, ...more] = process.argv.slice(2);
const { Client } = await import(`langgraph-${version}`);
const say = (fact) => console.log(JSON.stringify(fact));
const open = (path, options = {}) =>
  new Client({ apiKey: process.env.PERDURE_KEY, apiUrl: `${address}/${path}-${version}`, ...options });
const plain = open("plain");

// A line of the log has two frames in these modes.
const streamMode = ["messages-tuple", "messages", "values"];
const ask = (text, options = {}) => ({ streamMode,
  input: { input: `${text} ${version}`, messages: [{ role: "user", content: text }] }, ...options });
const newThread = async () => (await plain.threads.create()).thread_id;

// read reads a stream to its end. The client itself attaches again where a connection breaks.
async function read(stream) {
  const frames = [];
  for await (const frame of stream) frames.push(frame);
  return frames;
}

// start starts a run and reads its stream through a path of the relay.
async function start(path, kind, text) {
  const thread = await newThread();
  let run;
  const frames = await read(open(path).runs.stream(thread, kind,
    ask(text, { onRunCreated: (created) => (run = created.run_id) })));
  return { thread, run, frames };
}

const join = (client, { thread, run }) => read(client.runs.joinStream(thread, run, { streamMode }));
const textOf = (frames) => frames.filter((f) => f.event === "messages").map((f) => f.data[0].content).join("");
const status = (call) => call().then(() => "none", (e) => e.status);

const scenarios = {
  // All that needs no help, at once. With "apps" also what is built on the SDK.
  async whole() {
    const others = [scenarios.cuts(), scenarios.reset()];
    if (more[0] === "apps" && version !== "2.0") others.push(scenarios.tab());
    if (more[0] === "apps" && version === "1.15") others.push(scenarios.deep());
    await scenarios.rest();
    for (const fact of await Promise.all(others)) say(fact);
  },

  // The connection is cut after each frame in turn, also that of the call that starts the run.
  async cuts() {
    const [whole, posted] = await Promise.all([start("plain", "letters", "cuts"),
      start("cut20-post", "letters", "posted")]);
    const want = JSON.stringify(whole.frames);
    const differ = [];
    const cut = async (i) => {
      const got = JSON.stringify(await join(open(`cut${i}`), whole));
      if (got !== want) differ.push(i);
    };
    await Promise.all(whole.frames.slice(1).map((_, i) => cut(i + 1)));
    const again = await join(plain, posted);
    return { frames: whole.frames.length, differ, text: textOf(whole.frames),
      answer: whole.frames.at(-1).data.answer,
      posted: JSON.stringify(posted.frames) === JSON.stringify(again), postedText: textOf(posted.frames) };
  },

  // A run without a thread whose first answer is lost. The call has a key, which each of its posts has.
  async reset() {
    const onRequest = (_, init) =>
      ({ ...init, headers: { ...init.headers, "Idempotency-Key": crypto.randomUUID() } });
    const values = await open("reset", { onRequest }).runs.wait(null, "gated", ask("reset")).catch(() => ({}));
    return { reset: values.answer ?? "an error" };
  },

  // What useStream does, by its own code without React: a tab starts a run, puts another one into the queue and
  // takes it out, and is closed. One that reconnects has all of it.
  async tab() {
    const { StreamOrchestrator } = await import(`langgraph-${version}/ui`);
    const storage = new Map();
    const sessionStorage = { getItem: (k) => storage.get(k) ?? null, setItem: (k, v) => storage.set(k, v),
      removeItem: (k) => storage.delete(k) };
    let asked;
    const onRequest = (url, init) => {
      if (init.body) asked ??= JSON.parse(init.body).on_disconnect;
      return init;
    };
    const created = {};
    const tab = (options) => {
      globalThis.window = {}; // storage is for browsers
      const one = new StreamOrchestrator({ fetchStateHistory: true, onCreated: (run) => Object.assign(created, run),
        ...options }, { getClient: () => open("tab", { onRequest }), getAssistantId: () => "paused",
        getMessagesKey: () => "messages" });
      delete globalThis.window;
      return one;
    };
    const until = (one, is) => new Promise((done) => {
      const look = () => is() && done();
      one.subscribe(look);
      look();
    });
    const textIn = (one) => one.messages.filter((m) => (m.type ?? m.getType()) === "ai").map((m) => m.content).join("");

    const first = tab();
    const over = first.submit(ask("tab").input, { streamMode: ["messages-tuple"] });
    await until(first, () => textIn(first).length > 3);
    await first.submit(ask("queued").input);
    const [waiting] = first.queueEntries;
    const queued = [(await plain.runs.list(created.thread_id, { status: "pending" }))
      .find((r) => r.run_id === waiting.id)?.status];
    await first.cancelQueueItem(waiting.id);
    queued.push((await plain.runs.get(created.thread_id, waiting.id)).status);
    first.dispose();
    await over;

    storage.set(`lg:stream:${created.thread_id}`, created.run_id);
    const second = tab({ reconnectOnMount: () => sessionStorage });
    second.initThreadId(created.thread_id);
    const told = second.tryReconnect();
    await open("closed").threads.get(created.thread_id); // the test lets the run go on
    const { answer } = await plain.runs.join(created.thread_id, created.run_id);
    await until(second, () => second.values.answer === answer && !second.isLoading);
    const { status } = await plain.runs.get(created.thread_id, created.run_id);
    const history = await plain.threads.getHistory(created.thread_id);
    const again = second.values.answer;
    second.dispose();
    return { asked, queued, told, answer, again, status,
      history: history.filter((s) => s.metadata.run_id === created.run_id).length };
  },

  // The tools of deepagents for work that goes on elsewhere.
  async deep() {
    const { createAsyncSubAgentMiddleware } = await import("deepagents");
    const { tools } = createAsyncSubAgentMiddleware({ asyncSubAgents: [{ name: "researcher", description: "researches",
      url: `${address}/deep-${version}`, graphId: "researches", headers: { "x-api-key": process.env.PERDURE_KEY } }] });
    const state = { asyncTasks: {} };
    const use = async (name, args) => {
      const out = await tools.find((t) => t.name === name).invoke(args, { state, toolCallId: "call" });
      if (typeof out === "string") throw new Error(`${name}: ${out}`);
      Object.assign(state.asyncTasks, out.update.asyncTasks);
      return out.update.messages[0].content;
    };
    const begin = async () => {
      await use("start_async_task", { description: "stay", agentName: "researcher" });
      const { taskId, threadId, runId } = Object.values(state.asyncTasks).at(-1);
      for await (const _ of plain.runs.joinStream(threadId, runId, { streamMode: "updates" })) break; // it has begun
      return taskId;
    };
    const list = async () => [...(await use("list_async_tasks", {})).matchAll(/status: (\w+)/g)].map((m) => m[1]);
    const one = await begin();
    const checked = JSON.parse(await use("check_async_task", { taskId: one })).status;
    const listed = await list();
    const before = state.asyncTasks[one].runId;
    await use("update_async_task", { taskId: one, message: "Paris" });
    const { runId } = state.asyncTasks[one];
    await plain.runs.join(one, runId);
    const found = JSON.parse(await use("check_async_task", { taskId: one })).result;
    const two = await begin();
    await use("cancel_async_task", { taskId: two });
    const cancelled = await plain.runs.join(two, state.asyncTasks[two].runId)
      .then(() => plain.runs.get(two, state.asyncTasks[two].runId));
    return { checked, listed, updated: runId !== before, found, cancelled: cancelled.status, lists: await list() };
  },

  // A stream that goes on by itself, and a wait that is given up, when the server goes away.
  async away() {
    const [mode] = more;
    const streams = async () => {
      const got = await start(`${mode}stream`, "paused", mode);
      const whole = await join(plain, got);
      say({ same: JSON.stringify(got.frames) === JSON.stringify(whole), text: textOf(got.frames),
        answer: got.frames.at(-1).data.answer });
    };
    const waits = async () => {
      const thread = await newThread();
      const broke = await open(`${mode}wait`).runs.wait(thread, "gated", ask(mode)).then(() => false, () => true);
      const list = await plain.runs.list(thread);
      const values = await plain.runs.join(thread, list[0].run_id);
      say({ broke, runs: list.length, answer: values.answer, messages: values.messages.map((m) => m.content) });
    };
    await streams().then(waits);
  },

  // Threads, interrupts, cancels and refusals.
  async rest() {
    const mine = { threadId: `mine ${version}`, metadata: { by: version } };
    let thread = (await plain.threads.create(mine)).thread_id;
    const taken = await status(() => open("taken").threads.create(mine));
    const same = (await plain.threads.create({ ...mine, ifExists: "do_nothing" })).thread_id;
    const found = await plain.threads.search({ metadata: { by: version } });
    const copied = await plain.threads.copy(thread);
    say({ thread: thread === mine.threadId && same === thread, taken,
      found: found.map((t) => t.thread_id === thread), copied: copied.metadata.by === version });

    thread = await newThread();
    const asked = await plain.runs.wait(thread, "pays", { input: {} });
    const before = await plain.threads.get(thread);
    const { tasks } = await plain.threads.getState(thread);
    const paid = await read(plain.runs.stream(thread, "pays", { command: { resume: true }, streamMode: "values" }));
    const { title, action } = asked.__interrupt__[0].value;
    say({ title, action, thread: before.status, state: tasks[0].interrupts[0].id === asked.__interrupt__[0].id,
      answer: paid.at(-1).data.answer, after: (await plain.threads.get(thread)).status });

    thread = await newThread();
    const { run_id } = await plain.runs.create(thread, "stuck", { input: {} });
    const busy = await status(() => open("busy").runs.create(thread, "stuck", { input: {} }));
    await plain.runs.cancel(thread, run_id, true);
    say({ busy, cancelled: (await plain.runs.get(thread, run_id)).status });

    const alone = await plain.runs.wait(null, "letters", ask("alone"));
    const refused = [];
    const wrong = open("refused", { apiKey: "wrong" });
    for (const call of [() => open("refused").runs.wait(thread, "unknown", ask("x")),
      () => open("refused").runs.wait("nowhere", "letters", ask("x")), () => wrong.threads.create()]) {
      refused.push(await status(call));
    }
    const kinds = (await plain.assistants.search()).map((a) => a.graph_id);
    say({ alone: alone.answer, refused, kinds });
  },
};
await scenarios[scenario]();
