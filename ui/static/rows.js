// Rows of runs, as the messages of a watch tell of them. A row replaces a row: a fact that has ended is not
// in the new row, and goes. A row that has gone goes. Every view that shows runs keeps them here.

const newestFirst = (a, b) => (a.run_id < b.run_id ? 1 : -1);

/** RunRows are the runs of one watch. */
export class RunRows {
  constructor() {
    /** @type {Map<string, any>} */
    this.rows = new Map();
    /** next is the cursor of the runs behind the page. */
    this.next = '';
    /** cut tells that there are more runs than the page has. */
    this.cut = false;
  }

  /**
   * take takes a message, and returns the rows that it has brought, each with the lines that came with it. A row
   * that was read over REST does not replace a newer one: its call may have taken long.
   * @param {any} m
   * @returns {{run: any, events?: any[]}[]}
   */
  take(m) {
    if (m.type === 'snapshot') {
      const before = this.rows;
      this.rows = new Map();
      for (const run of m.runs ?? []) {
        const old = m.polled && before.get(run.run_id);
        this.rows.set(run.run_id, old && old.last_seq > run.last_seq ? old : run);
      }
      this.next = m.next_cursor ?? '';
      this.searched = m.searched_to ?? '';
      this.cut = Boolean(m.truncated ?? m.next_cursor);
      return [...this.rows.values()].map(run => ({ run }));
    }
    const brought = [];
    for (const c of m.changes ?? [m]) {
      if (c.why === 'no_longer_watched') this.cut = true;
      if (c.type === 'gone' || c.left || c.why) this.rows.delete(c.run_id);
      else if (c.run) { this.rows.set(c.run_id, c.run); brought.push({ run: c.run, events: c.events }); }
    }
    return brought;
  }

  /** list is the rows, newest first. */
  list() { return [...this.rows.values()].sort(newestFirst); }

  /** keep leaves the newest rows. */
  keep(limit) {
    if (this.rows.size <= limit) return;
    for (const r of this.list().slice(limit)) this.rows.delete(r.run_id);
    this.next ||= [...this.rows.keys()].sort()[0];
    this.cut = true;
  }
}

/** rowsPerFrame is how many rows of a list are drawn anew in one frame: as many as take some 10 ms. */
const rowsPerFrame = 6;

/**
 * partly is the list to draw in this frame on the way from one list to another: at most rowsPerFrame rows of it
 * are new or have changed, the oldest first. The others follow in the next frames, so that no task of the page
 * takes long however much has changed. It returns wanted itself if that can be drawn at once.
 * @param {any[]|null} drawn
 * @param {any[]} wanted
 * @param {number} limit
 */
export function partly(drawn, wanted, limit) {
  if (!drawn || document.hidden) return wanted;
  const old = new Map(drawn.map(r => [r.run_id, r]));
  let left = rowsPerFrame, cut = false;
  const list = [];
  for (const row of wanted.toReversed()) {
    const before = old.get(row.run_id);
    if (before === row || left > 0) { if (before !== row) left--; list.push(row); }
    else { cut = true; if (before) list.push(before); }
  }
  if (!cut) return wanted;
  // Rows that will go stay until others take their place, so that the list does not shrink meanwhile.
  const kept = new Set(wanted.map(r => r.run_id));
  const going = drawn.filter(r => !kept.has(r.run_id)).slice(0, Math.max(0, limit - list.length));
  return [...list, ...going].sort(newestFirst);
}
