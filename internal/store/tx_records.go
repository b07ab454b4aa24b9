package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// OpenWaits gives a run's open waits, in the order of their ids.
func (tx *Tx) OpenWaits(t perdure.TenantID, id perdure.RunID) ([]perdure.Wait, error) {
	k := runKey{t, id}
	if !tx.haveWaits[k] {
		err := waitTable.query(tx.sess, "WHERE tenant=? AND run_id=? AND state='open'", []any{string(t), string(id)}, func(w *perdure.Wait) error {
			tx.waits.absorb(waitKey{k, w.ID}, *w, true)
			return nil
		})
		if err != nil {
			return nil, err
		}
		tx.haveWaits[k] = true
	}
	var out []perdure.Wait
	for w := range tx.waits.of(k) {
		if w.State == perdure.WaitOpen {
			out = append(out, *w)
		}
	}
	slices.SortFunc(out, func(a, b perdure.Wait) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// Wait gives one wait of a run, open or not.
func (tx *Tx) Wait(t perdure.TenantID, run perdure.RunID, id string) (perdure.Wait, bool, error) {
	k := waitKey{runKey{t, run}, id}
	if w, ok, known := tx.waits.get(k); known {
		return w, ok, nil
	}
	err := waitTable.query(tx.sess, "WHERE tenant=? AND run_id=? AND id=?", []any{string(t), string(run), id}, func(w *perdure.Wait) error {
		tx.waits.absorb(k, *w, true)
		return nil
	})
	if err == nil {
		tx.waits.absorb(k, perdure.Wait{}, false)
	}
	w, ok, _ := tx.waits.get(k)
	return w, ok, err
}

// MissedWait names a wait that is over although the suspend that named it was not ended by it.
func (tx *Tx) MissedWait(t perdure.TenantID, run perdure.RunID) (id string, err error) {
	err = tx.sess.Query("SELECT id FROM waits WHERE tenant=? AND run_id=? AND named=1 AND state NOT IN ('open','closed') ORDER BY id LIMIT 1",
		[]any{string(t), string(run)}, func(scan func(...any) error) error { return scan(&id) })
	if err != nil || id == "" {
		return "", err
	}
	w, _, err := tx.Wait(t, run, id)
	if !w.Named {
		id = ""
	}
	return id, err
}

// PutWait stages a wait.
func (tx *Tx) PutWait(w perdure.Wait) {
	tx.waits.put(tx, waitKey{runKey{w.Tenant, w.RunID}, w.ID}, w)
}

// JournalKeys gives the keys of a run's journal that begin with a prefix, in the order of their recording. What the batch
// has staged is among them.
func (tx *Tx) JournalKeys(t perdure.TenantID, run perdure.RunID, prefix string) ([]string, error) {
	seqs := make(map[string]int64)
	last := len(prefix) - 1
	err := tx.sess.Query("SELECT key, seq FROM journal WHERE tenant=? AND run_id=? AND key>=? AND key<?",
		[]any{string(t), string(run), prefix, prefix[:last] + string(rune(prefix[last]+1))}, func(scan func(...any) error) error {
			var key string
			var seq int64
			err := scan(&key, &seq)
			seqs[key] = seq
			return err
		})
	for _, k := range tx.journal.dirty {
		if k.runKey == (runKey{t, run}) && strings.HasPrefix(k.key, prefix) {
			seqs[k.key] = tx.journal.slots[k].val.Seq
		}
	}
	return slices.SortedFunc(maps.Keys(seqs), func(a, b string) int { return cmp.Compare(seqs[a], seqs[b]) }), err
}

// PutJournal stages a journal entry.
func (tx *Tx) PutJournal(j JournalRow) {
	tx.journal.put(tx, journalKey{runKey{j.Tenant, j.RunID}, j.Key}, j)
}

// maxAnswer is how much of an answer a run's row carries: it is written anew with every change of the run.
const maxAnswer = 512

// PutCommit stages the last commit of a run as the batch has it. The one before it goes to the others, and so does one
// whose answer is long.
func (tx *Tx) PutCommit(t perdure.TenantID, id perdure.RunID, c perdure.Taken) error {
	r, ok, err := tx.Run(t, id)
	if err != nil || !ok {
		return err
	}
	apart := func(c perdure.Taken) {
		tx.commits.put(tx, commitKey{runKey{t, id}, c.ID}, CommitRow{Tenant: t, RunID: id, Taken: c, At: tx.Now})
		r.Commits++
	}
	if r.LastCommit.ID != "" {
		apart(r.LastCommit)
	}
	if r.LastCommit = c; len(c.Answer) > maxAnswer {
		apart(c)
		r.LastCommit = perdure.Taken{}
	}
	tx.Put(r, nil)
	return nil
}

// LateResults gives what a run has of late results.
func (tx *Tx) LateResults(t perdure.TenantID, run perdure.RunID) ([]perdure.LateResult, error) {
	k := runKey{t, run}
	err := lateTable.query(tx.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)}, func(l *perdure.LateResult) error {
		tx.lates.absorb(lateKey{k, l.N}, *l, true)
		return nil
	})
	var out []perdure.LateResult
	for l := range tx.lates.of(k) {
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b perdure.LateResult) int { return a.N - b.N })
	return out, err
}

