package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/perdure/perdure"
)

// errConflict says that a row was changed by somebody else between reading and writing it.
var errConflict = errors.New("store: somebody else was quicker")

// A Tx is a batch in the making: what was read, what is to be written, and one instant for all of it.
// Nothing reaches the database before the batch is decided. An operation of the batch sees what those
// before it staged; one that is refused leaves no trace.
type Tx struct {
	Now perdure.Instant

	s    *Store
	sess Session

	runs    shelf[runKey, perdure.Run]
	read    map[runKey]int64 // the version of each run's row as it was read; absent for new ones
	threads shelf[threadKey, perdure.Thread]
	waits   shelf[waitKey, perdure.Wait]
	items   shelf[itemKey, perdure.Item]
	groups  shelf[groupKey, perdure.Group]
	lates   shelf[lateKey, perdure.LateResult]
	commits shelf[commitKey, CommitRow]
	keys    shelf[keyKey, KeyRow]
	deads   shelf[runKey, perdure.DeadLetter]
	journal shelf[journalKey, JournalRow]
	workers shelf[workerKey, perdure.Worker]
	waiters shelf[waiterKey, WaiterRow]
	members shelf[MemberRow, MemberRow]
	tenants shelf[perdure.TenantID, TenantRow]
	queues  shelf[queueKey, QueueRow]

	events   []EventRow
	messages []perdure.ThreadMessage
	outbox   []OutboxRow
	blobs    []blobRow
	blobRefs []blobRefRow
	later    []statement
	after    []func()

	haveWaits map[runKey]bool // the open waits of these runs are on the shelf
	haveItems map[runKey]bool

	undo []func()
}

type (
	runKey struct {
		t perdure.TenantID
		r perdure.RunID
	}
	threadKey struct {
		t  perdure.TenantID
		id perdure.ThreadID
	}
	waitKey struct {
		runKey
		id string
	}
	itemKey struct {
		runKey
		seq int64
	}
	groupKey struct {
		t  perdure.TenantID
		id perdure.GroupID
	}
	lateKey struct {
		runKey
		n int
	}
	commitKey struct {
		runKey
		id string
	}
	journalKey struct {
		runKey
		key string
	}
	keyKey struct {
		t   perdure.TenantID
		key string
	}
	workerKey struct {
		t  perdure.TenantID
		id string
	}
	waiterKey struct {
		runKey
		node string
	}
	queueKey struct {
		t    perdure.TenantID
		name string
	}
)

type statement struct {
	text string
	args []any
}

// A shelf holds the records of one table that a batch has read or means to write.
type shelf[K comparable, T any] struct {
	slots map[K]*slot[T]
	dirty []K // in the order in which they were first changed
}

type slot[T any] struct {
	val    T
	exists bool
	dirty  bool
}

func (s *shelf[K, T]) get(k K) (v T, exists, known bool) {
	if sl := s.slots[k]; sl != nil {
		return sl.val, sl.exists, true
	}
	return v, false, false
}

// absorb takes what the database has, unless the batch knows better already.
func (s *shelf[K, T]) absorb(k K, v T, exists bool) {
	if s.slots == nil {
		s.slots = make(map[K]*slot[T])
	}
	if s.slots[k] == nil {
		s.slots[k] = &slot[T]{val: v, exists: exists}
	}
}

func (s *shelf[K, T]) put(tx *Tx, k K, v T) {
	if s.slots == nil {
		s.slots = make(map[K]*slot[T])
	}
	sl := s.slots[k]
	if sl == nil {
		sl = &slot[T]{}
		s.slots[k] = sl
	}
	before := *sl
	*sl = slot[T]{val: v, exists: true, dirty: true}
	if !before.dirty {
		s.dirty = append(s.dirty, k)
	}
	tx.undo = append(tx.undo, func() {
		*sl = before
		if !before.dirty {
			s.dirty = s.dirty[:len(s.dirty)-1]
		}
	})
}

// changed gives the records that are to be written, in the order in which they were first changed.
func (s *shelf[K, T]) changed() []T {
	out := make([]T, 0, len(s.dirty))
	for _, k := range s.dirty {
		if s.slots[k].exists {
			out = append(out, s.slots[k].val)
		}
	}
	return out
}

// mark begins an operation; rollback forgets what it staged since.
func (tx *Tx) mark() { tx.undo = tx.undo[:0] }

func (tx *Tx) rollback() {
	for _, u := range slices.Backward(tx.undo) {
		u()
	}
	tx.undo = tx.undo[:0]
}

