// The log of a run, as much of it as the page has: the newest lines, and older ones as somebody asks for them.
// The lines in memory are without a gap, from the first to the last.
import { get } from './api.js';

/** pageLines is how many lines are read at once. */
const pageLines = 2000;
/** keptLines is how many lines are kept of a log that nobody has scrolled back in, and maxLines the most. */
export const keptLines = 20_000, maxLines = 200_000;

/** RunLog is the log of one run. */
export class RunLog {
  /**
   * @param {string} id
   * @param {() => void} changed  is called when there are other lines
   */
  constructor(id, changed) {
    this.id = id;
    this.changed = changed;
    /** @type {any[]} */
    this.events = [];
    /** version changes with the lines. Their number may stay: old ones go when there are too many. */
    this.version = 0;
    this.bound = keptLines;
    /** begin is the first line that the server still has. */
    this.begin = 1;
    this.busy = false;
    this.over = false;
    /** absent is the line up to which there was nothing to read: the log is not stored any more. */
    this.absent = 0;
  }

  get first() { return this.events[0]?.seq ?? 0; }
  get last() { return this.events.at(-1)?.seq ?? 0; }
  /** whole tells whether there are no older lines. */
  get whole() { return this.first > 0 && this.first <= this.begin; }
  /** full tells that the page takes no older lines. */
  get full() { return this.events.length >= maxLines; }

  /** add takes lines that follow on those that are here. It returns false if some are missing in between. */
  add(events) {
    const fresh = (events ?? []).filter(e => e.seq > this.last);
    if (!fresh.length) return true;
    if (fresh[0].seq > this.last + 1 && (this.events.length || fresh[0].seq > this.begin)) return false;
    this.events.push(...fresh);
    if (this.events.length > this.bound) this.events.splice(0, this.events.length - this.bound);
    this.touch();
    return true;
  }

  touch() {
    this.version++;
    this.changed();
  }

  async read(after, limit) {
    const page = await get(`/runs/${this.id}/events`, { after: after || undefined, limit });
    if (page.gap) this.begin = page.gap.to + 1;
    return page.events;
  }

  /** alone runs a reader, one at a time. An error is left to the next change, or the next poll. */
  async alone(reader) {
    if (this.busy || this.over) return;
    this.busy = true;
    try { await reader(); } catch { /* read again later */ } finally { this.busy = false; }
  }

  /** follow reads the lines that are missing up to a line. Of a log that is not here yet, it reads the newest. */
  follow(upto) {
    return this.alone(async () => {
      while (this.last < upto && !this.over) {
        if (!this.events.length || upto - this.last > this.bound) {
          this.events = await this.read(Math.max(0, upto - pageLines), pageLines);
          this.touch();
        } else if (!this.add(await this.read(this.last, pageLines))) {
          this.events = []; // lines in between are no longer stored
        }
        if (!this.events.length) { this.absent = upto; break; }
      }
    });
  }

  /** older reads a page of older lines. */
  older() {
    return this.alone(async () => {
      if (!this.first || this.whole || this.full) return;
      const from = Math.max(0, this.first - 1 - pageLines), first = this.first;
      const events = (await this.read(from, first - 1 - from)).filter(e => e.seq < first);
      if (first !== this.first) return;
      if (!events.length) this.begin = first;
      this.events.unshift(...events);
      this.bound = Math.min(maxLines, Math.max(keptLines, this.events.length + pageLines));
      this.touch();
    });
  }

  /** back reads older lines until there are as many as are kept. */
  async back() {
    while (!this.over && !this.whole && this.events.length && this.events.length + pageLines <= keptLines) {
      const before = this.first;
      await this.older();
      if (this.first === before) return;
    }
  }
}

/**
 * allLines reads a log from its beginning, a page at a time, and gives each page to take.
 * @param {string} id
 * @param {(events: any[], upto: number) => boolean} take  returns false to stop
 */
export async function allLines(id, take) {
  for (let after = 0; ;) {
    const page = await get(`/runs/${id}/events`, { after: after || undefined, limit: pageLines });
    after = page.next_after;
    if (!take(page.events, after) || !page.events.length) return;
  }
}
