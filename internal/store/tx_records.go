package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// Open gives a run's open waits, in the order of their ids.
func (repo *Waits) Open(t perdure.TenantID, id perdure.RunID) ([]perdure.Wait, error) {
	k := runKey{t, id}
	if !repo.complete[k] {
		err := waitTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? AND state='open'", []any{string(t), string(id)}, func(w *perdure.Wait) error {
			repo.rows.absorb(waitKey{k, w.ID}, *w, true)
			return nil
		})
		if err != nil {
			return nil, err
		}
		repo.complete[k] = true
	}
	var out []perdure.Wait
	for w := range repo.rows.of(k) {
		if w.State == perdure.WaitOpen {
			out = append(out, *w)
		}
	}
	slices.SortFunc(out, func(a, b perdure.Wait) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// Get gives one wait of a run, open or not.
func (repo *Waits) Get(t perdure.TenantID, run perdure.RunID, id string) (perdure.Wait, bool, error) {
	k := waitKey{runKey{t, run}, id}
	if w, ok, known := repo.rows.get(k); known {
		return w, ok, nil
	}
	err := waitTable.query(repo.in.sess, "WHERE tenant=? AND run_id=? AND id=?", []any{string(t), string(run), id}, func(w *perdure.Wait) error {
		repo.rows.absorb(k, *w, true)
		return nil
	})
	if err == nil {
		repo.rows.absorb(k, perdure.Wait{}, false)
	}
	w, ok, _ := repo.rows.get(k)
	return w, ok, err
}

// Missed names a wait that is over although the suspend that named it was not ended by it.
func (repo *Waits) Missed(t perdure.TenantID, run perdure.RunID) (id string, err error) {
	err = repo.in.sess.Query("SELECT id FROM waits WHERE tenant=? AND run_id=? AND named=1 AND state NOT IN ('open','closed') ORDER BY id LIMIT 1",
		[]any{string(t), string(run)}, func(scan func(...any) error) error { return scan(&id) })
	if err != nil || id == "" {
		return "", err
	}
	w, _, err := repo.Get(t, run, id)
	if !w.Named {
		id = ""
	}
	return id, err
}

// Put stages a wait.
func (repo *Waits) Put(w perdure.Wait) {
	repo.rows.put(repo.in.tx, waitKey{runKey{w.Tenant, w.RunID}, w.ID}, w)
}

// Keys gives the keys of a run's journal that begin with a prefix, in the order of their recording. What the batch
// has staged is among them.
func (repo *Journal) Keys(t perdure.TenantID, run perdure.RunID, prefix string) ([]string, error) {
	seqs := make(map[string]int64)
	last := len(prefix) - 1
	err := repo.in.sess.Query("SELECT key, seq FROM journal WHERE tenant=? AND run_id=? AND key>=? AND key<?",
		[]any{string(t), string(run), prefix, prefix[:last] + string(rune(prefix[last]+1))}, func(scan func(...any) error) error {
			var key string
			var seq int64
			err := scan(&key, &seq)
			seqs[key] = seq
			return err
		})
	for _, k := range repo.rows.dirty {
		if k.runKey == (runKey{t, run}) && strings.HasPrefix(k.key, prefix) {
			seqs[k.key] = repo.rows.slots[k].val.Seq
		}
	}
	return slices.SortedFunc(maps.Keys(seqs), func(a, b string) int { return cmp.Compare(seqs[a], seqs[b]) }), err
}

// Put stages a journal entry.
func (repo *Journal) Put(j JournalRow) {
	repo.rows.put(repo.in.tx, journalKey{runKey{j.Tenant, j.RunID}, j.Key}, j)
}

// maxAnswer is how much of an answer a run's row carries: it is written anew with every change of the run.
const maxAnswer = 512

// Put stages the last commit of a run as the batch has it. The one before it goes to the others, and so does one
// whose answer is long.
func (repo *Commits) Put(t perdure.TenantID, id perdure.RunID, c perdure.Taken) error {
	r, ok, err := repo.in.Runs.Get(t, id)
	if err != nil || !ok {
		return err
	}
	apart := func(c perdure.Taken) {
		repo.rows.put(repo.in.tx, commitKey{runKey{t, id}, c.ID}, CommitRow{Tenant: t, RunID: id, Taken: c, At: repo.in.Now})
		r.Commits++
	}
	if r.LastCommit.ID != "" {
		apart(r.LastCommit)
	}
	if r.LastCommit = c; len(c.Answer) > maxAnswer {
		apart(c)
		r.LastCommit = perdure.Taken{}
	}
	repo.in.Runs.Put(r, nil)
	return nil
}

// List gives what a run has of late results.
func (repo *LateResults) List(t perdure.TenantID, run perdure.RunID) ([]perdure.LateResult, error) {
	k := runKey{t, run}
	err := lateTable.query(repo.in.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)}, func(l *perdure.LateResult) error {
		repo.rows.absorb(lateKey{k, l.N}, *l, true)
		return nil
	})
	var out []perdure.LateResult
	for l := range repo.rows.of(k) {
		out = append(out, *l)
	}
	slices.SortFunc(out, func(a, b perdure.LateResult) int { return a.N - b.N })
	return out, err
}