// Try calls f as an operation of its own inside the operation: if it fails, what it staged is forgotten,
// and the rest goes on.
func (tx *Tx) Try(f func() error) error {
	n := len(tx.undo)
	err := f()
	if err != nil {
		for _, u := range slices.Backward(tx.undo[n:]) {
			u()
		}
		tx.undo = tx.undo[:n]
	}
	return err
}

func push[T any](tx *Tx, list *[]T, v ...T) {
	n := len(*list)
	*list = append(*list, v...)
	tx.undo = append(tx.undo, func() { *list = (*list)[:n] })
}

// ---- runs

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
	for _, id := range ids {
		if _, _, known := tx.runs.get(runKey{t, id}); !known && !slices.Contains(want, id) {
			want = append(want, id)
		}
	}
	return eachChunk(want, func(part []perdure.RunID) error {
		args := []any{string(t)}
		for _, id := range part {
			args = append(args, string(id))
		}
		err := runTable.query(tx.sess, "WHERE tenant=? AND id IN ("+marks(len(part))+")", args, func(r *perdure.Run) error {
			tx.absorbRun(r)
			return nil
		})
		for _, id := range part {
			tx.runs.absorb(runKey{t, id}, perdure.Run{}, false)
		}
		return err
	})
}

func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?,", n), ",") }

func (tx *Tx) absorbRun(r *perdure.Run) {
	k := runKey{r.Tenant, r.ID}
	if _, _, known := tx.runs.get(k); !known {
		tx.runs.absorb(k, *r, true)
		tx.read[k] = r.Version
	}
}

