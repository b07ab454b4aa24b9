package store

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// Run gives a run of a tenant; ok is false when there is none.
func (tx *Tx) Run(t perdure.TenantID, id perdure.RunID) (r perdure.Run, ok bool, err error) {
	k := runKey{t, id}
	if r, ok, known := tx.runs.get(k); known {
		return r, ok, nil
	}
	if err := tx.Prefetch(t, []perdure.RunID{id}); err != nil {
		return r, false, err
	}
	r, ok, _ = tx.runs.get(k)
	return r, ok, nil
}

// Staged gives the version of a run as the batch has it, if it has it.
func (tx *Tx) Staged(t perdure.TenantID, id perdure.RunID) (version int64, ok bool) {
	r, ok, _ := tx.runs.get(runKey{t, id})
	return r.Version, ok
}

// Prefetch reads many runs at once.
func (tx *Tx) Prefetch(t perdure.TenantID, ids []perdure.RunID) error {
	var want []perdure.RunID
	asked := make(map[perdure.RunID]bool, len(ids))
	for _, id := range ids {
		if _, _, known := tx.runs.get(runKey{t, id}); !known && !asked[id] && !tx.recall(runKey{t, id}) {
			want, asked[id] = append(want, id), true
		}
	}
	return eachPart(tx.s.dialect, texts(want), func(part []string) error {
		given, args := tx.s.dialect.keyed("runs", []string{"tenant", "id"}, []string{string(t)}, part)
		err := runTable.query(tx.sess, given, args, func(r *perdure.Run) error {
			tx.absorbRun(r)
			return nil
		})
		if err != nil {
			return err // what could not be read is not known to be absent
		}
		for _, id := range part {
			tx.runs.absorb(runKey{t, perdure.RunID(id)}, perdure.Run{}, false)
		}
		return nil
	})
}

func (tx *Tx) absorbRun(r *perdure.Run) {
	k := runKey{r.Tenant, r.ID}
	if _, _, known := tx.runs.get(k); !known {
		tx.runs.absorb(k, *r, true)
		tx.read[k] = r.Version
	}
}

// Moved tells whether somebody has changed a run since the batch has read it. It is for those who look at many rows one
// after the other and find that they don't fit: they were perhaps read at different times.
func (tx *Tx) Moved(r *perdure.Run) (moved bool, err error) {
	k := runKey{r.Tenant, r.ID}
	moved = true // or gone
	err = tx.sess.Query("SELECT version FROM runs WHERE tenant=? AND id=?", []any{string(k.t), string(k.r)}, func(scan func(...any) error) error {
		var version int64
		err := scan(nullable[int64]{&version})
		moved = version != tx.read[k]
		return err
	})
	return moved, err
}

// Put stages a run, new or changed, and the lines that this adds to its log.
func (tx *Tx) Put(r perdure.Run, lines []perdure.Line) {
	if tx.doubt {
		lines = tx.renumber(&r, lines)
	}
	tx.runs.put(tx, runKey{r.Tenant, r.ID}, r)
	rows := make([]EventRow, len(lines))
	for i, l := range lines {
		rows[i] = EventRow{r.Tenant, r.ID, l}
	}
	push(tx, &tx.events, rows...)
}

// renumber puts lines behind those that a run's log has, whatever its row says: that may be damaged. An error shows when the lines
// are written.
func (tx *Tx) renumber(r *perdure.Run, lines []perdure.Line) []perdure.Line {
	last := int64(0)
	_ = tx.sess.Query("SELECT coalesce(max(seq),0) FROM events WHERE tenant=? AND run_id=?", []any{string(r.Tenant), string(r.ID)}, func(scan func(...any) error) error {
		return scan(&last)
	})
	for i := range tx.events {
		if e := &tx.events[i]; e.Tenant == r.Tenant && e.RunID == r.ID {
			last = max(last, e.Seq)
		}
	}
	out := slices.Clone(lines)
	for i := range out {
		if out[i].Seq <= last {
			out[i].Seq = last + 1
		}
		last = out[i].Seq
	}
	r.Seq = max(r.Seq, last)
	return out
}