// Put stages a late result.
func (repo *LateResults) Put(l perdure.LateResult) {
	repo.rows.put(repo.in.tx, lateKey{runKey{l.Tenant, l.RunID}, l.N}, l)
}

// Get gives a run's dead letter.
func (repo *DeadLetters) Get(t perdure.TenantID, run perdure.RunID) (perdure.DeadLetter, bool, error) {
	k := runKey{t, run}
	if d, ok, known := repo.rows.get(k); known {
		return d, ok, nil
	}
	err := deadTable.query(repo.in.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)}, func(d *perdure.DeadLetter) error {
		repo.rows.absorb(k, *d, true)
		return nil
	})
	if err == nil {
		repo.rows.absorb(k, perdure.DeadLetter{}, false)
	}
	d, ok, _ := repo.rows.get(k)
	return d, ok, err
}

// Put stages a dead letter.
func (repo *DeadLetters) Put(d perdure.DeadLetter) {
	repo.rows.put(repo.in.tx, runKey{d.Tenant, d.RunID}, d)
}

// Drop discards a dead letter; its run stays.
func (repo *DeadLetters) Drop(t perdure.TenantID, run perdure.RunID) {
	if sl := repo.rows.slots[runKey{t, run}]; sl != nil {
		before := *sl
		sl.exists = false
		repo.in.tx.undo = append(repo.in.tx.undo, func() { *sl = before })
	}
	push(repo.in.tx, &repo.in.tx.later, statement{"DELETE FROM dead_letters WHERE tenant=? AND run_id=?", []any{string(t), string(run)}, anyNumber})
}

// ---- threads, gatherings, keys, workers, waiters

// Get gives a thread.
func (repo *Threads) Get(t perdure.TenantID, id perdure.ThreadID) (perdure.Thread, bool, error) {
	k := threadKey{t, id}
	if th, ok, known := repo.rows.get(k); known {
		return th, ok, nil
	}
	err := threadTable.query(repo.in.sess, "WHERE tenant=? AND id=?", []any{string(t), string(id)}, func(th *perdure.Thread) error {
		repo.rows.absorb(k, *th, true)
		return nil
	})
	if err == nil {
		repo.rows.absorb(k, perdure.Thread{}, false)
	}
	th, ok, _ := repo.rows.get(k)
	return th, ok, err
}

// Put stages a thread, on which something happens now. Its version is counted when the batch is written.
func (repo *Threads) Put(th perdure.Thread) {
	th.UpdatedAt = repo.in.Now
	repo.rows.put(repo.in.tx, threadKey{th.Tenant, th.ID}, th)
}

