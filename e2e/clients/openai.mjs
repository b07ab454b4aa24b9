// Uses the door for OpenAI's clients with one of them, as its own documentation says, and prints one JSON
// line for each fact: node openai.mjs <6 or 7> <address of the door> <scenario> [more].
const [version, baseURL, scenario, ...more] = process.argv.slice(2);
const { default: OpenAI } = await import(`openai-${version}`);
const say = (fact) => console.log(JSON.stringify(fact));
const open = (path, options = {}) =>
  new OpenAI({ apiKey: process.env.PERDURE_KEY, baseURL: `${baseURL}/${path}/v1`, maxRetries: 9, ...options });
const plain = open(`plain-${version}`);

// follow reads a stream, and goes on after the last event that it has, until the response has ended.
async function follow(stream, id, resume) {
  const events = [];
  let breaks = 0;
  for (;;) {
    try {
      for await (const e of stream) {
        id ??= e.response?.id;
        events.push(e);
      }
    } catch (error) {
      breaks++;
    }
    const last = events.at(-1);
    if (/^response\.(completed|failed|incomplete)$/.test(last?.type)) return { id, events, breaks };
    if (breaks === 0) return { id, events, breaks, clean: true }; // it ended, and says nothing of that
    for (;;) {
      try {
        stream = await resume(id, last?.sequence_number ?? 0);
        break;
      } catch (error) {
        if (error.status) throw error;
      }
    }
  }
}

// textOf is the text of a response. Helpers of version 6 do not add output_text.
const textOf = (r) => r.output.flatMap((x) => x.content ?? []).map((p) => p.text).join("");

const again = (client) => (id, after) => client.responses.retrieve(id, { stream: true, starting_after: after });

const scenarios = {
  // The connection is cut after each event in turn.
  async cuts() {
    const whole = await follow(
      await plain.responses.create({ model: "letters", input: `cuts ${version}`, background: true, stream: true }),
      null, again(plain));
    const n = whole.events.length;
    const want = JSON.stringify(whole.events);
    const differ = [];
    for (let i = 1; i < n; i++) {
      const client = open(`cut${i}-${version}`, { maxRetries: 0 });
      const got = await follow(await client.responses.retrieve(whole.id, { stream: true }), whole.id, again(client));
      if (JSON.stringify(got.events) !== want || got.breaks !== 1) differ.push(i);
    }
    const final = await plain.responses.stream({ response_id: whole.id }).finalResponse();
    say({ frames: n, differ, text: textOf(final), status: final.status });
  },

  // One POST whose answer is lost, or comes later than the client waits, or whose server goes away.
  async waits() {
    const [path, timeout] = more;
    const client = open(`${path}-${version}`, timeout ? { timeout: Number(timeout) } : {});
    const r = await client.responses.create({ model: "gated", input: `${path} ${version}` });
    say({ text: r.output_text, status: r.status });
  },

  // A stream whose server goes away in the middle.
  async streams() {
    const client = open(`${more[0]}stream-${version}`);
    const got = await follow(
      await client.responses.create({ model: "paused", input: `${more[0]} ${version}`, background: true, stream: true }),
      null, again(client));
    const whole = await follow(await again(client)(got.id, 0), got.id, again(client));
    say({ same: JSON.stringify(got.events) === JSON.stringify(whole.events), broke: got.breaks > 0,
      text: got.events.at(-1).response && textOf(got.events.at(-1).response) });
  },

  // Webhooks, approvals, tools, polling, cancelling and errors.
  async rest() {
    const [body, headers, secret] = more;
    const event = await plain.webhooks.unwrap(body, JSON.parse(headers), secret);
    const of = await plain.responses.retrieve(event.data.id);
    const forged = await plain.webhooks.unwrap(body + " ", JSON.parse(headers), secret).then(() => "accepted", (e) => e.name);
    say({ event: event.type, status: of.status, model: of.model, forged: forged });
    let r = await plain.responses.create({ model: "pays", input: "go" });
    const ask = r.output.find((x) => x.type === "mcp_approval_request");
    r = await plain.responses.create({ model: "pays", previous_response_id: r.id,
      input: [{ type: "mcp_approval_response", approval_request_id: ask.id, approve: true }] });
    say({ asked: ask.name, action: JSON.parse(ask.arguments), text: r.output_text });

    r = await plain.responses.create({ model: "tools", input: "go", background: true });
    while (r.status === "queued" || r.status === "in_progress") r = await plain.responses.retrieve(r.id);
    const helped = await plain.responses.stream({ response_id: r.id }).finalResponse();
    say({ tool: r.output[1].name, output: r.output[1].output, text: r.output_text,
      same: textOf(helped) === r.output_text && helped.output.length === r.output.length });

    const chat = await plain.chat.completions.create({ model: "letters", messages: [{ role: "user", content: "x" }] });
    let streamed = "";
    for await (const c of await plain.chat.completions.create({ model: "letters", stream: true,
      messages: [{ role: "user", content: "y" }] })) streamed += c.choices[0].delta.content ?? "";
    say({ chat: chat.choices[0].message.content, streamed });

    r = await plain.responses.create({ model: "stuck", input: "x", background: true });
    r = await plain.responses.cancel(r.id);
    while (r.status !== "cancelled") r = await plain.responses.retrieve(r.id);
    say({ cancelled: r.status });
    const refused = [];
    const once = open(`once-${version}`);
    for (const call of [
      () => once.responses.create({ model: "unknown", input: "x" }),
      () => once.responses.create({ model: "letters", input: "" }),
      () => once.responses.retrieve("resp_x"),
      () => open(`once-${version}`, { apiKey: "wrong" }).responses.create({ model: "letters", input: "x" }),
    ]) await call().then(() => refused.push("none"), (e) => refused.push(e.status));
    say({ refused });
    say({ models: (await plain.models.list()).data.map((m) => m.id) });
  },
};
await scenarios[scenario]();