// PutLate stages a late result.
func (tx *Tx) PutLate(l perdure.LateResult) {
	tx.lates.put(tx, lateKey{runKey{l.Tenant, l.RunID}, l.N}, l)
}

// DeadLetter gives a run's dead letter.
func (tx *Tx) DeadLetter(t perdure.TenantID, run perdure.RunID) (perdure.DeadLetter, bool, error) {
	k := runKey{t, run}
	if d, ok, known := tx.deads.get(k); known {
		return d, ok, nil
	}
	err := deadTable.query(tx.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)}, func(d *perdure.DeadLetter) error {
		tx.deads.absorb(k, *d, true)
		return nil
	})
	if err == nil {
		tx.deads.absorb(k, perdure.DeadLetter{}, false)
	}
	d, ok, _ := tx.deads.get(k)
	return d, ok, err
}

// PutDeadLetter stages a dead letter.
func (tx *Tx) PutDeadLetter(d perdure.DeadLetter) {
	tx.deads.put(tx, runKey{d.Tenant, d.RunID}, d)
}

// DropDeadLetter discards a dead letter; its run stays.
func (tx *Tx) DropDeadLetter(t perdure.TenantID, run perdure.RunID) {
	if sl := tx.deads.slots[runKey{t, run}]; sl != nil {
		before := *sl
		sl.exists = false
		tx.undo = append(tx.undo, func() { *sl = before })
	}
	push(tx, &tx.later, statement{"DELETE FROM dead_letters WHERE tenant=? AND run_id=?", []any{string(t), string(run)}, anyNumber})
}

// ---- threads, gatherings, keys, workers, waiters

// Thread gives a thread.
func (tx *Tx) Thread(t perdure.TenantID, id perdure.ThreadID) (perdure.Thread, bool, error) {
	k := threadKey{t, id}
	if th, ok, known := tx.threads.get(k); known {
		return th, ok, nil
	}
	err := threadTable.query(tx.sess, "WHERE tenant=? AND id=?", []any{string(t), string(id)}, func(th *perdure.Thread) error {
		tx.threads.absorb(k, *th, true)
		return nil
	})
	if err == nil {
		tx.threads.absorb(k, perdure.Thread{}, false)
	}
	th, ok, _ := tx.threads.get(k)
	return th, ok, err
}

// PutThread stages a thread, on which something happens now. Its version is counted when the batch is written.
func (tx *Tx) PutThread(th perdure.Thread) {
	th.UpdatedAt = tx.Now
	tx.threads.put(tx, threadKey{th.Tenant, th.ID}, th)
}

