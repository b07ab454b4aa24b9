// The thread of a run: reading it whole, or from its end. The messages read are recorded.

import type { Branch } from "./branch.js";
import type { Execution } from "./execution.js";
import { isObject } from "./json.js";
import type { ThreadMessage } from "./session.js";

/** Looks whether a reading of the thread has the number that it had before. */
function askInOrder(x: Execution, b: Branch, sort: string, key: string): void {
  const at = x.facts.index.get(key) as number;
  if (b.lastAsked > at)
    throw x.hold("nondeterminism", `${key}: the journal has this reading of the thread before something that the agent has asked for already; announce the change with version`);
  x.ask(b, sort, key);
}

/** Reads the thread, up to what an earlier execution has read. */
export async function history(x: Execution, b: Branch, notices: boolean): Promise<ThreadMessage[]> {
  x.checkThread("history");
  x.goOn(b);
  const key = `_history:${b.prefix}${b.key("history", "_history").slice(b.prefix.length)}`;
  const recorded = x.facts.entries.get(key) as number | undefined;
  if (recorded === undefined) x.begin(b, `${key}: the journal does not have this reading of the thread`);
  await x.flush();
  if (recorded === undefined) await x.beyond(b);
  const out: ThreadMessage[] = [];
  let last = 0;
  for (let after = 0; ; ) {
    const page = await x.session.messages({ after });
    for (const m of page.messages) {
      if (recorded !== undefined && m.seq > recorded) continue;
      last = Math.max(last, m.seq);
      if (notices || !isNotice(m)) out.push(m);
    }
    if (page.messages.length === 0 || page.next_after === undefined || page.next_after <= after || (recorded !== undefined && page.next_after >= recorded)) break;
    after = page.next_after;
  }
  if (recorded === undefined) {
    x.facts.entries.set(key, last);
    x.batch.entries.push({ key, value: last });
  } else askInOrder(x, b, "history", key);
  x.readSeq = Math.max(x.readSeq, recorded ?? last);
  return out;
}

function isNotice(m: ThreadMessage): boolean {
  return m.role === "system" && isObject(m.metadata) && (m.metadata.notice === true || m.metadata.notice === "true");
}

/** Reads the thread from its end, message by message. Leave the loop when enough is read. */
export async function* newestMessages(x: Execution, b: Branch): AsyncGenerator<ThreadMessage, void, void> {
  x.guard(b, "newestMessages");
  x.checkThread("newestMessages");
  x.goOn(b);
  const key = `_newest:${b.key("newest", "_newest")}`;
  const recorded = x.facts.entries.get(key) as { first: number; last: number } | undefined;
  if (recorded === undefined) x.begin(b, `${key}: the journal does not have this reading of the thread`);
  else {
    askInOrder(x, b, "newest", key);
    x.readSeq = Math.max(x.readSeq, recorded.last);
    if (recorded.first === 0) return;
  }
  await x.call(b, "newestMessages", async () => {
    await x.flush();
    if (recorded === undefined) await x.beyond(b);
  });
  let first = 0;
  let last = 0;
  try {
    for (let before = recorded ? recorded.last + 1 : Number.MAX_SAFE_INTEGER; ; ) {
      const page = await x.call(b, "newestMessages", () => x.session.messages({ before }));
      for (const m of page.messages) {
        if (recorded && m.seq < recorded.first) return;
        first = m.seq;
        last = Math.max(last, m.seq);
        if (!isNotice(m)) yield m;
      }
      if (page.messages.length === 0 || !page.next_before) return;
      before = page.next_before;
    }
  } finally {
    if (recorded === undefined) {
      x.facts.entries.set(key, { first, last });
      x.batch.entries.push({ key, value: { first, last } });
      x.readSeq = Math.max(x.readSeq, last);
    }
  }
}
