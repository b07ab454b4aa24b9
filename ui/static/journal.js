// The entries of a run's journal, as many as the page shows, kept up to date over the socket.
import { useEffect, useState, none } from './lib.js';
import { get } from './api.js';
import { watch } from './socket.js';

/** maxKept is how many entries are shown: the newest. */
const maxKept = 2000;
/** pageRows is how many are read at once, and newest how many the socket tells of together. */
const pageRows = 200, newest = 20;

/** A Journal is the entries of one run. Those in memory are without a gap. */
class Journal {
  constructor(id, changed) {
    this.path = `/runs/${id}/journal/entries`;
    this.changed = changed;
    /** @type {any[]} */
    this.entries = [];
    this.busy = false;
    this.over = false;
  }

  get last() { return this.entries.at(-1)?.seq ?? 0; }

  /** take takes the newest entries, and reads those that are missing before them. */
  async take(items) {
    const first = items[0]?.seq ?? 0;
    if (first > this.last + 1) {
      if (this.busy) return;
      this.busy = true;
      try {
        // The server has more than are shown: the newest are.
        if (first - 1 - this.last > maxKept) this.entries = [];
        let after = this.last || Math.max(0, first - 1 - maxKept);
        while (!this.over && after < first - 1) {
          const page = await get(this.path, { after: after || undefined, limit: pageRows });
          if (!page.entries.length) break;
          this.append(page.entries);
          after = this.last;
        }
      } finally { this.busy = false; }
    }
    this.append(items);
    this.changed(null);
  }

  append(items) {
    const last = this.last, fresh = items.filter(e => e.seq > last);
    if (fresh.length) this.entries = [...this.entries, ...fresh].slice(-maxKept);
  }
}

/**
 * useJournal follows the journal of a run.
 * @param {string} id
 * @returns {{entries: any[], cut: boolean, error: any}}
 */
export function useJournal(id) {
  const [state, set] = useState({ entries: /** @type {any[]} */ ([]), cut: false, error: none });
  useEffect(() => {
    if (!id) return undefined;
    const j = new Journal(id, error => set({ entries: j.entries, cut: j.entries[0]?.seq > 1, error }));
    set({ entries: [], cut: false, error: null });
    const stop = watch({
      of: 'journal', filter: { run_id: id }, limit: newest,
      poll: async () => [{ type: 'list',
        items: (await get(j.path, { after: j.last || undefined, limit: pageRows })).entries }],
      on(messages) {
        const m = messages.at(-1);
        if (m.type === 'error') j.changed(m.error);
        else j.take(m.items ?? []).catch(j.changed);
      },
    });
    return () => { j.over = true; stop(); };
  }, [id]);
  return state;
}