// AddMessage stages a message; its thread is staged by the caller, with the new Seq.
func (tx *Tx) AddMessage(m perdure.ThreadMessage) {
	if tx.doubt { // as renumber does for lines
		last := int64(0)
		_ = tx.sess.Query("SELECT coalesce(max(seq),0) FROM messages WHERE tenant=? AND thread_id=?", []any{string(m.Tenant), string(m.ThreadID)}, func(scan func(...any) error) error {
			return scan(&last)
		})
		for i := range tx.messages {
			if x := &tx.messages[i]; x.Tenant == m.Tenant && x.ThreadID == m.ThreadID {
				last = max(last, x.Seq)
			}
		}
		m.Seq = max(m.Seq, last+1)
		if th, ok, _ := tx.threads.get(threadKey{m.Tenant, m.ThreadID}); ok {
			th.Seq = m.Seq
			tx.PutThread(th)
		}
	}
	push(tx, &tx.messages, m)
}

// Gathering gives a chord or a group, without its members.
func (tx *Tx) Gathering(t perdure.TenantID, id perdure.GroupID) (perdure.Group, bool, error) {
	k := groupKey{t, id}
	if g, ok, known := tx.groups.get(k); known {
		return g, ok, nil
	}
	err := tx.Gatherings(t, []perdure.GroupID{id})
	g, ok, _ := tx.groups.get(k)
	return g, ok, err
}

// Gatherings reads many chords and groups at once.
func (tx *Tx) Gatherings(t perdure.TenantID, ids []perdure.GroupID) error {
	var want []string
	for _, id := range ids {
		if _, _, known := tx.groups.get(groupKey{t, id}); !known {
			want = append(want, string(id))
		}
	}
	return eachPart(tx.s.dialect, want, func(part []string) error {
		given, args := tx.s.dialect.keyed("gatherings", []string{"tenant", "id"}, []string{string(t)}, part)
		err := groupHeads.query(tx.sess, given, args, func(g *perdure.Group) error {
			tx.groups.absorb(groupKey{t, g.ID}, *g, true)
			return nil
		})
		if err != nil {
			return err
		}
		for _, id := range part {
			tx.groups.absorb(groupKey{t, perdure.GroupID(id)}, perdure.Group{}, false)
		}
		return nil
	})
}

// Members gives the runs of a gathering.
func (tx *Tx) Members(g *perdure.Group) ([]perdure.RunID, error) {
	if g.Members != nil {
		return g.Members, nil
	}
	var out []perdure.RunID
	err := tx.sess.Query("SELECT members FROM gatherings WHERE tenant=? AND id=?", []any{string(g.Tenant), string(g.ID)},
		func(scan func(...any) error) error { return scan(idList{&out}) })
	return out, err
}

// GatheringsOf gives the ids of the gatherings that wait for a run.
func (tx *Tx) GatheringsOf(t perdure.TenantID, run perdure.RunID) ([]perdure.GroupID, error) {
	var out []perdure.GroupID
	err := memberTable.query(tx.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)}, func(m *MemberRow) error {
		if _, _, known := tx.members.get(*m); !known { // the batch may have let go of it
			out = append(out, m.ID)
		}
		return nil
	})
	for m := range tx.members.of(runKey{t, run}) {
		out = append(out, m.ID)
	}
	slices.Sort(out)
	return out, err
}

// Watchers counts how many gatherings wait for each of some runs, as far as the database has them.
func (tx *Tx) Watchers(t perdure.TenantID, runs []perdure.RunID) (map[perdure.RunID]int, error) {
	out := make(map[perdure.RunID]int)
	err := eachPart(tx.s.dialect, texts(runs), func(part []string) error {
		given, args := tx.s.dialect.keyed("members", []string{"tenant", "run_id"}, []string{string(t)}, part)
		return tx.sess.Query("SELECT run_id, count(*) FROM members "+given+" GROUP BY run_id", args, func(scan func(...any) error) error {
			var id perdure.RunID
			var n int
			err := scan(&id, &n)
			out[id] = n
			return err
		})
	})
	return out, err
}

