// Calls against a server that fails in many ways: commits are kept and sent again byte-equal, starts have one key.

import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { readFileSync } from "node:fs";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { test, type TestContext } from "node:test";
import type { Clock } from "../src/clock.js";
import { Trust, grantsOf, signedBytes } from "../src/grants.js";
import { executeAgent, executeTask, type Executor } from "../src/handlers.js";
import type { Kind } from "../src/kinds.js";
import { Client, Failure, NotSigned, Problem } from "../src/index.js";
import { RunNotEnded, StreamedText, isProblem, verifyWebhook } from "../src/index.js";
import { Kept, Lease, type Holder, type LeasedGrant } from "../src/lease.js";
import { wire } from "../src/options.js";
import { codes, problemOf } from "../src/problems.js";
import { Lost, Refused } from "../src/session.js";
import { Transport, reach } from "../src/transport.js";

type Reply = [status: number, body: unknown, headers?: Record<string, string>] | "cut";

/** Answers calls from a list; then with a commit that is taken. */
async function serve(t: TestContext, ...replies: Reply[]) {
  const calls: { path: string; body: string; headers: http.IncomingHttpHeaders }[] = [];
  const server = http.createServer((req, res) => {
    let body = "";
    req.on("data", (d: Buffer) => (body += d.toString()));
    req.on("end", () => {
      calls.push({ path: req.url ?? "", body, headers: req.headers });
      const reply = replies.shift() ?? [200, { results: [{ ok: true }] }];
      if (reply === "cut") return void req.socket.destroy();
      res.writeHead(reply[0], reply[2]);
      res.end(typeof reply[1] === "string" ? reply[1] : JSON.stringify(reply[1]));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { calls, url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` };
}

/** A clock whose time passes at once. */
class Fast implements Clock {
  at = 0;
  now() {
    return this.at;
  }
  async sleep(ms: number) {
    this.at += ms;
    await Promise.resolve();
  }
}

const grant = (more: object = {}) =>
  ({ run_id: "r", origin_run_id: "r", epoch: 3, attempt: 1, kind: "k", queue: "default", lease_ms: 60000, max_attempts: 3, deadline_at: "", journal: [], inbox: [], ...more }) as LeasedGrant;

function lease(t: TestContext, url: string, more: object = {}) {
  const time = new Fast();
  const transport = new Transport(reach({ url, key: "key" }), time);
  t.after(() => transport.close());
  const warned: string[] = [];
  const holder: Holder = { transport, clock: time, kept: new Kept(100, (w) => warned.push(w)), path: (verb) => `/api/v1/workers/w/${verb}`, changed: () => undefined };
  return { lease: new Lease(holder, grant(more), 0), time, warned, kept: holder.kept };
}

test("a commit has the same bytes until there is an answer", async (t) => {
  const { calls, url } = await serve(t, "cut", [503, { code: "unknown_outcome" }], [500, { code: "internal" }], [429, { code: "too_many_requests" }, { "Retry-After": "2" }], [502, "<html>"]);
  const { lease: l } = lease(t, url);
  await l.commit({ journal: [{ key: "a#1", value: { aside: true, as: ["t:"], ok: 1e-6 } }] });
  assert.equal(calls.length, 6);
  assert.deepEqual([...new Set(calls.map((c) => c.body))], ['{"commits":[{"commit_id":"e3-1","run_id":"r","epoch":3,"journal":[{"key":"a#1","value":{"aside":true,"as":["t:"],"ok":0.000001}}]}]}']);
  await l.commit({ outcome: { type: "suspend" } });
  assert.match(calls.at(-1)?.body ?? "", /"commit_id":"e3-2"/);
});

test("a server that is away for an hour gets the commit", async (t) => {
  const { url } = await serve(t);
  const dead = await serve(t);
  const { lease: l, time } = lease(t, `${dead.url}`);
  const transport = (l as unknown as { holder: Holder }).holder.transport;
  const once = transport.once.bind(transport);
  let tries = 0;
  transport.once = async (...args) => {
    tries++;
    if (time.at < 3600_000) (transport as unknown as { reach: { addresses: string[] } }).reach.addresses = ["http://127.0.0.1:1"];
    else transport.reach.addresses = [url];
    return await once(...args);
  };
  await l.commit({ ack: [1] });
  assert.ok(time.at >= 3600_000 && time.at < 3610_000 && tries > 700, `after ${time.at} ms and ${tries} tries`);
});

test("a failure is in the log: who writes a first agent sees what is wrong with it", async (t) => {
  const { calls, url } = await serve(t);
  const lines: string[] = [];
  const w: Executor = { middleware: [], log: (level, text) => lines.push(`${level} ${text}`), ahead: () => 0, handBack: async () => undefined };
  const broken = () => (undefined as unknown as { price: number }).price;
  const { lease: agent } = lease(t, url);
  await executeAgent(w, { name: "k", agent: async () => broken(), options: {} } as unknown as Kind, agent);
  assert.match(lines[0] ?? "", /^warn an agent has failed: run r of k: panic: TypeError.*calls\.test\.js/);
  const { lease: task } = lease(t, url);
  await executeTask(w, { name: "k", task: async () => broken(), options: {} } as unknown as Kind, task);
  assert.match(lines[1] ?? "", /^warn a task has failed: run r of k: /);
  assert.equal(lines.length, 2);
  assert.equal(calls.length, 2);
});

test("a lease that is gone", async (t) => {
  for (const code of ["stale_epoch", "wrong_state", "run_ended", "not_found"]) {
    const { calls, url } = await serve(t, [409, { code }]);
    const { lease: l } = lease(t, url);
    await assert.rejects(l.commit({ ack: [1] }), Lost);
    assert.ok(l.lost && l.stop.signal.aborted, code);
    await assert.rejects(l.commit({ ack: [1] }), Lost);
    assert.equal(calls.length, 1);
  }
});

test("a refusal with a field is about a part of the commit", async (t) => {
  const { url } = await serve(t, [404, { code: "not_found", field: "commits[0].cancel[0]", detail: "no such child" }]);
  const { lease: l } = lease(t, url);
  await assert.rejects(l.commit({ cancel: ["x"] }), (err) => err instanceof Refused && err.field === "commits[0].cancel[0]");
  assert.equal(l.lost, false);
});

test("finished work is sent when the lease is lost", async (t) => {
  const { calls, url } = await serve(t, [503, { code: "unavailable" }], [409, { code: "stale_epoch" }]);
  const { lease: l } = lease(t, url);
  l.lose();
  await assert.rejects(l.commit({ journal: [] }), Lost);
  await assert.rejects(l.commit({ outcome: { type: "complete", result: 1 } }), Lost);
  assert.equal(calls.length, 2);
});

test("a request to stop comes with a commit, and is acknowledged with the next", async (t) => {
  const { calls, url } = await serve(t, [200, { results: [{ ok: true, cancel: true }] }]);
  const { lease: l } = lease(t, url);
  await l.commit({ ack: [1] });
  assert.ok(l.cancelled && l.stop.signal.aborted);
  await l.commit({ ack: [2] });
  assert.match(calls.at(-1)?.body ?? "", /"cancel_ack":true/);
});

test("a step asks for its limits until there is an answer, and a lease that is gone is lost", async (t) => {
  const [away, room] = [{ code: "unavailable" }, { results: [{ ok: true, taken: false, retry_ms: 70 }] }];
  const of = (code: string): Reply => [200, { results: [{ error: { code, detail: "no" } }] }];
  const { calls, url } = await serve(t, "cut", [503, away], [200, room], of("unknown_limit"), of("stale_epoch"));
  const { lease: l } = lease(t, url);
  const ask = () => l.limits("call#1", [{ name: "model", units: 3 }], 2);
  assert.equal((await ask()).retry_ms, 70);
  assert.equal(calls.length, 3);
  const question = '{"run_id":"r","epoch":3,"step":"call#1","limits":[{"name":"model","units":3}],"try":2}';
  assert.deepEqual([...new Set(calls.map((c) => c.body))], [`{"steps":[${question}]}`]);
  await assert.rejects(ask(), (err) => err instanceof Failure && err.code === "unknown_limit");
  assert.equal(l.lost, false);
  await assert.rejects(ask(), Lost);
  assert.equal(l.lost, true);
});

test("commits beyond the bound wait for room", async (t) => {
  const { url } = await serve(t, "cut", "cut");
  const { lease: l, warned, kept } = lease(t, url);
  const { lease: m } = lease(t, url);
  (m as unknown as { holder: { kept: Kept } }).holder.kept = kept;
  await Promise.all([l.commit({ ack: [1] }), m.commit({ ack: [2] })]);
  assert.equal(warned.length, 1);
});

test("a run with one attempt begins when a heartbeat was answered, and so does one of a late answer", async (t) => {
  const { url } = await serve(t);
  const { lease: l } = lease(t, url, { max_attempts: 1 });
  let begun = false;
  const done = l.confirmed().then(() => (begun = true));
  await new Promise((resolve) => setImmediate(resolve));
  assert.equal(begun, false);
  l.heard();
  await done;
  const { time } = lease(t, url);
  time.at = 20_000;
  assert.equal(new Lease({ clock: time } as unknown as Holder, grant(), 0).confirms, true);
  assert.equal(lease(t, url).lease.confirms, false);
});

test("a start is repeated under its key", async (t) => {
  const { calls, url } = await serve(t, "cut", [503, { code: "unknown_outcome" }], [201, { run_id: "r", state: "queued", status: "queued" }]);
  const c = new Client({ url, key: "key" });
  t.after(() => c.close());
  assert.equal((await c.start("k", { a: 1.0 }, { maxAttempts: 2, timeout: "90s", metadata: { aB: "c" } })).id, "r");
  assert.deepEqual([calls.length, new Set(calls.map((x) => x.headers["idempotency-key"])).size], [3, 1]);
  assert.equal(calls[0]?.body, '{"kind":"k","input":{"a":1},"max_attempts":2,"timeout":"1m30s","metadata":{"aB":"c"}}');
});

test("another address answers", async (t) => {
  const { url } = await serve(t, [201, { run_id: "r", state: "queued" }]);
  const c = new Client({ url: ["http://127.0.0.1:1", url], key: "key" });
  t.after(() => c.close());
  assert.equal((await c.start("k")).id, "r");
});

test("a deferred run is told from an ended one", async (t) => {
  const { url } = await serve(t, [202, { run_id: "r", state: "running", status: "deferred" }], [200, { run_id: "r", state: "completed", status: "completed", result: 7 }]);
  const c = new Client({ url, key: "key" });
  t.after(() => c.close());
  const run = await c.join<number>("r", 0);
  assert.deepEqual([run.deferred, run.ended], [true, false]);
  assert.throws(() => run.result(), RunNotEnded);
  assert.equal((await c.join<number>("r", "1m")).result(), 7);
});

test("a stream goes on behind its cursor", async (t) => {
  const line = (seq: number, type: string, data: unknown = null) => `id: ${seq}\nevent: ${type}\ndata: ${JSON.stringify({ seq, type, data })}\n\n`;
  const { calls, url } = await serve(
    t,
    [200, `retry: 1000\nevent: stream:attached\ndata: {"after":0}\n\n: hb\n${line(1, "run:created")}`],
    [503, { code: "too_many_streams" }],
    [200, `${line(1, "run:created")}event: stream:gap\ndata: {"from":2,"to":4}\n\n${line(5, "run:completed")}event: stream:end\ndata: {"last_seq":5}\n\n`],
  );
  const c = new Client({ url, key: "key" });
  t.after(() => c.close());
  const got: string[] = [];
  for await (const e of c.stream("r")) got.push(e.type);
  assert.deepEqual(got, ["run:created", "stream:gap", "run:completed"]);
  assert.deepEqual(calls.map((x) => x.headers["last-event-id"]), ["0", "1", "1"]);
});

test("text that is told again replaces the first", () => {
  const text = new StreamedText();
  const add = (data: object) => text.add({ seq: 0, type: "llm:delta", data: data as never });
  add({ text: "a" });
  add({ text: "b", step: "s", try: 1 });
  add({ text: "thought", channel: "reasoning" });
  assert.equal(add({ text: "c", step: "s", try: 2 }), true);
  add({ text: "old", step: "s", try: 1 });
  assert.equal(String(text), "ac");
});

test("a problem has its code, and one of a later server too", () => {
  const p = problemOf(503, { "retry-after": "7" }, '{"code":"unavailable","detail":"away"}');
  assert.deepEqual([p.code, p.status, p.retryAfter, p.detail], ["unavailable", 503, 7000, "away"]);
  assert.ok(isProblem(p, "unavailable") && !isProblem(p, "not_found"));
  assert.equal(problemOf(502, {}, "<html>").code, "unavailable");
  assert.equal(new Problem("of_a_later_release").code, "of_a_later_release");
  assert.ok(Object.keys(codes).length > 40);
});

test("options have the names of the API", () => {
  assert.deepEqual(wire({ runAt: new Date(0), unique: { key: "k", onConflict: "reject", for: 1500 }, input: { keepMe: 1 }, delay: undefined }), {
    run_at: "1970-01-01T00:00:00.000Z",
    unique: { key: "k", on_conflict: "reject", for: "1.5s" },
    input: { keepMe: 1 },
  });
});

test("signatures: the vector of the page", () => {
  const page = readFileSync(new URL("../../../../docs/security.md", import.meta.url), "utf8");
  const text = /```json vector\n([\s\S]*?)```/.exec(page)?.[1] ?? "";
  const vector = JSON.parse(text) as { public_key: string; canonical: string };
  const [g] = grantsOf(`{"runs":[${text.slice(text.indexOf("{", text.indexOf('"grant"')), text.lastIndexOf("}"))}]}`);
  assert.ok(g);
  assert.equal(g.input, '{"host":"Köln","n":1}');
  assert.equal(signedBytes(g.grant, g.input).toString(), vector.canonical);
  const der = Buffer.concat([Buffer.from("302a300506032b6570032100", "hex"), Buffer.from(vector.public_key, "base64")]).toString("base64");
  const pem = `-----BEGIN PUBLIC KEY-----\n${der}\n-----END PUBLIC KEY-----\n`;
  const trust = new Trust(pem, true);
  assert.ok(trust.accepts(g.grant, g.input));
  assert.ok(!trust.accepts(g.grant, g.input.replace("1", "2")));
  assert.ok(!trust.accepts({ ...g.grant, kind: "other" }, g.input));
  const { signature: _, ...unsigned } = g.grant;
  assert.ok(!trust.accepts(unsigned, g.input));
  assert.ok(new Trust(pem, false).accepts(unsigned, g.input));
  assert.ok(!new Trust(pem, false).accepts({ ...g.grant, signature: { key_id: "x", value: "?" } }, g.input));
});

test("inputs are found as they stand", () => {
  const answer = '{ "x": [1], "runs" : [ {"a":"[{\\"","input": {"b" : "\\u00e9 }", "c":1.0}, "z":1 }, {"input":"q"},{"z":2}]}';
  assert.deepEqual(grantsOf(answer).map((g) => g.input), ['{"b":"\\u00e9 }","c":1.0}', '"q"', ""]);
  assert.deepEqual(grantsOf('{"runs":[]}'), []);
  assert.deepEqual(grantsOf("{}"), []);
});

test("webhooks are verified", () => {
  const secret = `whsec_${Buffer.from("0123456789abcdef").toString("base64")}`;
  const body = '{"type":"run:completed"}';
  const value = createHmac("sha256", "0123456789abcdef").update(`msg_1.1000.${body}`).digest("base64");
  const headers = { "Webhook-Id": "msg_1", "webhook-timestamp": "1000", "webhook-signature": `v1,other v1,${value}` };
  const at = (s: number) => ({ now: new Date(s * 1000) });
  assert.deepEqual(verifyWebhook(secret, headers, body, at(1200)), { type: "run:completed" });
  assert.deepEqual(verifyWebhook(secret, new Headers(headers), Buffer.from(body), at(1000)), { type: "run:completed" });
  for (const [b, s] of [[`${body} `, 1000], [body, 1400], [body, 600]] as const) assert.throws(() => verifyWebhook(secret, headers, b, at(s)), NotSigned);
  assert.throws(() => verifyWebhook(secret, { ...headers, "webhook-signature": "" }, body, at(1000)), NotSigned);
});

test("what is no duration is refused before anything is sent", async () => {
  const client = new Client({ url: "http://127.0.0.1:1", key: "k" });
  for (const wrong of [{ wait: "1m" }, "soon", NaN, null] as never[])
    await assert.rejects(client.join("r", wrong), /is no duration/, JSON.stringify(wrong));
  client.close();
});

test("groups are listed page after page", async (t) => {
  const { calls, url } = await serve(t, [200, { groups: [], next_cursor: "b" }], [200, { groups: [{ group_id: "a", total: 2 }] }]);
  const client = new Client({ url, key: "k" });
  const found = [];
  for await (const g of client.groups({ state: "ended" })) found.push([g.group_id, g.total]);
  assert.deepEqual(found, [["a", 2]]);
  assert.deepEqual(calls.map((c) => c.path), ["/api/v1/groups?state=ended", "/api/v1/groups?state=ended&cursor=b"]);
  client.close();
});