// AddMessage stages a message; its thread is staged by the caller, with the new Seq.
func (repo *Threads) AddMessage(m perdure.ThreadMessage) {
	if repo.in.tx.doubt { // as renumber does for lines
		last := int64(0)
		_ = repo.in.sess.Query("SELECT coalesce(max(seq),0) FROM messages WHERE tenant=? AND thread_id=?", []any{string(m.Tenant), string(m.ThreadID)}, func(scan func(...any) error) error {
			return scan(&last)
		})
		for i := range repo.messages {
			if x := &repo.messages[i]; x.Tenant == m.Tenant && x.ThreadID == m.ThreadID {
				last = max(last, x.Seq)
			}
		}
		m.Seq = max(m.Seq, last+1)
		if th, ok, _ := repo.rows.get(threadKey{m.Tenant, m.ThreadID}); ok {
			th.Seq = m.Seq
			repo.Put(th)
		}
	}
	push(repo.in.tx, &repo.messages, m)
}

// Get gives a chord or a group, without its members.
func (repo *Groups) Get(t perdure.TenantID, id perdure.GroupID) (perdure.Group, bool, error) {
	k := groupKey{t, id}
	if g, ok, known := repo.rows.get(k); known {
		return g, ok, nil
	}
	err := repo.Load(t, []perdure.GroupID{id})
	g, ok, _ := repo.rows.get(k)
	return g, ok, err
}

// Load reads many chords and groups at once.
func (repo *Groups) Load(t perdure.TenantID, ids []perdure.GroupID) error {
	var want []string
	for _, id := range ids {
		if _, _, known := repo.rows.get(groupKey{t, id}); !known {
			want = append(want, string(id))
		}
	}
	return eachPart(repo.in.s.dialect, want, func(part []string) error {
		given, args := repo.in.s.dialect.keyed("gatherings", []string{"tenant", "id"}, []string{string(t)}, part)
		err := groupHeads.query(repo.in.sess, given, args, func(g *perdure.Group) error {
			repo.rows.absorb(groupKey{t, g.ID}, *g, true)
			return nil
		})
		if err != nil {
			return err
		}
		for _, id := range part {
			repo.rows.absorb(groupKey{t, perdure.GroupID(id)}, perdure.Group{}, false)
		}
		return nil
	})
}

// Members gives the runs of a gathering.
func (repo *Groups) Members(g *perdure.Group) ([]perdure.RunID, error) {
	if g.Members != nil {
		return g.Members, nil
	}
	var out []perdure.RunID
	err := repo.in.sess.Query("SELECT members FROM gatherings WHERE tenant=? AND id=?", []any{string(g.Tenant), string(g.ID)},
		func(scan func(...any) error) error { return scan(idList{&out}) })
	return out, err
}

// Of gives the ids of the gatherings that wait for a run.
func (repo *Groups) Of(t perdure.TenantID, run perdure.RunID) ([]perdure.GroupID, error) {
	var out []perdure.GroupID
	err := memberTable.query(repo.in.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)}, func(m *MemberRow) error {
		if _, _, known := repo.members.get(*m); !known { // the batch may have let go of it
			out = append(out, m.ID)
		}
		return nil
	})
	for m := range repo.members.of(runKey{t, run}) {
		out = append(out, m.ID)
	}
	slices.Sort(out)
	return out, err
}

// CountOf counts how many gatherings wait for each of some runs, as far as the database has them.
func (repo *Groups) CountOf(t perdure.TenantID, runs []perdure.RunID) (map[perdure.RunID]int, error) {
	out := make(map[perdure.RunID]int)
	err := eachPart(repo.in.s.dialect, texts(runs), func(part []string) error {
		given, args := repo.in.s.dialect.keyed("members", []string{"tenant", "run_id"}, []string{string(t)}, part)
		return repo.in.sess.Query("SELECT run_id, count(*) FROM members "+given+" GROUP BY run_id", args, func(scan func(...any) error) error {
			var id perdure.RunID
			var n int
			err := scan(&id, &n)
			out[id] = n
			return err
		})
	})
	return out, err
}