// RingingGatherings gives gatherings whose alarm has rung: groups whose deadline has passed, and those of
// which something is left to do.
func (tx *Tx) RingingGatherings(limit int) ([]perdure.Group, error) {
	out, err := tx.ringingGroups("", nil, limit)
	if err != nil || len(out) < limit {
		return out, err
	}
	// There are more than one sweep can do: it goes round the tenants.
	due, err := tx.dueTenants("gatherings", "")
	if err != nil || len(due) < 2 {
		return out, err
	}
	out = nil
	for _, t := range due {
		part, err := tx.ringingGroups("tenant=? AND ", []any{string(t)}, max(1, limit/len(due)))
		if err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
	return out, nil
}

func (tx *Tx) ringingGroups(where string, args []any, limit int) (out []perdure.Group, err error) {
	err = groupHeads.query(tx.sess, fmt.Sprintf("WHERE "+where+"alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, id LIMIT %d", limit),
		append(args, int64(tx.Now)), func(g *perdure.Group) error {
			k := groupKey{g.Tenant, g.ID}
			tx.groups.absorb(k, *g, true)
			if cur, ok, _ := tx.groups.get(k); ok && cur.AlarmAt != 0 && cur.AlarmAt <= tx.Now {
				out = append(out, cur)
			}
			return nil
		})
	return out, err
}

// OpenGatherings walks through all open gatherings: the patrol's net.
func (tx *Tx) OpenGatherings(t perdure.TenantID, id perdure.GroupID, limit int) ([]perdure.Group, error) {
	var out []perdure.Group
	err := groupHeads.query(tx.sess, fmt.Sprintf("WHERE state='open' AND (tenant,id)>(?,?) ORDER BY tenant, id LIMIT %d", limit),
		[]any{string(t), string(id)}, func(g *perdure.Group) error {
			k := groupKey{g.Tenant, g.ID}
			tx.groups.absorb(k, *g, true)
			if cur, ok, _ := tx.groups.get(k); ok && cur.State == perdure.GroupOpen { // the batch may have closed it
				out = append(out, cur)
			}
			return nil
		})
	return out, err
}

// PutGathering stages a chord or group. Its version is counted when the batch is written.
func (tx *Tx) PutGathering(g perdure.Group) { tx.groups.put(tx, groupKey{g.Tenant, g.ID}, g) }

// AddMember stages that a gathering waits for a run.
func (tx *Tx) AddMember(m MemberRow) { tx.members.put(tx, m, m) }

// DropMembers stages that a gathering waits for some runs no longer.
func (tx *Tx) DropMembers(g *perdure.Group, runs []perdure.RunID) error {
	for _, run := range runs {
		m := MemberRow{Tenant: g.Tenant, RunID: run, ID: g.ID}
		tx.members.put(tx, m, m)
		tx.members.slots[m].exists = false
	}
	return eachPart(tx.s.dialect, texts(runs), func(part []string) error {
		some, args := tx.s.dialect.anyOf("run_id", part)
		push(tx, &tx.later, statement{"DELETE FROM members WHERE tenant=? AND gathering_id=? AND " + some,
			append([]any{string(g.Tenant), string(g.ID)}, args...), anyNumber})
		return nil
	})
}

// Key gives what an idempotency key led to. One that has expired counts as absent once its run has ended;
// see the engine.
func (tx *Tx) Key(t perdure.TenantID, key string) (KeyRow, bool, error) {
	k := keyKey{t, key}
	if v, ok, known := tx.keys.get(k); known {
		return v, ok, nil
	}
	err := keyTable.query(tx.sess, "WHERE tenant=? AND key=?", []any{string(t), key}, func(v *KeyRow) error {
		tx.keys.absorb(k, *v, true)
		return nil
	})
	if err == nil {
		tx.keys.absorb(k, KeyRow{}, false)
	}
	v, ok, _ := tx.keys.get(k)
	return v, ok, err
}

// PutKey stages a new idempotency key.
func (tx *Tx) PutKey(v KeyRow) { tx.keys.put(tx, keyKey{v.Tenant, v.Key}, v) }

// Worker gives a worker.
func (tx *Tx) Worker(t perdure.TenantID, id string) (perdure.Worker, bool, error) {
	k := workerKey{t, id}
	if w, ok, known := tx.workers.get(k); known {
		return w, ok, nil
	}
	err := workerTable.query(tx.sess, "WHERE tenant=? AND id=?", []any{string(t), id}, func(w *perdure.Worker) error {
		tx.workers.absorb(k, *w, true)
		return nil
	})
	if err == nil {
		tx.workers.absorb(k, perdure.Worker{}, false)
	}
	w, ok, _ := tx.workers.get(k)
	return w, ok, err
}

// SilentWorkers gives workers that were not heard from since an instant and are not offline yet.
func (tx *Tx) SilentWorkers(since perdure.Instant, limit int) ([]perdure.Worker, error) {
	var out []perdure.Worker
	err := workerTable.query(tx.sess, fmt.Sprintf("WHERE offline=0 AND seen_at<=? ORDER BY seen_at, tenant, id LIMIT %d", limit), []any{int64(since)},
		func(w *perdure.Worker) error {
			k := workerKey{w.Tenant, w.ID}
			tx.workers.absorb(k, *w, true)
			if cur, _, _ := tx.workers.get(k); !cur.Offline && cur.SeenAt <= since {
				out = append(out, cur)
			}
			return nil
		})
	return out, err
}

// PutWorker stages a worker.
func (tx *Tx) PutWorker(w perdure.Worker) { tx.workers.put(tx, workerKey{w.Tenant, w.ID}, w) }

// Waiters gives who waits for a run.
func (tx *Tx) Waiters(t perdure.TenantID, run perdure.RunID) ([]WaiterRow, error) {
	k := runKey{t, run}
	err := waiterTable.query(tx.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)}, func(w *WaiterRow) error {
		tx.waiters.absorb(waiterKey{k, w.Node}, *w, true)
		return nil
	})
	var out []WaiterRow
	for w := range tx.waiters.of(k) {
		out = append(out, *w)
	}
	slices.SortFunc(out, func(a, b WaiterRow) int { return strings.Compare(a.Node, b.Node) })
	return out, err
}