// Put stages a run, new or changed, and the lines that this adds to its log.
func (tx *Tx) Put(r perdure.Run, lines []perdure.Line) {
	tx.runs.put(tx, runKey{r.Tenant, r.ID}, r)
	rows := make([]EventRow, len(lines))
	for i, l := range lines {
		rows[i] = EventRow{r.Tenant, r.ID, l}
	}
	push(tx, &tx.events, rows...)
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
	for _, k := range tx.runs.dirty {
		if cur, ok, _ := tx.runs.get(k); ok && !seen[k] && match(&cur) {
			out = append(out, cur)
		}
	}
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

// Claimable gives the runs of a queue and kind that a poll may take, first ones first.
func (tx *Tx) Claimable(t perdure.TenantID, queue, kind string, limit int) ([]perdure.Run, error) {
	return tx.runsWhere("WHERE ready=1 AND tenant=? AND queue=? AND kind=? ORDER BY priority DESC, resumed DESC, created_at, id",
		[]any{string(t), queue, kind}, limit,
		func(r *perdure.Run) bool { return r.Ready && r.Tenant == t && r.Queue == queue && r.Kind == kind }, claimOrder)
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
	for _, k := range tx.runs.dirty {
		if r, ok, _ := tx.runs.get(k); ok {
			if v, ok := of(&r); ok && !slices.Contains(out, v) {
				out = append(out, v)
			}
		}
	}
	slices.Sort(out)
	return out, nil
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
	for _, k := range tx.runs.dirty {
		if cur, ok, _ := tx.runs.get(k); ok && !seen[k] && match(&cur) {
			out = append(out, cur)
		}
	}
	slices.SortStableFunc(out, func(a, b perdure.Run) int { return strings.Compare(a.JournalKey, b.JournalKey) })
	return out[:min(len(out), limit)], nil
}

// Child gives the child that a run has under a journal key.
func (tx *Tx) Child(t perdure.TenantID, parent perdure.RunID, key string) (perdure.Run, bool, error) {
	found, err := tx.runsWhere("WHERE tenant=? AND parent_id=? AND parent_id<>'' AND journal_key=?", []any{string(t), string(parent), key}, 1,
		func(r *perdure.Run) bool { return r.Tenant == t && r.ParentID == parent && r.JournalKey == key }, byID)
	if err != nil || len(found) == 0 {
		return perdure.Run{}, false, err
	}
	return found[0], true, nil
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

// LiveAfter walks through all live runs by tenant and id: the patrol's net.
func (tx *Tx) LiveAfter(t perdure.TenantID, id perdure.RunID, limit int) ([]perdure.Run, error) {
	return tx.runsWhere("WHERE alarm_at IS NOT NULL AND (tenant>? OR (tenant=? AND id>?)) ORDER BY tenant, id",
		[]any{string(t), string(t), string(id)}, limit,
		func(r *perdure.Run) bool {
			return r.State.Live() && (r.Tenant > t || (r.Tenant == t && r.ID > id))
		},
		func(a, b *perdure.Run) int {
			if a.Tenant != b.Tenant {
				return strings.Compare(string(a.Tenant), string(b.Tenant))
			}
			return byID(a, b)
		})
}

// CountLive counts a tenant's live runs, no further than limit.
func (tx *Tx) CountLive(t perdure.TenantID, limit int) (n int, err error) {
	err = tx.sess.Query(fmt.Sprintf("SELECT count(*) FROM (SELECT 1 FROM runs WHERE tenant=? AND alarm_at IS NOT NULL LIMIT %d) AS live", roundUp(limit)),
		[]any{string(t)}, func(scan func(...any) error) error { return scan(&n) })
	for _, k := range tx.runs.dirty {
		if _, stored := tx.read[k]; !stored && k.t == t {
			n++
		}
	}
	return n, err
}

// ---- what belongs to a run

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
	for wk, sl := range tx.waits.slots {
		if wk.runKey == k && sl.exists && sl.val.State == perdure.WaitOpen {
			out = append(out, sl.val)
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
	tx.waits.absorb(k, perdure.Wait{}, false)
	w, ok, _ := tx.waits.get(k)
	return w, ok, err
}

// PutWait stages a wait.
func (tx *Tx) PutWait(w perdure.Wait) {
	tx.waits.put(tx, waitKey{runKey{w.Tenant, w.RunID}, w.ID}, w)
}

// OpenItems gives a run's inbox items that are neither done nor skipped, in order.
func (tx *Tx) OpenItems(r *perdure.Run) ([]perdure.Item, error) {
	k := runKey{r.Tenant, r.ID}
	if r.InboxOpen == 0 {
		return nil, nil
	}
	if !tx.haveItems[k] {
		err := itemTable.query(tx.sess, "WHERE tenant=? AND run_id=? AND status IN ('pending','processing')", []any{string(r.Tenant), string(r.ID)},
			func(i *perdure.Item) error {
				tx.items.absorb(itemKey{k, i.Seq}, *i, true)
				return nil
			})
		if err != nil {
			return nil, err
		}
		tx.haveItems[k] = true
	}
	var out []perdure.Item
	for ik, sl := range tx.items.slots {
		if ik.runKey == k && sl.exists && (sl.val.Status == perdure.ItemPending || sl.val.Status == perdure.ItemProcessing) {
			out = append(out, sl.val)
		}
	}
	slices.SortFunc(out, func(a, b perdure.Item) int { return int(a.Seq - b.Seq) })
	return out, nil
}

// RingingItems gives inbox items whose alarm has rung.
func (tx *Tx) RingingItems(limit int) ([]perdure.Item, error) {
	var out []perdure.Item
	err := itemTable.query(tx.sess, fmt.Sprintf("WHERE alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, run_id, seq LIMIT %d", limit),
		[]any{int64(tx.Now)}, func(i *perdure.Item) error {
			k := itemKey{runKey{i.Tenant, i.RunID}, i.Seq}
			tx.items.absorb(k, *i, true)
			if cur, ok, _ := tx.items.get(k); ok && cur.AlarmAt != 0 && cur.AlarmAt <= tx.Now {
				out = append(out, cur)
			}
			return nil
		})
	return out, err
}

// PutItem stages an inbox item.
func (tx *Tx) PutItem(i perdure.Item) {
	tx.items.put(tx, itemKey{runKey{i.Tenant, i.RunID}, i.Seq}, i)
}

// Recorded gives the digests of those of the keys that a run's journal has already.
func (tx *Tx) Recorded(t perdure.TenantID, run perdure.RunID, keys []string) (map[string]string, error) {
	out := make(map[string]string)
	k := runKey{t, run}
	for _, key := range keys {
		if j, ok, _ := tx.journal.get(journalKey{k, key}); ok {
			out[key] = j.Digest
		}
	}
	err := eachChunk(keys, func(part []string) error {
		args := []any{string(t), string(run)}
		for _, key := range part {
			args = append(args, key)
		}
		return tx.sess.Query("SELECT key, digest FROM journal WHERE tenant=? AND run_id=? AND key IN ("+marks(len(part))+")", args,
			func(scan func(...any) error) error {
				var key, digest string
				if err := scan(&key, &digest); err != nil {
					return err
				}
				out[key] = digest
				return nil
			})
	})
	return out, err
}

// PutJournal stages a journal entry.
func (tx *Tx) PutJournal(j JournalRow) {
	tx.journal.put(tx, journalKey{runKey{j.Tenant, j.RunID}, j.Key}, j)
}

// CommitAnswer gives the answer that a commit was given before.
func (tx *Tx) CommitAnswer(t perdure.TenantID, run perdure.RunID, id string) (CommitRow, bool, error) {
	k := commitKey{runKey{t, run}, id}
	if c, ok, known := tx.commits.get(k); known {
		return c, ok, nil
	}
	err := commitTable.query(tx.sess, "WHERE tenant=? AND run_id=? AND commit_id=?", []any{string(t), string(run), id}, func(c *CommitRow) error {
		tx.commits.absorb(k, *c, true)
		return nil
	})
	tx.commits.absorb(k, CommitRow{}, false)
	c, ok, _ := tx.commits.get(k)
	return c, ok, err
}

// PutCommit stages the answer to a commit.
func (tx *Tx) PutCommit(c CommitRow) {
	tx.commits.put(tx, commitKey{runKey{c.Tenant, c.RunID}, c.ID}, c)
}

// LateResults gives what a run has of late results.
func (tx *Tx) LateResults(t perdure.TenantID, run perdure.RunID) ([]perdure.LateResult, error) {
	k := runKey{t, run}
	err := lateTable.query(tx.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)}, func(l *perdure.LateResult) error {
		tx.lates.absorb(lateKey{k, l.N}, *l, true)
		return nil
	})
	var out []perdure.LateResult
	for lk, sl := range tx.lates.slots {
		if lk.runKey == k && sl.exists {
			out = append(out, sl.val)
		}
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
	tx.deads.absorb(k, perdure.DeadLetter{}, false)
	d, ok, _ := tx.deads.get(k)
	return d, ok, err
}

// PutDeadLetter stages a dead letter.
func (tx *Tx) PutDeadLetter(d perdure.DeadLetter) {
	tx.deads.put(tx, runKey{d.Tenant, d.RunID}, d)
}

// DropDeadLetter discards a dead letter; its run stays.
func (tx *Tx) DropDeadLetter(t perdure.TenantID, run perdure.RunID) {
	push(tx, &tx.later, statement{"DELETE FROM dead_letters WHERE tenant=? AND run_id=?", []any{string(t), string(run)}})
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
	tx.threads.absorb(k, perdure.Thread{}, false)
	th, ok, _ := tx.threads.get(k)
	return th, ok, err
}

// PutThread stages a thread. Its version is counted when the batch is written.
func (tx *Tx) PutThread(th perdure.Thread) { tx.threads.put(tx, threadKey{th.Tenant, th.ID}, th) }

// AddMessage stages a message; its thread is staged by the caller, with the new Seq.
func (tx *Tx) AddMessage(m perdure.ThreadMessage) { push(tx, &tx.messages, m) }

// Gathering gives a chord or a group.
func (tx *Tx) Gathering(t perdure.TenantID, id perdure.GroupID) (perdure.Group, bool, error) {
	k := groupKey{t, id}
	if g, ok, known := tx.groups.get(k); known {
		return g, ok, nil
	}
	err := groupTable.query(tx.sess, "WHERE tenant=? AND id=?", []any{string(t), string(id)}, func(g *perdure.Group) error {
		tx.groups.absorb(k, *g, true)
		return nil
	})
	tx.groups.absorb(k, perdure.Group{}, false)
	g, ok, _ := tx.groups.get(k)
	return g, ok, err
}

// GatheringsOf gives the ids of the gatherings that wait for a run.
func (tx *Tx) GatheringsOf(t perdure.TenantID, run perdure.RunID) ([]perdure.GroupID, error) {
	var out []perdure.GroupID
	err := memberTable.query(tx.sess, "WHERE tenant=? AND run_id=?", []any{string(t), string(run)}, func(m *MemberRow) error {
		out = append(out, m.ID)
		return nil
	})
	for _, m := range tx.members.dirty {
		if m.Tenant == t && m.RunID == run && !slices.Contains(out, m.ID) {
			out = append(out, m.ID)
		}
	}
	slices.Sort(out)
	return out, err
}

// RingingGatherings gives groups whose deadline has passed.
func (tx *Tx) RingingGatherings(limit int) ([]perdure.Group, error) {
	var out []perdure.Group
	err := groupTable.query(tx.sess, fmt.Sprintf("WHERE alarm_at IS NOT NULL AND alarm_at<=? ORDER BY alarm_at, tenant, id LIMIT %d", limit),
		[]any{int64(tx.Now)}, func(g *perdure.Group) error {
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
	err := groupTable.query(tx.sess, fmt.Sprintf("WHERE state='open' AND (tenant>? OR (tenant=? AND id>?)) ORDER BY tenant, id LIMIT %d", limit),
		[]any{string(t), string(t), string(id)}, func(g *perdure.Group) error {
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
	tx.keys.absorb(k, KeyRow{}, false)
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
	tx.workers.absorb(k, perdure.Worker{}, false)
	w, ok, _ := tx.workers.get(k)
	return w, ok, err
}

// SilentWorkers gives workers that were not heard from since an instant and are not offline yet.
func (tx *Tx) SilentWorkers(since perdure.Instant, limit int) ([]perdure.Worker, error) {
	var out []perdure.Worker
	err := workerTable.query(tx.sess, fmt.Sprintf("WHERE offline=0 AND seen_at<=? ORDER BY seen_at LIMIT %d", limit), []any{int64(since)},
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
	for wk, sl := range tx.waiters.slots {
		if wk.runKey == k && sl.exists {
			out = append(out, sl.val)
		}
	}
	slices.SortFunc(out, func(a, b WaiterRow) int { return strings.Compare(a.Node, b.Node) })
	return out, err
}

// ExpiredWaiters gives waiters whose node has not spoken up for them.
func (tx *Tx) ExpiredWaiters(limit int) ([]WaiterRow, error) {
	var out []WaiterRow
	err := waiterTable.query(tx.sess, fmt.Sprintf("WHERE expires_at<=? ORDER BY expires_at, tenant, run_id, node LIMIT %d", limit), []any{int64(tx.Now)},
		func(w *WaiterRow) error {
			k := waiterKey{runKey{w.Tenant, w.RunID}, w.Node}
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
	push(tx, &tx.later, statement{"DELETE FROM waiters WHERE tenant=? AND run_id=? AND node=?", []any{string(w.Tenant), string(w.RunID), w.Node}})
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
	tx.tenants.absorb(t, TenantRow{}, false)
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
	tx.queues.absorb(k, QueueRow{}, false)
	_, ok, _ := tx.queues.get(k)
	return ok, err
}

// PutQueue stages a new queue.
func (tx *Tx) PutQueue(v QueueRow) { tx.queues.put(tx, queueKey{v.Tenant, v.Name}, v) }

// Notify stages a notification.
func (tx *Tx) Notify(o OutboxRow) { push(tx, &tx.outbox, o) }

// After has f called once the batch is durable: doorbells ring then.
func (tx *Tx) After(f func()) { push(tx, &tx.after, f) }

// Expire removes what has outlived its time: dead letters, and idempotency keys whose run has ended.
func (tx *Tx) Expire() (int, error) {
	n := 0
	count := func(scan func(...any) error) error {
		var k int
		err := scan(&k)
		n += k
		return err
	}
	if err := tx.sess.Query("SELECT count(*) FROM (SELECT 1 FROM dead_letters WHERE expires_at<=? LIMIT 1) AS due", []any{int64(tx.Now)}, count); err != nil {
		return 0, err
	}
	if err := tx.sess.Query("SELECT count(*) FROM (SELECT 1 FROM idempotency WHERE expires_at<=? LIMIT 1) AS due", []any{int64(tx.Now)}, count); err != nil {
		return 0, err
	}
	if n == 0 {
		return 0, nil
	}
	push(tx, &tx.later,
		statement{"DELETE FROM dead_letters WHERE expires_at<=?", []any{int64(tx.Now)}},
		statement{"DELETE FROM idempotency WHERE expires_at<=? AND NOT EXISTS " +
			"(SELECT 1 FROM runs WHERE runs.tenant=idempotency.tenant AND runs.id=idempotency.ref AND runs.alarm_at IS NOT NULL)", []any{int64(tx.Now)}},
		// A key of a live run is looked at again later: it lasts at least as long as its run.
		statement{"UPDATE idempotency SET expires_at=? WHERE expires_at<=?", []any{int64(tx.Now) + 3600*1e6, int64(tx.Now)}})
	return n, nil
}

// Meta gives a named value of the store itself.
func (tx *Tx) Meta(name string) (v string, err error) {
	err = tx.sess.Query("SELECT value FROM meta WHERE name=?", []any{name}, func(scan func(...any) error) error { return scan(&v) })
	return v, err
}

// SetMeta stages a named value.
func (tx *Tx) SetMeta(name, value string) {
	push(tx, &tx.later, statement{"INSERT INTO meta (name,value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value=excluded.value", []any{name, value}})
}

// Events reads a run's log as it stands in the database, for decisions that need it.
func (tx *Tx) Events(t perdure.TenantID, run perdure.RunID, after int64, limit int) ([]perdure.Line, error) {
	return readEvents(tx.sess, t, run, after, limit)
}

// ---- writing

// empty tells whether the batch has nothing to write.
func (tx *Tx) empty() bool {
	return len(tx.runs.dirty)+len(tx.threads.dirty)+len(tx.waits.dirty)+len(tx.items.dirty)+len(tx.groups.dirty)+len(tx.lates.dirty)+
		len(tx.commits.dirty)+len(tx.keys.dirty)+len(tx.deads.dirty)+len(tx.journal.dirty)+len(tx.workers.dirty)+len(tx.waiters.dirty)+
		len(tx.members.dirty)+len(tx.tenants.dirty)+len(tx.queues.dirty)+
		len(tx.events)+len(tx.messages)+len(tx.outbox)+len(tx.blobs)+len(tx.later) == 0
}

// write puts everything into the open transaction of the session.
func (tx *Tx) write() error {
	var fresh []perdure.Run
	var changed []changedRun
	for _, k := range tx.runs.dirty {
		r := &tx.runs.slots[k].val
		if read, stored := tx.read[k]; stored {
			changed = append(changed, changedRun{r, read})
		} else {
			fresh = append(fresh, *r)
		}
	}
	threads, groups := tx.threads.changed(), tx.groups.changed()
	for i := range threads {
		threads[i].Version++
	}
	for i := range groups {
		groups[i].Version++
	}
	s := tx.sess
	// The guarded rows come first: whoever loses the race finds out before writing anything else.
	return firstError(
		func() error { return saveRuns(s, tx.s.dialect, changed) },
		func() error { return runTable.insert(s, fresh) },
		func() error { return threadTable.insert(s, threads) },
		func() error { return groupTable.insert(s, groups) },
		func() error { return eventTable.insert(s, tx.events) },
		func() error { return waitTable.insert(s, tx.waits.changed()) },
		func() error { return itemTable.insert(s, tx.items.changed()) },
		func() error { return journalTable.insert(s, tx.journal.changed()) },
		func() error { return commitTable.insert(s, tx.commits.changed()) },
		func() error { return keyTable.insert(s, tx.keys.changed()) },
		func() error { return memberTable.insert(s, tx.members.changed()) },
		func() error { return messageTable.insert(s, tx.messages) },
		func() error { return lateTable.insert(s, tx.lates.changed()) },
		func() error { return deadTable.insert(s, tx.deads.changed()) },
		func() error { return outboxTable.insert(s, tx.outbox) },
		func() error { return workerTable.insert(s, tx.workers.changed()) },
		func() error { return waiterTable.insert(s, tx.waiters.changed()) },
		func() error { return tenantTable.insert(s, tx.tenants.changed()) },
		func() error { return queueTable.insert(s, tx.queues.changed()) },
		func() error { return blobTable.insert(s, tx.blobs) },
		func() error { return blobRefTable.insert(s, tx.blobRefs) },
		func() error {
			for _, st := range tx.later {
				if _, err := s.Exec(st.text, st.args); err != nil {
					return err
				}
			}
			return nil
		})
}

func firstError(steps ...func() error) error {
	for _, f := range steps {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// Touched gives the runs that the batch has changed.
func (tx *Tx) touched() []perdure.RunID {
	out := make([]perdure.RunID, len(tx.runs.dirty))
	for i, k := range tx.runs.dirty {
		out[i] = k.r
	}
	return out
}

// Stage adds a statement of the caller's own to the batch: for repairs, and for tests that break something.
func (tx *Tx) Stage(text string, args ...any) { push(tx, &tx.later, statement{text, args}) }

// SetQuota bounds the live runs of a tenant; zero takes the bound away.
func (tx *Tx) SetQuota(t perdure.TenantID, liveRuns int64) {
	push(tx, &tx.later, statement{"UPDATE tenants SET max_live_runs=? WHERE id=?", []any{liveRuns, string(t)}})
}