// runsWhere reads runs by anything but their id: what the database has, seen through what the batch has
// changed. match repeats the condition for rows of the batch. limit 0 means all.
func (tx *Tx) runsWhere(where string, args []any, limit int, match func(*perdure.Run) bool, order func(a, b *perdure.Run) int) ([]perdure.Run, error) {
	if limit > 0 {
		// Rows that the batch has taken out of the condition must not hide those behind them.
		where += fmt.Sprintf(" LIMIT %d", roundUp(limit+len(tx.runs.dirty)))
	}
	var out []perdure.Run
	seen := make(map[runKey]bool)
	err := runTable.query(tx.sess, where, args, func(r *perdure.Run) error {
		tx.absorbRun(r)
		k := runKey{r.Tenant, r.ID}
		seen[k] = true
		if cur, ok, _ := tx.runs.get(k); ok && match(&cur) {
			out = append(out, cur)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	tx.eachDirty(func(k runKey, r *perdure.Run) {
		if !seen[k] && match(r) {
			out = append(out, *r)
		}
	})
	slices.SortStableFunc(out, func(a, b perdure.Run) int { return order(&a, &b) })
	if limit > 0 && len(out) > limit {
		out = out[:limit]
	}
	return out, nil
}

// roundUp keeps the number of different statements small.
func roundUp(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

func byID(a, b *perdure.Run) int { return strings.Compare(string(a.ID), string(b.ID)) }

// claimOrder is who goes first: priority, then those that have been suspended before, then age.
func claimOrder(a, b *perdure.Run) int {
	switch {
	case a.Priority != b.Priority:
		return b.Priority - a.Priority
	case a.Resumed != b.Resumed:
		if a.Resumed {
			return -1
		}
		return 1
	case a.CreatedAt != b.CreatedAt:
		return int(max(-1, min(1, a.CreatedAt-b.CreatedAt)))
	}
	return byID(a, b)
}

// A claimPage names what the database has to claim in a queue, read once for all polls of a batch.
type claimPage struct {
	ids   []perdure.RunID // in order
	limit int             // how many were asked for: fewer are all there are
}

type claimKey struct {
	t           perdure.TenantID
	queue, kind string
}

// Claimable gives the runs of a queue and kind that a poll may take, first ones first. The polls of a batch
// share a page: each takes what those before it left, and only what it takes is read. more tells whether there
// seems to be something left for another poll.
func (tx *Tx) Claimable(t perdure.TenantID, queue, kind string, limit int) (found []perdure.Run, more bool, err error) {
	ck := claimKey{t, queue, kind}
	for ask := max(64, roundUp(limit)); ; ask *= 4 {
		page := tx.claims[ck]
		if page.limit < ask {
			page = claimPage{limit: ask}
			if err := tx.readPage(ck, &page); err != nil {
				return nil, false, err
			}
			tx.claims[ck] = page
		}
		var out []perdure.Run
		left := page.ids
		for len(left) > 0 && len(out) < limit {
			r, ok, known := tx.runs.get(runKey{t, left[0]})
			if !known {
				if err := tx.Prefetch(t, left[:min(len(left), limit-len(out))]); err != nil {
					return nil, false, err
				}
				continue
			}
			if left = left[1:]; ok && r.Ready && r.Queue == queue && r.Kind == kind && !tx.RunLocked(t, r.ID) {
				out = append(out, r)
			}
		}
		if len(out) < limit && len(page.ids) == page.limit {
			continue // what the batch has taken already fills the page: there may be more behind it
		}
		return tx.withFresh(out, ck, limit), len(left) > 0, nil
	}
}

// wholePage is the size from which on a page that is not remembered is read with its runs at once.
const wholePage = 256

// readPage reads a page of what there is to claim: its ids, or whole runs when it is large and the last one like
// it was hardly remembered.
func (tx *Tx) readPage(ck claimKey, page *claimPage) error {
	rest := fmt.Sprintf("WHERE ready=1 AND tenant=? AND queue=? AND kind=? ORDER BY priority DESC, resumed DESC, created_at, id LIMIT %d", page.limit)
	args := []any{string(ck.t), ck.queue, ck.kind}
	known := 0
	note := func(id perdure.RunID) {
		page.ids = append(page.ids, id)
		if tx.s.cache.has(runKey{ck.t, id}) {
			known++
		}
	}
	var err error
	if page.limit >= wholePage && tx.s.cache.misses.Load() {
		err = runTable.query(tx.sess, rest, args, func(r *perdure.Run) error {
			note(r.ID)
			tx.absorbRun(r)
			return nil
		})
	} else {
		err = tx.sess.Query("SELECT id FROM runs "+rest, args, func(scan func(...any) error) error {
			var id perdure.RunID
			err := scan(&id)
			note(id)
			return err
		})
	}
	if page.limit >= wholePage {
		tx.s.cache.misses.Store(2*known < len(page.ids))
	}
	return err
}

// withFresh adds the runs that became claimable within the batch.
func (tx *Tx) withFresh(out []perdure.Run, ck claimKey, limit int) []perdure.Run {
	n := len(out)
	tx.eachDirty(func(k runKey, r *perdure.Run) {
		if r.Ready && r.Tenant == ck.t && r.Queue == ck.queue && r.Kind == ck.kind &&
			!slices.ContainsFunc(out[:n], func(o perdure.Run) bool { return o.ID == r.ID }) {
			out = append(out, *r)
		}
	})
	if len(out) > n {
		slices.SortStableFunc(out, ClaimOrder)
	}
	return out[:min(limit, len(out))]
}

// ClaimOrder compares runs by who goes first.
func ClaimOrder(a, b perdure.Run) int { return claimOrder(&a, &b) }

// ReadyTenants and ReadyKinds say where there is something to claim, by skipping along the index.
func (tx *Tx) ReadyTenants() ([]perdure.TenantID, error) {
	found, err := tx.skipScan("SELECT tenant FROM runs WHERE ready=1 AND tenant>? ORDER BY tenant LIMIT 1", nil,
		func(r *perdure.Run) (string, bool) { return string(r.Tenant), r.Ready })
	out := make([]perdure.TenantID, len(found))
	for i, f := range found {
		out[i] = perdure.TenantID(f)
	}
	return out, err
}

func (tx *Tx) ReadyKinds(t perdure.TenantID, queue string) ([]string, error) {
	return tx.skipScan("SELECT kind FROM runs WHERE ready=1 AND tenant=? AND queue=? AND kind>? ORDER BY kind LIMIT 1", []any{string(t), queue},
		func(r *perdure.Run) (string, bool) { return r.Kind, r.Ready && r.Tenant == t && r.Queue == queue })
}

func (tx *Tx) skipScan(query string, args []any, of func(*perdure.Run) (string, bool)) ([]string, error) {
	var out []string
	last := ""
	for {
		next := ""
		err := tx.sess.Query(query, append(slices.Clone(args), last), func(scan func(...any) error) error { return scan(&next) })
		if err != nil {
			return nil, err
		}
		if next == "" {
			break
		}
		out = append(out, next)
		last = next
	}
	tx.eachDirty(func(_ runKey, r *perdure.Run) {
		if v, ok := of(r); ok && !slices.Contains(out, v) {
			out = append(out, v)
		}
	})
	slices.Sort(out)
	return out, nil
}

// Due says what a sweep has to look at.
type Due struct{ Runs, Cascades, Items, Groups, Waiters, Workers, Letters, Keys bool }

// Due asks in one question what a sweep would find: most find nothing.
func (tx *Tx) Due(workersSince perdure.Instant) (due Due, err error) {
	if !tx.empty() { // what the batch has staged may be due
		return Due{true, true, true, true, true, true, true, true}, nil
	}
	parts := []struct {
		from string
		at   perdure.Instant
		flag *bool
	}{
		{"runs WHERE alarm_at IS NOT NULL AND alarm_at<=?", tx.Now, &due.Runs},
		{"runs WHERE cascade=1 AND 0<=?", 0, &due.Cascades},
		{"inbox WHERE alarm_at IS NOT NULL AND alarm_at<=?", tx.Now, &due.Items},
		{"gatherings WHERE alarm_at IS NOT NULL AND alarm_at<=?", tx.Now, &due.Groups},
		{"waiters WHERE expires_at<=?", tx.Now, &due.Waiters},
		{"workers WHERE offline=0 AND seen_at<=?", workersSince, &due.Workers},
		{"dead_letters WHERE expires_at<=?", tx.Now, &due.Letters},
		{"idempotency WHERE expires_at<=?", tx.Now, &due.Keys},
	}
	questions, args := make([]string, len(parts)), make([]any, len(parts))
	for i, p := range parts {
		questions[i] = fmt.Sprintf("SELECT %d FROM (SELECT 1 FROM %s LIMIT 1) AS q%d", i, p.from, i)
		args[i] = int64(p.at)
	}
	err = tx.sess.Query(strings.Join(questions, " UNION ALL "), args, func(scan func(...any) error) error {
		i := 0
		err := scan(&i)
		*parts[i].flag = true
		return err
	})
	return due, err
}

// Ringing gives the runs whose alarm has rung, oldest alarm first.
func (tx *Tx) Ringing(limit int) ([]perdure.Run, error) {
	return tx.runsWhere("WHERE alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, id", []any{int64(tx.Now)}, limit,
		func(r *perdure.Run) bool { return r.AlarmAt != 0 && r.AlarmAt <= tx.Now },
		func(a, b *perdure.Run) int {
			if a.AlarmAt != b.AlarmAt {
				return int(max(-1, min(1, a.AlarmAt-b.AlarmAt)))
			}
			return byID(a, b)
		})
}

// Cascading gives ended runs that still have live children to cancel.
func (tx *Tx) Cascading(limit int) ([]perdure.Run, error) {
	return tx.runsWhere("WHERE cascade=1 ORDER BY tenant, id", nil, limit, func(r *perdure.Run) bool { return r.Cascade }, byID)
}

// LiveChildren gives children of a run that have not ended and may not outlive it.
func (tx *Tx) LiveChildren(t perdure.TenantID, parent perdure.RunID, limit int) ([]perdure.Run, error) {
	// Children that may outlive their parent, or have been asked to stop already, are passed over in Go: the
	// database is read page by page, so that they can't hide those behind them.
	var out []perdure.Run
	after := ""
	const page = 64
	match := func(r *perdure.Run) bool {
		return r.Tenant == t && r.ParentID == parent && r.State.Live() && !r.MayOutlive() && r.Cancel.RequestedAt == 0
	}
	seen := make(map[runKey]bool)
	for {
		n := 0
		err := runTable.query(tx.sess, "WHERE tenant=? AND parent_id=? AND parent_id<>'' AND journal_key>? AND alarm_at IS NOT NULL ORDER BY journal_key LIMIT 64",
			[]any{string(t), string(parent), after}, func(r *perdure.Run) error {
				tx.absorbRun(r)
				n++
				after = r.JournalKey
				k := runKey{r.Tenant, r.ID}
				seen[k] = true
				if cur, ok, _ := tx.runs.get(k); ok && match(&cur) {
					out = append(out, cur)
				}
				return nil
			})
		if err != nil {
			return nil, err
		}
		if n < page || len(out) >= limit {
			break
		}
	}
	tx.eachDirty(func(k runKey, r *perdure.Run) {
		if !seen[k] && match(r) {
			out = append(out, *r)
		}
	})
	slices.SortStableFunc(out, func(a, b perdure.Run) int { return strings.Compare(a.JournalKey, b.JournalKey) })
	return out[:min(len(out), limit)], nil
}

// Children gives those children of a run that are named by their journal keys, as far as they exist.
func (tx *Tx) Children(t perdure.TenantID, parent perdure.RunID, keys []string) (map[string]perdure.Run, error) {
	out := make(map[string]perdure.Run, len(keys))
	named := make(map[string]bool, len(keys))
	for _, key := range keys {
		named[key] = true
	}
	tx.eachDirty(func(k runKey, r *perdure.Run) {
		if r.ParentID == parent && k.t == t && named[r.JournalKey] {
			out[r.JournalKey] = *r
		}
	})
	stored := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { _, staged := out[key]; return staged })
	err := eachPart(tx.s.dialect, stored, func(part []string) error {
		given, args := tx.s.dialect.keyed("runs", []string{"tenant", "parent_id", "journal_key"}, []string{string(t), string(parent)}, part)
		return runTable.query(tx.sess, given+" AND parent_id<>''", args,
			func(r *perdure.Run) error {
				tx.absorbRun(r)
				out[r.JournalKey], _, _ = tx.runs.get(runKey{r.Tenant, r.ID})
				return nil
			})
	})
	return out, err
}

// eachDirty goes through the runs that the batch has changed, in the order of their first change.
func (tx *Tx) eachDirty(f func(runKey, *perdure.Run)) {
	for _, k := range tx.runs.dirty {
		if sl := tx.runs.slots[k]; sl.exists {
			f(k, &sl.val)
		}
	}
}

// NextOnThread gives the run whose turn on the thread is next. Those with the lower rank come first;
// rank says who.
func (tx *Tx) NextOnThread(t perdure.TenantID, id perdure.ThreadID, rank func(*perdure.Run) int) (perdure.Run, bool, error) {
	found, err := tx.runsWhere("WHERE tenant=? AND thread_id=? AND thread_id<>'' AND alarm_at IS NOT NULL AND turn=? ORDER BY created_at, id",
		[]any{string(t), string(id), int64(perdure.TurnWaiting)}, 0,
		func(r *perdure.Run) bool {
			return r.Tenant == t && r.ThreadID == id && r.Turn == perdure.TurnWaiting && r.State.Live()
		},
		func(a, b *perdure.Run) int {
			if x, y := rank(a), rank(b); x != y {
				return x - y
			}
			if a.CreatedAt != b.CreatedAt {
				return int(max(-1, min(1, a.CreatedAt-b.CreatedAt)))
			}
			return byID(a, b)
		})
	if err != nil || len(found) == 0 {
		return perdure.Run{}, false, err
	}
	return found[0], true, nil
}

// LiveBefore walks through all live runs by their alarms, from the latest down: the patrol's net. A run whose alarm is
// put off meanwhile comes again; none is pushed out of sight.
func (tx *Tx) LiveBefore(alarm perdure.Instant, t perdure.TenantID, id perdure.RunID, limit int) ([]perdure.Run, error) {
	order := func(a, b *perdure.Run) int {
		return cmp.Or(cmp.Compare(b.AlarmAt, a.AlarmAt), cmp.Compare(b.Tenant, a.Tenant), byID(b, a))
	}
	at := perdure.Run{AlarmAt: alarm, Tenant: t, ID: id}
	return tx.runsWhere("WHERE alarm_at IS NOT NULL AND (alarm_at,tenant,id)<(?,?,?) ORDER BY alarm_at DESC, tenant DESC, id DESC",
		[]any{int64(alarm), string(t), string(id)}, limit,
		func(r *perdure.Run) bool { return r.State.Live() && order(r, &at) > 0 }, order)
}

// CountLive counts a tenant's live runs, no further than limit.
func (tx *Tx) CountLive(t perdure.TenantID, limit int) (n int, err error) {
	err = tx.sess.Query(fmt.Sprintf(countLive, roundUp(limit)),
		[]any{string(t)}, func(scan func(...any) error) error { return scan(&n) })
	for _, k := range tx.runs.dirty {
		if _, stored := tx.read[k]; !stored && k.t == t {
			n++
		}
	}
	return n, err
}