// RenewWaiters stages a later expiry of those waiters of a node that have not expired, and says which these are. One that
// is dropped meanwhile stays dropped.
func (tx *Tx) RenewWaiters(t perdure.TenantID, node string, ids []perdure.RunID, until perdure.Instant) (kept map[perdure.RunID]bool, err error) {
	kept = make(map[perdure.RunID]bool, len(ids))
	err = eachPart(tx.s.dialect, texts(ids), func(part []string) error {
		given, args := tx.s.dialect.keyed("waiters", []string{"tenant", "node", "run_id"}, []string{string(t), node}, part)
		return waiterTable.query(tx.sess, given, args, func(w *WaiterRow) error {
			if w.ExpiresAt > tx.Now {
				kept[w.RunID] = true
				tx.Stage("UPDATE waiters SET expires_at=? WHERE tenant=? AND run_id=? AND node=? AND expires_at>?",
					int64(until), string(t), string(w.RunID), node, int64(tx.Now))
			}
			return nil
		})
	})
	return kept, err
}

// ExpiredWaiters gives waiters whose node has not spoken up for them.
func (tx *Tx) ExpiredWaiters(limit int) ([]WaiterRow, error) {
	where, args := fmt.Sprintf("WHERE expires_at<=? ORDER BY expires_at, tenant, run_id, node LIMIT %d", limit), []any{int64(tx.Now)}
	if err := tx.ownersFirst("SELECT tenant, run_id FROM waiters "+where, args); err != nil {
		return nil, err
	}
	var out []WaiterRow
	err := waiterTable.query(tx.sess, where, args, func(w *WaiterRow) error {
		k := waiterKey{runKey{w.Tenant, w.RunID}, w.Node}
		if _, _, known := tx.runs.get(k.runKey); !known {
			return nil
		}
		tx.waiters.absorb(k, *w, true)
		if cur, ok, _ := tx.waiters.get(k); ok && cur.ExpiresAt <= tx.Now {
			out = append(out, cur)
		}
		return nil
	})
	return out, err
}