// Ringing gives gatherings whose alarm has rung: groups whose deadline has passed, and those of
// which something is left to do.
func (repo *Groups) Ringing(limit int) ([]perdure.Group, error) {
	out, err := repo.ringing("", nil, limit)
	if err != nil || len(out) < limit {
		return out, err
	}
	// There are more than one sweep can do: it goes round the tenants.
	due, err := repo.in.tx.dueTenants("gatherings", "")
	if err != nil || len(due) < 2 {
		return out, err
	}
	out = nil
	for _, t := range due {
		part, err := repo.ringing("tenant=? AND ", []any{string(t)}, max(1, limit/len(due)))
		if err != nil {
			return nil, err
		}
		out = append(out, part...)
	}
	return out, nil
}

func (repo *Groups) ringing(where string, args []any, limit int) (out []perdure.Group, err error) {
	err = groupHeads.query(repo.in.sess, fmt.Sprintf("WHERE "+where+"alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, id LIMIT %d", limit),
		append(args, int64(repo.in.Now)), func(g *perdure.Group) error {
			k := groupKey{g.Tenant, g.ID}
			repo.rows.absorb(k, *g, true)
			if cur, ok, _ := repo.rows.get(k); ok && cur.AlarmAt != 0 && cur.AlarmAt <= repo.in.Now {
				out = append(out, cur)
			}
			return nil
		})
	return out, err
}

// Open walks through all open gatherings: the patrol's net.
func (repo *Groups) Open(t perdure.TenantID, id perdure.GroupID, limit int) ([]perdure.Group, error) {
	var out []perdure.Group
	err := groupHeads.query(repo.in.sess, fmt.Sprintf("WHERE state='open' AND (tenant,id)>(?,?) ORDER BY tenant, id LIMIT %d", limit),
		[]any{string(t), string(id)}, func(g *perdure.Group) error {
			k := groupKey{g.Tenant, g.ID}
			repo.rows.absorb(k, *g, true)
			if cur, ok, _ := repo.rows.get(k); ok && cur.State == perdure.GroupOpen { // the batch may have closed it
				out = append(out, cur)
			}
			return nil
		})
	return out, err
}

// Put stages a chord or group. Its version is counted when the batch is written.
func (repo *Groups) Put(g perdure.Group) { repo.rows.put(repo.in.tx, groupKey{g.Tenant, g.ID}, g) }

// AddMember stages that a gathering waits for a run.
func (repo *Groups) AddMember(m MemberRow) { repo.members.put(repo.in.tx, m, m) }

// DropMembers stages that a gathering waits for some runs no longer.
func (repo *Groups) DropMembers(g *perdure.Group, runs []perdure.RunID) error {
	for _, run := range runs {
		m := MemberRow{Tenant: g.Tenant, RunID: run, ID: g.ID}
		repo.members.put(repo.in.tx, m, m)
		repo.members.slots[m].exists = false
	}
	return eachPart(repo.in.s.dialect, texts(runs), func(part []string) error {
		some, args := repo.in.s.dialect.anyOf("run_id", part)
		push(repo.in.tx, &repo.in.tx.later, statement{"DELETE FROM members WHERE tenant=? AND gathering_id=? AND " + some,
			append([]any{string(g.Tenant), string(g.ID)}, args...), anyNumber})
		return nil
	})
}

// Get gives what an idempotency key led to. One that has expired counts as absent once its run has ended;
// see the engine.
func (repo *Idempotency) Get(t perdure.TenantID, key string) (KeyRow, bool, error) {
	k := keyKey{t, key}
	if v, ok, known := repo.rows.get(k); known {
		return v, ok, nil
	}
	err := keyTable.query(repo.in.sess, "WHERE tenant=? AND key=?", []any{string(t), key}, func(v *KeyRow) error {
		repo.rows.absorb(k, *v, true)
		return nil
	})
	if err == nil {
		repo.rows.absorb(k, KeyRow{}, false)
	}
	v, ok, _ := repo.rows.get(k)
	return v, ok, err
}

