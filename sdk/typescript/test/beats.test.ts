// Heartbeats against a server with a script. Its answers name leases that are lost, asked to stop, or locked.

import assert from "node:assert/strict";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { test, type TestContext } from "node:test";
import { clock } from "../src/clock.js";
import { Heart } from "../src/heart.js";
import { Kept, Lease, type Holder, type LeasedGrant } from "../src/lease.js";
import { Lost } from "../src/session.js";
import { Transport, reach } from "../src/transport.js";
import { turns } from "./support.js";

interface Beat {
  run_id: string;
  progress?: number;
  activity?: string;
}

/** Takes heartbeats. Each is answered by the test; polls for news stay open. */
async function script(t: TestContext) {
  const beats: { runs: Beat[]; answer: (body: object, status?: number) => void }[] = [];
  let came: () => void = () => undefined;
  const server = http.createServer((req, res) => {
    let body = "";
    req.on("data", (d: Buffer) => (body += d.toString()));
    req.on("end", () => {
      if (!req.url?.endsWith("/heartbeat")) return;
      const answer = (b: object, status = 200) => res.writeHead(status).end(JSON.stringify(b));
      beats.push({ runs: (JSON.parse(body) as { runs: Beat[] }).runs, answer });
      came();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  const next = async () => {
    while (beats.length === 0) await new Promise<void>((resolve) => (came = resolve));
    return beats.shift() as (typeof beats)[number];
  };
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, next };
}

/** Returns a lease whose heartbeats begin at once. */
function holding(t: TestContext, url: string, run_id: string, warned: string[] = []): Lease {
  const to = reach({ url, key: "key" });
  const transport = new Transport(to);
  const heart = new Heart(to, "w", clock, (text) => warned.push(text));
  const kept = new Kept(100, () => undefined);
  const changed: Holder["changed"] = (l, what) => heart.changed(l, what);
  const holder: Holder = { transport, clock, kept, path: (verb) => verb, changed };
  t.after(async () => {
    transport.close();
    await heart.end();
  });
  const grant = { run_id, epoch: 1, lease_ms: 80, max_attempts: 1, journal: [], inbox: [] } as unknown as LeasedGrant;
  const lease = new Lease(holder, grant, clock.now());
  heart.add(lease);
  return lease;
}

test("a lease whose row is locked is neither lost nor heard of, and its progress is told again", async (t) => {
  const { url, next } = await script(t);
  const lease = holding(t, url, "r");
  lease.note({ progress: 7 });
  let heard = false;
  const confirmed = lease.confirmed().then(() => (heard = true));
  const later = [{ run_id: "r", epoch: 1 }];
  let beat = await next();
  // The first heartbeats may be sent before the note has come to their thread.
  for (let n = 0; n < 3 || beat.runs[0]?.progress !== 7; n++) {
    beat.answer({ lost: [], cancel: [], later });
    beat = await next();
  }
  await turns();
  assert.deepEqual([heard, lease.lost, beat.runs[0]?.progress], [false, false, 7]);
  beat.answer({ lost: [], cancel: [] });
  await confirmed;
  // On a busy machine some heartbeats are under way already.
  for (let n = 0; n < 100 && beat.runs[0]?.progress !== undefined; n++) {
    beat = await next();
    beat.answer({ lost: [], cancel: [] });
  }
  assert.equal(beat.runs[0]?.progress, undefined);
});

test("what a heartbeat is refused for is left out of the next one", async (t) => {
  const { url, next } = await script(t);
  const warned: string[] = [];
  const lease = holding(t, url, "r", warned);
  lease.note({ activity: "a", progress: 7 });
  const later = [{ run_id: "r", epoch: 1 }];
  let beat = await next();
  while (beat.runs[0]?.progress !== 7) {
    beat.answer({ lost: [], cancel: [], later });
    beat = await next();
  }
  for (let n = 0; n < 100 && beat.runs[0]?.progress === 7; n++) {
    beat.answer({ code: "invalid" }, 422);
    beat = await next();
  }
  assert.deepEqual(beat.runs[0], { run_id: "r", epoch: 1 });
  beat.answer({ lost: [{ run_id: "r", epoch: 1 }], cancel: [] });
  await assert.rejects(lease.confirmed(), Lost);
  assert.ok(warned.length > 0);
});