// PutWaiter stages a waiter.
func (tx *Tx) PutWaiter(w WaiterRow) {
	tx.waiters.put(tx, waiterKey{runKey{w.Tenant, w.RunID}, w.Node}, w)
}

// DropWaiter removes a waiter as it was read.
func (tx *Tx) DropWaiter(w WaiterRow) {
	k := waiterKey{runKey{w.Tenant, w.RunID}, w.Node}
	sl := tx.waiters.slots[k]
	if sl != nil {
		before := *sl
		sl.exists = false
		tx.undo = append(tx.undo, func() { *sl = before })
	}
	push(tx, &tx.later, statement{"DELETE FROM waiters WHERE tenant=? AND run_id=? AND node=? AND expires_at<=?", []any{string(w.Tenant), string(w.RunID), w.Node, int64(w.ExpiresAt)}, anyNumber})
}

// Tenant and HasQueue tell whether the surroundings of a run exist.
func (tx *Tx) Tenant(t perdure.TenantID) (TenantRow, bool, error) {
	if v, ok, known := tx.tenants.get(t); known {
		return v, ok, nil
	}
	err := tenantTable.query(tx.sess, "WHERE id=?", []any{string(t)}, func(v *TenantRow) error {
		tx.tenants.absorb(t, *v, true)
		return nil
	})
	if err == nil {
		tx.tenants.absorb(t, TenantRow{}, false)
	}
	v, ok, _ := tx.tenants.get(t)
	return v, ok, err
}

// PutTenant stages a new tenant.
func (tx *Tx) PutTenant(v TenantRow) { tx.tenants.put(tx, v.ID, v) }

func (tx *Tx) HasQueue(t perdure.TenantID, name string) (bool, error) {
	k := queueKey{t, name}
	if _, ok, known := tx.queues.get(k); known {
		return ok, nil
	}
	err := queueTable.query(tx.sess, "WHERE tenant=? AND name=?", []any{string(t), name}, func(v *QueueRow) error {
		tx.queues.absorb(k, *v, true)
		return nil
	})
	if err == nil {
		tx.queues.absorb(k, QueueRow{}, false)
	}
	_, ok, _ := tx.queues.get(k)
	return ok, err
}

// PutQueue stages a new queue.
func (tx *Tx) PutQueue(v QueueRow) { tx.queues.put(tx, queueKey{v.Tenant, v.Name}, v) }

// After has f called once the batch is durable: doorbells ring then.
func (tx *Tx) After(f func()) {
	n := len(tx.after)
	tx.after = append(tx.after, f)
	tx.undo = append(tx.undo, func() { tx.after = tx.after[:n] })
}

// Meta gives a named value of the store itself.
func (tx *Tx) Meta(name string) (v string, err error) {
	err = tx.sess.Query("SELECT value FROM meta WHERE name=?", []any{name}, func(scan func(...any) error) error { return scan(&v) })
	return v, err
}

// SetMeta stages a named value, unless somebody else is writing it.
func (tx *Tx) SetMeta(name, value string) {
	if tx.locked[metaKey(name)] {
		return
	}
	if tx.metas == nil {
		tx.metas = make(map[metaKey]bool)
	}
	tx.metas[metaKey(name)] = true
	push(tx, &tx.later, statement{"INSERT INTO meta (name,value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value", []any{name, value}, anyNumber})
}