// Put stages a new idempotency key.
func (repo *Idempotency) Put(v KeyRow) { repo.rows.put(repo.in.tx, keyKey{v.Tenant, v.Key}, v) }

// Get gives a worker.
func (repo *Workers) Get(t perdure.TenantID, id string) (perdure.Worker, bool, error) {
	k := workerKey{t, id}
	if w, ok, known := repo.rows.get(k); known {
		return w, ok, nil
	}
	err := workerTable.query(repo.in.sess, "WHERE tenant=? AND id=?", []any{string(t), id}, func(w *perdure.Worker) error {
		repo.rows.absorb(k, *w, true)
		return nil
	})
	if err == nil {
		repo.rows.absorb(k, perdure.Worker{}, false)
	}
	w, ok, _ := repo.rows.get(k)
	return w, ok, err
}

// Silent gives workers that were not heard from since an instant and are not offline yet.
func (repo *Workers) Silent(since perdure.Instant, limit int) ([]perdure.Worker, error) {
	var out []perdure.Worker
	err := workerTable.query(repo.in.sess, fmt.Sprintf("WHERE offline=0 AND seen_at<=? ORDER BY seen_at, tenant, id LIMIT %d", limit), []any{int64(since)},
		func(w *perdure.Worker) error {
			k := workerKey{w.Tenant, w.ID}
			repo.rows.absorb(k, *w, true)
			if cur, _, _ := repo.rows.get(k); !cur.Offline && cur.SeenAt <= since {
				out = append(out, cur)
			}
			return nil
		})
	return out, err
}

// Put stages a worker.
func (repo *Workers) Put(w perdure.Worker) { repo.rows.put(repo.in.tx, workerKey{w.Tenant, w.ID}, w) }

// Of gives who waits for a run.
func (repo *Waiters) Of(t perdure.TenantID, run perdure.RunID) ([]WaiterRow, error) {
	k := runKey{t, run}
	err := waiterTable.query(repo.in.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)}, func(w *WaiterRow) error {
		repo.rows.absorb(waiterKey{k, w.Node}, *w, true)
		return nil
	})
	var out []WaiterRow
	for w := range repo.rows.of(k) {
		out = append(out, *w)
	}
	slices.SortFunc(out, func(a, b WaiterRow) int { return strings.Compare(a.Node, b.Node) })
	return out, err
}

// Renew stages a later expiry of those waiters of a node that have not expired, and says which these are. One that
// is dropped meanwhile stays dropped.
func (repo *Waiters) Renew(t perdure.TenantID, node string, ids []perdure.RunID, until perdure.Instant) (kept map[perdure.RunID]bool, err error) {
	kept = make(map[perdure.RunID]bool, len(ids))
	err = eachPart(repo.in.s.dialect, texts(ids), func(part []string) error {
		given, args := repo.in.s.dialect.keyed("waiters", []string{"tenant", "node", "run_id"}, []string{string(t), node}, part)
		return waiterTable.query(repo.in.sess, given, args, func(w *WaiterRow) error {
			if w.ExpiresAt > repo.in.Now {
				kept[w.RunID] = true
				repo.in.tx.Stage("UPDATE waiters SET expires_at=? WHERE tenant=? AND run_id=? AND node=? AND expires_at>?",
					int64(until), string(t), string(w.RunID), node, int64(repo.in.Now))
			}
			return nil
		})
	})
	return kept, err
}

// Expired gives waiters whose node has not spoken up for them.
func (repo *Waiters) Expired(limit int) ([]WaiterRow, error) {
	where, args := fmt.Sprintf("WHERE expires_at<=? ORDER BY expires_at, tenant, run_id, node LIMIT %d", limit), []any{int64(repo.in.Now)}
	if err := repo.in.tx.ownersFirst("SELECT tenant, run_id FROM waiters "+where, args); err != nil {
		return nil, err
	}
	var out []WaiterRow
	err := waiterTable.query(repo.in.sess, where, args, func(w *WaiterRow) error {
		k := waiterKey{runKey{w.Tenant, w.RunID}, w.Node}
		if _, _, known := repo.in.Runs.rows.get(k.runKey); !known {
			return nil
		}
		repo.rows.absorb(k, *w, true)
		if cur, ok, _ := repo.rows.get(k); ok && cur.ExpiresAt <= repo.in.Now {
			out = append(out, cur)
		}
		return nil
	})
	return out, err
}

// Put stages a waiter.
func (repo *Waiters) Put(w WaiterRow) {
	repo.rows.put(repo.in.tx, waiterKey{runKey{w.Tenant, w.RunID}, w.Node}, w)
}

// Drop removes a waiter as it was read.
func (repo *Waiters) Drop(w WaiterRow) {
	k := waiterKey{runKey{w.Tenant, w.RunID}, w.Node}
	sl := repo.rows.slots[k]
	if sl != nil {
		before := *sl
		sl.exists = false
		repo.in.tx.undo = append(repo.in.tx.undo, func() { *sl = before })
	}
	push(repo.in.tx, &repo.in.tx.later, statement{"DELETE FROM waiters WHERE tenant=? AND run_id=? AND node=? AND expires_at<=?", []any{string(w.Tenant), string(w.RunID), w.Node, int64(w.ExpiresAt)}, anyNumber})
}

// Get and HasQueue tell whether the surroundings of a run exist.
func (repo *Tenants) Get(t perdure.TenantID) (TenantRow, bool, error) {
	if v, ok, known := repo.rows.get(t); known {
		return v, ok, nil
	}
	err := tenantTable.query(repo.in.sess, "WHERE id=?", []any{string(t)}, func(v *TenantRow) error {
		repo.rows.absorb(t, *v, true)
		return nil
	})
	if err == nil {
		repo.rows.absorb(t, TenantRow{}, false)
	}
	v, ok, _ := repo.rows.get(t)
	return v, ok, err
}

// Put stages a new tenant.
func (repo *Tenants) Put(v TenantRow) { repo.rows.put(repo.in.tx, v.ID, v) }

func (repo *Queues) Has(t perdure.TenantID, name string) (bool, error) {
	k := queueKey{t, name}
	if _, ok, known := repo.rows.get(k); known {
		return ok, nil
	}
	err := queueTable.query(repo.in.sess, "WHERE tenant=? AND name=?", []any{string(t), name}, func(v *QueueRow) error {
		repo.rows.absorb(k, *v, true)
		return nil
	})
	if err == nil {
		repo.rows.absorb(k, QueueRow{}, false)
	}
	_, ok, _ := repo.rows.get(k)
	return ok, err
}

// Put stages a new queue.
func (repo *Queues) Put(v QueueRow) { repo.rows.put(repo.in.tx, queueKey{v.Tenant, v.Name}, v) }

// After has f called once the batch is durable: doorbells ring then.
func (tx *Tx) After(f func()) {
	n := len(tx.after)
	tx.after = append(tx.after, f)
	tx.undo = append(tx.undo, func() { tx.after = tx.after[:n] })
}

// Get gives a named value of the store itself.
func (repo *Meta) Get(name string) (v string, err error) {
	err = repo.in.sess.Query("SELECT value FROM meta WHERE name=?", []any{name}, func(scan func(...any) error) error { return scan(&v) })
	return v, err
}

// Set stages a named value, unless somebody else is writing it.
func (repo *Meta) Set(name, value string) {
	if repo.in.tx.locked[metaKey(name)] {
		return
	}
	if repo.set == nil {
		repo.set = make(map[metaKey]bool)
	}
	repo.set[metaKey(name)] = true
	push(repo.in.tx, &repo.in.tx.later, statement{"INSERT INTO meta (name,value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value", []any{name, value}, anyNumber})
}