// ClaimMeta stages a named value that must not be there yet. Of two nodes that set it at once, one decides its batch again.
func (tx *Tx) ClaimMeta(name, value string) {
	push(tx, &tx.later, statement{"INSERT INTO meta (name,value) VALUES (?,?) ON CONFLICT (name) DO NOTHING", []any{name, value}, 1})
}

// Events reads a run's log as it stands in the database, for decisions that need it.
func (tx *Tx) Events(t perdure.TenantID, run perdure.RunID, after int64, limit int) ([]perdure.Line, error) {
	return readEvents(tx.sess, t, run, after, limit)
}

// LastLines gives the lines of a type that a run's log has after one, the last one first and with those that the batch has added,
// until enough is said. A value that is stored by its hash is given in full.
func (tx *Tx) LastLines(t perdure.TenantID, run perdure.RunID, typ string, after int64, enough func(perdure.Line) bool) error {
	for _, e := range slices.Backward(tx.events) {
		if e.Tenant != t || e.RunID != run || e.Type != typ || e.Seq <= after {
			continue
		}
		full, err := tx.Resolve(t, e.Data)
		if err != nil {
			return err
		}
		if e.Data = full; enough(e.Line) {
			return nil
		}
	}
	return lastLines(tx.sess, t, run, typ, after, enough)
}

// Stage adds a statement of the caller's own to the batch: for repairs, and for tests that break something.
func (tx *Tx) Stage(text string, args ...any) { push(tx, &tx.later, statement{text, args, anyNumber}) }

// SetQuota bounds the live runs of a tenant; zero takes the bound away.
func (tx *Tx) SetQuota(t perdure.TenantID, liveRuns int64) {
	push(tx, &tx.later, statement{"UPDATE tenants SET max_live_runs=? WHERE id=?", []any{liveRuns, string(t)}, anyNumber})
}

// RequireSignatures stages whether a tenant's runs are granted only with a valid signature.
func (tx *Tx) RequireSignatures(t perdure.TenantID, yes bool) {
	push(tx, &tx.later, statement{"UPDATE tenants SET require_signatures=? WHERE id=?", []any{toBit(yes), string(t)}, anyNumber})
}

// Tenant gives a tenant.
func (v *View) Tenant(t perdure.TenantID) (row TenantRow, ok bool, err error) {
	err = tenantTable.query(v.sess, "WHERE id=?", []any{string(t)}, func(x *TenantRow) error {
		row, ok = *x, true
		return nil
	})
	return row, ok, err
}

// SignedTenant gives one of the tenants that require signatures, or none.
func (v *View) SignedTenant() (t perdure.TenantID, err error) {
	err = v.sess.Query("SELECT id FROM tenants WHERE require_signatures=1 ORDER BY id LIMIT 1", nil, func(scan func(...any) error) error { return scan(&t) })
	return t, err
}

// SignedTenants gives tenants that require signatures.
func (tx *Tx) SignedTenants(limit int) (out []perdure.TenantID, err error) {
	err = tx.sess.Query("SELECT id FROM tenants WHERE require_signatures=1 ORDER BY id"+atMost, []any{int64(limit)}, func(scan func(...any) error) error {
		var t perdure.TenantID
		err := scan(&t)
		out = append(out, t)
		return err
	})
	return out, err
}

// Credential gives a key by its id.
func (tx *Tx) Credential(id string) (perdure.Key, bool, error) {
	if k, ok, known := tx.creds.get(id); known {
		return k, ok, nil
	}
	err := keysTable.query(tx.sess, "WHERE id=?", []any{id}, func(k *perdure.Key) error {
		tx.creds.absorb(id, *k, true)
		return nil
	})
	if err == nil {
		tx.creds.absorb(id, perdure.Key{}, false)
	}
	k, ok, _ := tx.creds.get(id)
	return k, ok, err
}

// PutCredential stages a key.
func (tx *Tx) PutCredential(k perdure.Key) { tx.creds.put(tx, k.ID, k) }