// Claim stages a named value that must not be there yet. Of two nodes that set it at once, one decides its batch again.
func (repo *Meta) Claim(name, value string) {
	push(repo.in.tx, &repo.in.tx.later, statement{"INSERT INTO meta (name,value) VALUES (?,?) ON CONFLICT (name) DO NOTHING", []any{name, value}, 1})
}

// After reads a run's log as it stands in the database, for decisions that need it.
func (repo *Events) After(t perdure.TenantID, run perdure.RunID, after int64, limit int) ([]perdure.Line, error) {
	return readEvents(repo.in.sess, t, run, after, limit)
}

// LastOf gives the lines of a type that a run's log has after one, the last one first and with those that the batch has added,
// until enough is said. A value that is stored by its hash is given in full.
func (repo *Events) LastOf(t perdure.TenantID, run perdure.RunID, typ string, after int64, enough func(perdure.Line) bool) error {
	for _, e := range slices.Backward(repo.rows) {
		if e.Tenant != t || e.RunID != run || e.Type != typ || e.Seq <= after {
			continue
		}
		full, err := repo.in.Values.Resolve(t, e.Data)
		if err != nil {
			return err
		}
		if e.Data = full; enough(e.Line) {
			return nil
		}
	}
	return lastLines(repo.in.sess, t, run, typ, after, enough)
}

// Stage adds a statement of the caller's own to the batch: for repairs, and for tests that break something.
func (tx *Tx) Stage(text string, args ...any) { push(tx, &tx.later, statement{text, args, anyNumber}) }

// SetQuota bounds the live runs of a tenant; zero takes the bound away.
func (repo *Tenants) SetQuota(t perdure.TenantID, liveRuns int64) {
	push(repo.in.tx, &repo.in.tx.later, statement{"UPDATE tenants SET max_live_runs=? WHERE id=?", []any{liveRuns, string(t)}, anyNumber})
}

// RequireSignatures stages whether a tenant's runs are granted only with a valid signature.
func (repo *Tenants) RequireSignatures(t perdure.TenantID, yes bool) {
	push(repo.in.tx, &repo.in.tx.later, statement{"UPDATE tenants SET require_signatures=? WHERE id=?", []any{toBit(yes), string(t)}, anyNumber})
}



// AnySigned gives one of the tenants that require signatures, or none.
func (repo *Tenants) AnySigned() (t perdure.TenantID, err error) {
	err = repo.in.sess.Query("SELECT id FROM tenants WHERE require_signatures=1 ORDER BY id LIMIT 1", nil, func(scan func(...any) error) error { return scan(&t) })
	return t, err
}

// Signed gives tenants that require signatures.
func (repo *Tenants) Signed(limit int) (out []perdure.TenantID, err error) {
	err = repo.in.sess.Query("SELECT id FROM tenants WHERE require_signatures=1 ORDER BY id"+atMost, []any{int64(limit)}, func(scan func(...any) error) error {
		var t perdure.TenantID
		err := scan(&t)
		out = append(out, t)
		return err
	})
	return out, err
}

// Get gives a key by its id.
func (repo *Keys) Get(id string) (perdure.Key, bool, error) {
	if k, ok, known := repo.rows.get(id); known {
		return k, ok, nil
	}
	err := keysTable.query(repo.in.sess, "WHERE id=?", []any{id}, func(k *perdure.Key) error {
		repo.rows.absorb(id, *k, true)
		return nil
	})
	if err == nil {
		repo.rows.absorb(id, perdure.Key{}, false)
	}
	k, ok, _ := repo.rows.get(id)
	return k, ok, err
}

// Put stages a key.
func (repo *Keys) Put(k perdure.Key) { repo.rows.put(repo.in.tx, k.ID, k) }
